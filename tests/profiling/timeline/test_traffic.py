import pytest

from profiling._hlo.module import Module
from profiling._timeline.traffic import Traffic, traffic
from tests.profiling.hlo_files import SUM, entry, parse

X = "x = f32[64,32] parameter(0)\n"  # 8192 bytes


def of(module: Module, *, sectors: bool = False) -> Traffic:
    return traffic(module, module.entry.root, sectors=sectors)


def fused(body: str, shapes: str, *, kind: str = "kLoop", result: str = "") -> Module:
    """A fusion of parameters p0, p1, ... with these shapes."""
    given = shapes.split(" ")
    inside = "\n".join(f"p{i} = {s} parameter({i})" for i, s in enumerate(given))
    outside = "\n".join(f"x{i} = {s} parameter({i})" for i, s in enumerate(given))
    names = ", ".join(f"x{i}" for i in range(len(given)))
    root = result or body.rpartition("ROOT ")[2].split(" = ")[1].split(" ")[0]
    return parse(
        f"HloModule m\n{SUM}f {{\n{inside}\n{body}\n}}\nENTRY e {{\n{outside}\n"
        f"ROOT y = {root} fusion({names}), kind={kind}, calls=f\n}}\n"
    )


@pytest.mark.parametrize(
    ("line", "num_bytes"),
    [
        ("ROOT y = f32[64,32] negate(x)", 2 * 8192),
        ("ROOT y = f32[64,32] add(x, x)", 3 * 8192),
        ("ROOT y = f32[4,32] slice(x), slice={[0:4], [0:32]}", 2 * 512),
        (
            "i = s32[] parameter(1)\nROOT y = f32[4,32] dynamic-slice(x, i, i),"
            " dynamic_slice_sizes={4,32}",
            2 * 512,
        ),
        (
            "i = s32[] parameter(1)\nu = f32[4,32] parameter(2)\n"
            "ROOT y = f32[64,32] dynamic-update-slice(x, u, i, i)",
            2 * 512,
        ),
        (
            "ROOT y = f32[64,32] all-reduce(x), to_apply=sum,"
            " replica_groups={{0,1}}, channel_id=1",
            0,
        ),
        # scratch space of a library does not count
        (
            "ROOT y = (f32[64,32], s8[999]) custom-call(x),"
            ' custom_call_target="__cublas$gemm"',
            2 * 8192,
        ),
    ],
)
def test_instructions_of_their_own(line, num_bytes):
    assert of(entry(X + line, before=SUM)) == Traffic(num_bytes)


@pytest.mark.parametrize(
    ("body", "shapes", "num_bytes"),
    [
        # two operands read, one result written
        ("ROOT a = f32[64,32] add(p0, p1)", "f32[64,32] f32[64,32]", 3 * 8192),
        # read twice, from memory once
        ("ROOT a = f32[64,32] multiply(p0, p0)", "f32[64,32]", 2 * 8192),
        # what is cut off is not read, also behind a cast
        (
            "c = bf16[64,32] convert(p0)\nROOT s = bf16[4,32] slice(c),"
            " slice={[0:4], [0:32]}",
            "f32[64,32]",
            2 * 4 * 32 * 2,
        ),
        # two slices of one operand
        (
            "a = f32[4,32] slice(p0), slice={[0:4], [0:32]}\n"
            "b = f32[4,32] slice(p0), slice={[4:8], [0:32]}\n"
            "ROOT s = f32[4,32] add(a, b)",
            "f32[64,32]",
            3 * 512,
        ),
        # in place: the update is read and written, with its index
        (
            "ROOT u = f32[64,32] dynamic-update-slice(p0, p1, p2, p2)",
            "f32[64,32] f32[4,32] s32[]",
            2 * 512 + 4,
        ),
        # one element of a tuple is handed through
        (
            "a = f32[64,32] negate(p0)\nROOT t = (f32[64,32], f32[64,32]) tuple(a, p1)",
            "f32[64,32] f32[64,32]",
            2 * 8192,
        ),
    ],
)
def test_fusions(body, shapes, num_bytes):
    result = "(f32[64,32], f32[64,32])" if "ROOT t" in body else ""
    assert of(fused(body, shapes, result=result)) == Traffic(num_bytes)


