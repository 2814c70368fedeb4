from profiling._timeline.wires import Wires, waits


def test_a_wire_carries_one_after_the_other():
    wires = Wires()
    a = wires.send("nvlink", "a", 0.0, 3.0)
    b = wires.send("nvlink", "b", 1.0, 2.0)
    c = wires.send("ib", "c", 1.0, 2.0)
    assert [(t.begin_s, t.end_s) for t in (a, b, c)] == [(0, 3), (3, 5), (1, 3)]
    assert a.before is None
    assert b.before is a
    assert "before" not in repr(b)
    late = wires.send("nvlink", "late", 9.0, 1.0)
    assert late.before is None


def test_each_second_of_waiting_is_one_transfers():
    wires = Wires()
    wires.send("nvlink", "a", 0.0, 3.0)
    wires.send("nvlink", "b", 0.0, 2.0)
    c = wires.send("nvlink", "c", 0.0, 4.0)  # from 5 to 9
    assert waits(c, 1.0) == [("c", 4.0), ("b", 2.0), ("a", 2.0)]
    assert waits(c, 4.0) == [("c", 4.0), ("b", 1.0)]
    assert waits(c, 6.0) == [("c", 3.0)]
    assert waits(c, 9.0) == []


def test_a_copy_goes_on_by_itself():
    wires = Wires()
    wires.send("nvlink", "a", 0.0, 3.0)
    other = wires.copy()
    assert other.send("nvlink", "b", 0.0, 1.0).end_s == 4.0
    assert wires.send("nvlink", "c", 0.0, 2.0).end_s == 5.0
    assert wires.busy_after(4.5)
    assert not wires.busy_after(5.0)
