from profiling._memory.buffers import Allocation, BufferAssignment, Placed
from profiling._memory.buffers_text import load_assignment
from profiling._memory.temporaries import alive_at_peak, largest_temporaries
from tests.profiling.hlo_files import JAX, TORCH_XLA
from tests.profiling.memory.test_buffers import SMALL

# b lies where a was, c above both; d is in the place of b, which it overwrites.
A = Placed("a", (), 100, 0, 0)
B = Placed("b", (), 80, 0, 1)
C = Placed("c", (), 30, 100, 2)
D = Placed("d", (1,), 80, 0, 3)


def assignment(**more) -> BufferAssignment:
    return BufferAssignment(
        (
            Allocation(7, 130, "temporary", values=(A, B, C, D)),
            Allocation(8, 64, "output", True, values=(Placed("o", (), 64, 0, 9),)),
            Allocation(
                9, 64, "temporary", space=1, values=(Placed("v", (), 64, 0, 8),)
            ),
        ),
        **more,
    )


def test_the_largest():
    assert largest_temporaries(SMALL, 3) == {"add": 1024}
    assert largest_temporaries(b"", 3) == {}


def test_by_the_trace():
    # a (100); a and c (130); then b and c (110); then d instead of b.
    trace = ((0, True), (2, True), (9, True), (0, False), (1, True), (1, False))
    found = alive_at_peak(assignment(traces=((*trace, (3, True), (2, False)),)))
    assert found == (A, C)


def test_values_that_share_a_place_count_once():
    # b and d are one buffer, alive together: 80 bytes, not 160. With c that is 110,
    # which is less than the 130 of a and c later on.
    trace = ((1, True), (3, True), (2, True), (1, False), (3, False), (0, True))
    assert alive_at_peak(assignment(traces=(trace,))) == (A, C)


def test_several_arenas_in_one_allocation():
    found = alive_at_peak(assignment(traces=(((2, True),), ((0, True), (0, False)))))
    assert found == (A, C)


def test_by_lives():
    lives = {"a": (0, 4), "b": (5, 7), "c": (4, 9), "d": (8, 9)}
    found = alive_at_peak(assignment(), lambda v: lives.get(v.name))
    assert found == (A, C)  # at time 4
    lives["c"] = (5, 9)
    assert alive_at_peak(assignment(), lambda v: lives.get(v.name)) == (B, C)
    assert alive_at_peak(assignment(), lambda v: None) == ()
    assert alive_at_peak(assignment()) == ()


def test_by_the_list_in_a_text():
    (path,) = TORCH_XLA.glob("*buffer-assignment.txt")
    found = alive_at_peak(load_assignment(path))
    assert [(v.name, v.num_bytes) for v in found] == [
        ("all-reduce.1", 16384),
        ("dot.1", 16384),
        ("partition-id", 4),
    ]


def test_a_text_without_a_list():
    (path,) = JAX.glob("*buffer-assignment.txt")
    assert alive_at_peak(load_assignment(path)) == ()
