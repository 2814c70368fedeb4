import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling._collectives.wire_bytes import wire_bytes
from profiling._hlo.opcodes import COLLECTIVES


@pytest.mark.parametrize(
    ("kind", "operand", "output", "wire"),
    [
        ("all-gather", 100, 800, 700),
        ("reduce-scatter", 800, 100, 700),
        ("all-reduce", 800, 800, 1400),
        ("all-to-all", 800, 800, 700),
        ("ragged-all-to-all", 800, 900, 700),
        ("collective-permute", 800, 800, 800),
        ("collective-broadcast", 800, 800, 800),
    ],
)
def test_ring_formulas_on_eight(kind, operand, output, wire) -> None:
    found = wire_bytes(kind, 8, operand_bytes=operand, output_bytes=output)
    assert found == wire


@given(st.sampled_from(COLLECTIVES), st.integers(0, 1), st.integers(0, 1 << 40))
def test_alone_nothing_moves(kind: str, count: int, size: int) -> None:
    assert wire_bytes(kind, count, operand_bytes=size, output_bytes=size) == 0


@given(st.integers(2, 4096), st.integers(0, 1 << 50))
def test_an_all_reduce_is_a_scatter_and_a_gather(count: int, shard: int) -> None:
    full = shard * count
    gather = wire_bytes("all-gather", count, operand_bytes=shard, output_bytes=full)
    scatter = wire_bytes(
        "reduce-scatter", count, operand_bytes=full, output_bytes=shard
    )
    both = wire_bytes("all-reduce", count, operand_bytes=full, output_bytes=full)
    assert both == gather + scatter


def test_fractions_are_rounded_up() -> None:
    assert wire_bytes("all-reduce", 8, operand_bytes=2, output_bytes=2) == 4  # 3.5


def test_no_such_kind() -> None:
    with pytest.raises(ValueError, match="no collective 'add'; there are all-gather"):
        wire_bytes("add", 2, operand_bytes=1, output_bytes=1)
