import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling._collectives.moved import MovedFinder, result_of, split_bytes
from profiling._collectives.ops import collective_ops
from tests.profiling.collectives.test_destinations import FUSIONS
from tests.profiling.hlo_files import SUM, entry

ON = "channel_id=1, use_global_device_ids=true, replica_groups=[2,4]<=[8]"


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), max_size=20))
def test_parts_add_up(whole: int, shares: list[int]) -> None:
    parts = split_bytes(whole, shares)
    total = sum(shares)
    assert sum(parts) == (whole if total else 0)
    for part, share in zip(parts, shares, strict=True):
        if total:
            assert abs(part - whole * share / total) <= 1
            if whole * share % total == 0 and len(set(shares)) == 1:
                assert part == whole * share // total


@given(st.lists(st.integers(0, 10**6), max_size=9), st.integers(1, 64))
def test_exact_shares_stay_exact(sizes: list[int], n: int) -> None:
    """Gathers and reductions: each array's own (n-1)/n."""
    sizes = [size * n for size in sizes]
    whole = sum(sizes) // n * (n - 1)
    assert split_bytes(whole, sizes) == [size // n * (n - 1) for size in sizes]


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        (f"f32[32] all-gather(x), dimensions={{0}}, {ON}", ()),
        (f"(f32[32], f32[32]) all-gather(x, x), dimensions={{0}}, {ON}", (1,)),
        (f"(f32[8], f32[32]) all-gather-start(x), dimensions={{0}}, {ON}", (1,)),
        (
            f"((f32[8], f32[8]), (f32[32], f32[32])) all-gather-start(x, x), "
            f"dimensions={{0}}, {ON}",
            (1, 1),
        ),
        (f"(f32[8], f32[8]) all-reduce-start(x, x), to_apply=sum, {ON}", (1,)),
        (f"f32[8] all-reduce-start(x), to_apply=sum, {ON}", ()),
    ],
)
def test_results(line: str, wanted: tuple[int, ...]) -> None:
    module = entry(f"x = f32[8] parameter(0)\nROOT r = {line}", before=SUM)
    instruction = module.instruction("r")
    assert result_of(instruction, len(instruction.operands) - 1) == (
        instruction,
        wanted,
    )


def test_joined_arrays_come_apart() -> None:
    body = f"""
    x = f32[4,4] parameter(0), metadata={{op_name="a.weight"}}
    y = f32[3] parameter(1), metadata={{op_name="b.bias"}}
    l = f32[2] parameter(2)
    w = f32[4,4] sort(x), metadata={{op_name="backward/a/mm"}}
    b = f32[3] sort(y), metadata={{op_name="backward/b/sum"}}
    n = f32[] sort(l), metadata={{op_name="update/norm"}}
    f = f32[20] fusion(w, n, b), kind=kLoop, calls=join
    s = f32[20] all-reduce-start(f), to_apply=sum, {ON}
    d = f32[20] all-reduce-done(s)
    c = (f32[4,4], f32[], f32[3]) fusion(d), kind=kLoop, calls=apart
    g = f32[4,4] get-tuple-element(c), index=0
    m = f32[] get-tuple-element(c), index=1
    e = f32[3] get-tuple-element(c), index=2
    u = f32[4,4] subtract(x, g)
    v = f32[3] subtract(y, e)
    ROOT t = (f32[4,4], f32[], f32[3]) tuple(u, m, v)
    """
    module = entry(body, before=FUSIONS)
    (op,) = collective_ops(module)
    found = MovedFinder(module, None)(op)
    assert [
        (m.role, m.tensor, m.phase, m.module, m.operand_bytes, m.wire_bytes)
        for m in found
    ] == [
        ("gradient reduction", "a.weight", "backward", "a", 64, 96),
        ("gradient reduction", "b.bias", "backward", "b", 12, 18),
        ("scalar", "", "update", "", 4, 6),
    ]
    assert sum(m.wire_bytes for m in found) == op.wire_bytes == 120


def test_of_a_ragged_one_the_first_operand_moves() -> None:
    body = "x = f32[8,16] parameter(0)\n"
    body += f"ROOT r = f32[8,16] ragged-all-to-all(x, x, x, x, x, x), {ON}"
    module = entry(body, header=", num_partitions=8")
    (op,) = collective_ops(module)
    (moved,) = MovedFinder(module, None)(op)
    assert (moved.operand_bytes, moved.wire_bytes) == (512, 384)


def test_an_operand_for_each_device_is_one_array() -> None:
    body = f"""
    x = f32[64] parameter(0)
    y = f32[64] sort(x)
    a = f32[16] slice(y), slice={{[0:16]}}
    b = f32[16] slice(y), slice={{[16:32]}}
    c = f32[16] slice(y), slice={{[32:48]}}
    d = f32[16] slice(y), slice={{[48:64]}}
    ROOT t = (f32[16], f32[16], f32[16], f32[16]) all-to-all(a, b, c, d), {ON}
    """
    module = entry(body)
    (op,) = collective_ops(module)
    (moved,) = MovedFinder(module, None)(op)
    assert (moved.shape, moved.operand_bytes) == ("4 x f32[16]", 256)
    assert (moved.role, moved.wire_bytes) == ("reshard", op.wire_bytes)


def test_an_update_without_metadata_is_known_by_flow() -> None:
    """What is computed from a reduced gradient is the optimizer's."""
    body = f"""
    w = f32[64] parameter(0)
    g = f32[64] sort(w)
    r = f32[64] all-reduce(g), to_apply=sum, {ON}
    o = f32[64] sort(r)
    a = f32[64] all-reduce(o), to_apply=sum, {ON}
    p = f32[64] sort(a)
    b = f32[64] all-reduce(g), to_apply=sum, {ON}
    q = f32[64] sort(b)
    d = f32[64] subtract(w, r)
    ROOT t = (f32[64], f32[64], f32[64]) tuple(d, p, q)
    """
    module = entry(body, before=SUM)
    finder = MovedFinder(module, None)
    roles = {op.start.name: finder(op)[0].role for op in collective_ops(module)}
    assert roles == {"r": "gradient reduction", "a": "optimizer", "b": "activation"}
