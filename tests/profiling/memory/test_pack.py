import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling._memory import pack
from profiling._memory.pack import Block, arena_bytes, peak_bytes, profile

blocks = st.lists(
    st.builds(
        lambda size, start, more: Block(size, start, start + more),
        st.integers(0, 100),
        st.integers(0, 20),
        st.integers(0, 20),
    ),
    max_size=25,
)


def test_profile_counts_what_lives():
    found = profile([Block(4, 0, 2), Block(8, 2, 3), Block(5, 4, 4)])
    assert found == [4, 4, 12, 8, 5]


def test_nothing_needs_nothing():
    assert profile([]) == []
    assert peak_bytes([]) == 0
    assert arena_bytes([]) == 0


def test_a_gap_is_used_again():
    # 8 at the bottom from 0 to 1, 6 above it from 0 to 3; then 8 fits at the bottom.
    assert arena_bytes([Block(8, 0, 1), Block(6, 0, 3), Block(8, 2, 3)]) == 14


def test_the_smallest_gap_that_fits():
    # By size: 10, 10, 6, 5, 4. At time 2 the two 10s are gone, the 6 lies above them
    # at 20: the 5 and the 4 go below it.
    made = [
        Block(10, 0, 1),
        Block(10, 0, 1),
        Block(6, 1, 2),
        Block(5, 2, 2),
        Block(4, 2, 2),
    ]
    assert arena_bytes(made) == 26


def test_alignment():
    # 4 bytes, then at the next multiple of 64 another 4.
    assert arena_bytes([Block(4, 0, 0), Block(4, 0, 0)], alignment=64) == 68


def test_of_too_many_only_what_lives_is_counted(monkeypatch):
    made = [Block(4, 0, 0), Block(4, 0, 0)]
    monkeypatch.setattr(pack, "MAX_EXACT", 1)
    assert arena_bytes(made, alignment=64) == 8


@given(blocks)
def test_between_what_lives_and_all(made):
    found = arena_bytes(made)
    assert peak_bytes(made) <= found <= sum(b.num_bytes for b in made)


@given(blocks, st.sampled_from((1, 16, 64)))
def test_no_two_blocks_meet(made, alignment):
    places = {}

    def placed(gap):
        def gap_of(lower, upper, size, step):
            place = gap(lower, upper, size, step)
            assert place % step == 0
            for low, high in zip(lower, upper, strict=True):
                assert place >= high or place + size <= low
            places[len(places)] = place
            return place

        return gap_of

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pack, "_gap", placed(pack._gap))
        arena_bytes(made, alignment=alignment)
    assert len(places) == 2 * len(made)