TURN = "ROOT t = f32[32,64] transpose(p0), dimensions={1,0}"


def test_a_gpu_reads_sectors_where_neighbours_are_apart():
    """f32[64,32] turned element by element: 2048 reads of 64 bytes, 8192 written."""
    assert of(fused(TURN, "f32[64,32]"), sectors=True) == Traffic(2048 * 64 + 8192)
    assert of(fused(TURN, "f32[64,32]"), sectors=False) == Traffic(2 * 8192)
    through_tiles = fused(TURN, "f32[64,32]", kind="kInput")
    assert of(through_tiles, sectors=True) == Traffic(2 * 8192)


def test_a_transpose_behind_a_bitcast_jumps_too():
    body = "b = f32[64,32] bitcast(p0)\n" + TURN.replace("p0", "b")
    assert of(fused(body, "f32[2048]"), sectors=True) == Traffic(2048 * 64 + 8192)


@pytest.mark.parametrize(
    "turn",
    [
        # the last dim stays the last
        "ROOT t = f32[32,64,8] transpose(p0), dimensions={1,0,2}",
        # the layout says that neighbours stay neighbours
        "ROOT t = f32[8,64,32]{0,2,1} transpose(p0), dimensions={2,0,1}",
    ],
)
def test_transposes_that_do_not_jump(turn):
    module = fused(turn, "f32[64,32,8]")
    assert of(module, sectors=True) == Traffic(2 * 64 * 32 * 8 * 4)


def test_memories_of_a_tpu():
    """S(1) is the vector memory; S(4), for semaphores, holds no data to speak of."""
    module = parse(
        "HloModule m\nf {\n  a = f32[64,32]{1,0:S(1)} parameter(0)\n"
        "  b = f32[64,32] parameter(1)\n  c = s32[8]{0:S(4)} parameter(2)\n"
        "  ROOT y = f32[64,32] add(a, b)\n}\nENTRY e {\n"
        "  a = f32[64,32]{1,0:S(1)} parameter(0)\n  b = f32[64,32] parameter(1)\n"
        "  c = s32[8]{0:S(4)} parameter(2)\n"
        "  ROOT y = f32[64,32]{1,0:S(1)} fusion(a, b, c), kind=kLoop, calls=f\n}\n"
    )
    assert of(module) == Traffic(memory=8192, fast=2 * 8192)


def test_a_fusion_inside_of_a_fusion():
    module = parse(
        "HloModule m\ng {\n  q = f32[64,32] parameter(0)\n"
        "  ROOT s = f32[4,32] slice(q), slice={[0:4], [0:32]}\n}\n"
        "f {\n  p = f32[64,32] parameter(0)\n"
        "  h = f32[4,32] fusion(p), kind=kLoop, calls=g\n"
        "  ROOT n = f32[4,32] negate(h)\n}\nENTRY e {\n  x = f32[64,32] parameter(0)\n"
        "  ROOT y = f32[4,32] fusion(x), kind=kLoop, calls=f\n}\n"
    )
    assert of(module) == Traffic(2 * 512)


def test_a_collective_in_a_fusion_is_the_links():
    module = parse(
        "HloModule m, num_partitions=2\nf {\n  p = f32[64,32] parameter(0)\n"
        "  ROOT g = f32[128,32] all-gather(p), dimensions={0}, channel_id=1,"
        " replica_groups={{0,1}}\n}\nENTRY e {\n  x = f32[64,32] parameter(0)\n"
        "  ROOT y = f32[128,32] fusion(x), kind=kCustom, calls=f\n}\n"
    )
    assert of(module) == Traffic()
