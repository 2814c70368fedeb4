from pathlib import Path

import pytest

from profiling._collectives.ops import CollectiveOp, collective_ops
from profiling._hlo.loops import Executions
from tests.profiling.hlo_files import DATA, STEP, SUM, content, entry, parse

ON = "channel_id=1, use_global_device_ids=true, replica_groups"
FOURS = f"{ON}=[2,4]<=[8]"
EIGHT = ", num_partitions=8"


def ops(body: str, *, before: str = SUM) -> tuple[CollectiveOp, ...]:
    return collective_ops(entry(body, header=EIGHT, before=before))


def only(body: str, *, before: str = SUM) -> CollectiveOp:
    (found,) = ops(body, before=before)
    return found


X = "x = f32[8,16] parameter(0)\n"


@pytest.mark.parametrize(
    ("line", "kind", "operand", "output", "wire"),
    [
        (f"f32[32,16] all-gather(x), dimensions={{0}}, {FOURS}",
         "all-gather", 512, 2048, 1536),
        (f"f32[2,16] reduce-scatter(x), dimensions={{0}}, to_apply=sum, {FOURS}",
         "reduce-scatter", 512, 128, 384),
        (f"f32[8,16] all-reduce(x), to_apply=sum, {FOURS}",
         "all-reduce", 512, 512, 768),
        (f"f32[8,16] all-to-all(x), dimensions={{0}}, {FOURS}",
         "all-to-all", 512, 512, 384),
        (f"f32[8,16] collective-broadcast(x), {FOURS}",
         "collective-broadcast", 512, 512, 512),
        ("f32[8,16] collective-permute(x), channel_id=1,"
         " source_target_pairs={{0,1},{1,2},{2,3},{3,0}}",
         "collective-permute", 512, 512, 512),
        ("f32[8,16] collective-permute(x), channel_id=1,"
         " source_target_pairs={{0,0},{1,1}}",
         "collective-permute", 512, 512, 0),
        (f"f32[8,16] ragged-all-to-all(x, x, x, x, x, x), {FOURS}",
         "ragged-all-to-all", 512, 512, 384),
        (f"f32[8,16] all-reduce(x), to_apply=sum, {ON}={{{{0}},{{1}}}}",
         "all-reduce", 512, 512, 0),
    ],
)  # fmt: skip
def test_each_kind(line, kind, operand, output, wire) -> None:
    op = only(f"{X}ROOT y = {line}")
    assert (op.kind, op.form, op.is_async) == (kind, "plain", False)
    assert (op.operand_bytes, op.output_bytes, op.wire_bytes) == (operand, output, wire)
    assert (op.dtype, op.runs, op.loop) == ("f32", Executions(1), "")
    assert (op.start_at, op.done_at, op.computation) == (1, 1, "e")
    assert op.step_wire_bytes == wire


def test_several_operands() -> None:
    op = only(
        "x = f32[8] parameter(0)\nw = bf16[4] parameter(1)\n"
        f"ROOT y = (f32[32], bf16[16]) all-gather(x, w), dimensions={{0}}, {FOURS}"
    )
    assert (op.dtype, op.operand_bytes, op.output_bytes) == ("f32+bf16", 40, 160)
    assert op.wire_bytes == 120


def test_repr() -> None:
    op = only(f"{X}ROOT y = f32[8,16] all-reduce(x), to_apply=sum, {FOURS}")
    assert repr(op) == (
        "CollectiveOp(y: all-reduce of 512 bytes f32 in 4s, 768 on the wire, 1x)"
    )


START = f"""{X}
s = (f32[8,16], f32[32,16]) all-gather-start(x), dimensions={{0}}, {FOURS}%s
%s
d = f32[32,16] all-gather-done(s)
ROOT n = f32[32,16] negate(d)"""


@pytest.mark.parametrize(
    ("config", "between", "is_async", "done_at"),
    [
        ("", "z = f32[8,16] negate(x)", True, 3),
        ("", "", False, 2),  # nothing can run in between
        (
            ', backend_config={"collective_backend_config":{"is_sync":true}}',
            "z = f32[8,16] negate(x)",
            False,
            3,
        ),
    ],
)
def test_starts_and_dones(config, between, is_async, done_at) -> None:
    op = only(START % (config, between))
    assert (op.kind, op.start.name, op.done and op.done.name) == (
        "all-gather",
        "s",
        "d",
    )
    assert (op.start_at, op.done_at, op.is_async) == (1, done_at, is_async)
    assert (op.operand_bytes, op.output_bytes, op.wire_bytes) == (512, 2048, 1536)


def test_wrapped_in_async_start() -> None:
    """Counted once, with its place that of the wrapper."""
    op = only(
        f"{X}"
        "s = ((f32[8,16]), f32[2,16], s32[]) async-start(x), calls=wrapped\n"
        "z = f32[8,16] negate(x)\n"
        "u = ((f32[8,16]), f32[2,16], s32[]) async-update(s), calls=wrapped\n"
        "ROOT d = f32[2,16] async-done(u), calls=wrapped",
        before=SUM + "wrapped {\n  p = f32[8,16] parameter(0)\n  ROOT r = f32[2,16] "
        f"reduce-scatter(p), dimensions={{0}}, to_apply=sum, {FOURS}\n}}\n",
    )
    assert (op.kind, op.instruction.name, op.inner) == (
        "reduce-scatter",
        "r",
        "wrapped",
    )
    assert (op.start.name, op.start_at, op.done_at, op.computation) == ("s", 1, 4, "e")
    assert (op.is_async, op.wire_bytes, op.output_bytes) == (True, 384, 128)


def test_text_writes_a_wrapped_one_as_its_start() -> None:
    op = only(
        f"{X}"
        f"s = ((f32[8,16]), f32[2,16]) reduce-scatter-start(x), dimensions={{0}},"
        f" to_apply=sum, {FOURS}\n"
        "z = f32[8,16] negate(x)\nROOT d = f32[2,16] reduce-scatter-done(s)"
    )
    assert (op.kind, op.is_async, op.wire_bytes) == ("reduce-scatter", True, 384)
    assert (op.operand_bytes, op.output_bytes) == (512, 128)


def test_a_done_in_another_computation() -> None:
    before = (
        "always {\n  p = (f32[8,16], f32[32,16]) parameter(0)\n"
        "  ROOT r = pred[] constant(true)\n}\n"
        "body {\n  p = (f32[8,16], f32[32,16]) parameter(0)\n"
        "  d = f32[32,16] all-gather-done(p)\n  x = f32[8,16] slice(d), "
        "slice={[0:8],[0:16]}\n  ROOT s = (f32[8,16], f32[32,16]) all-gather-start(x), "
        f"dimensions={{0}}, {FOURS}\n}}\n"
    )
    config = 'backend_config={"known_trip_count":{"n":"3"}}'
    found = ops(
        f"{X}s = (f32[8,16], f32[32,16]) all-gather-start(x), dimensions={{0}}, {FOURS}"
        "\nw = (f32[8,16], f32[32,16]) while(s), condition=always, body=body, "
        f"{config}\nROOT d = f32[32,16] all-gather-done(w)",
        before=before,
    )
    assert [(o.computation, o.runs.times, o.done) for o in found] == [
        ("body", 3, None),
        ("e", 1, None),
    ]
    assert all(o.is_async and o.done_at == -1 for o in found)
    assert [o.output_bytes for o in found] == [2048, 2048]
    assert sum(o.step_wire_bytes for o in found) == 4 * 1536


def test_loops_multiply() -> None:
    before = SUM + (
        "always {\n  p = f32[8,16] parameter(0)\n  ROOT r = pred[] constant(true)\n}\n"
        f"body {{\n  p = f32[8,16] parameter(0)\n  ROOT r = f32[8,16] all-reduce(p), "
        f"to_apply=sum, {FOURS}\n}}\n"
    )
    config = 'backend_config={"known_trip_count":{"n":"32"}}'
    op = only(
        f"{X}ROOT w = f32[8,16] while(x), condition=always, body=body, {config}",
        before=before,
    )
    assert (op.runs.times, op.step_wire_bytes) == (32, 32 * 768)
    assert op.loop == ""


def test_what_never_runs_is_not_listed() -> None:
    before = SUM + (
        "dead {\n  p = f32[8] parameter(0)\n  ROOT r = f32[8] all-reduce(p), "
        f"to_apply=sum, {FOURS}\n}}\n"
    )
    assert ops("ROOT x = f32[] parameter(0)", before=before) == ()


def test_jax_on_cpu_to_the_byte() -> None:
    """A 4x2 mesh: weights f32[64,64] over 4, gathers of f32[32,64] over 4."""
    found = collective_ops(parse(content(STEP)))
    assert [
        (o.instruction.name, o.kind, o.form, o.groups.largest_group, o.wire_bytes)
        for o in found
    ] == [
        ("all-gather", "all-gather", "plain", 4, 64 * 64 * 4 * 3 // 4),
        ("all-gather.1", "all-gather", "plain", 4, 32 * 64 * 4 * 3 // 4),
        ("all-gather.2", "all-gather", "plain", 4, 32 * 64 * 4 * 3 // 4),
        ("all-reduce", "all-reduce", "plain", 2, 32 * 16 * 4 * 2 // 2),
        ("all-reduce.1", "reduce-scatter", "all-reduce + slice", 4,
         32 * 64 * 4 * 2 * 3 // 4),
        ("all-reduce.2", "reduce-scatter", "all-reduce + slice", 4,
         64 * 64 * 4 * 2 * 3 // 4),
    ]  # fmt: skip
    assert sum(o.step_wire_bytes for o in found) == 63488
    assert found[0].groups.groups == ((0, 2, 4, 6), (1, 3, 5, 7))


def test_gpu_to_the_byte() -> None:
    """Two layers, bf16 weights 512x2048 and 2048x512, all in one gather and scatter."""
    weights = 4 * 512 * 2048 * 2
    gather, scatter = collective_ops(parse(content(DATA / "gpu_h100.txt.gz")))
    assert (gather.kind, gather.wire_bytes) == ("all-gather", weights * 7 // 8)
    assert (scatter.kind, scatter.wire_bytes) == ("reduce-scatter", weights * 7 // 8)
    assert (gather.output_bytes, scatter.output_bytes) == (weights, weights // 8)
    assert not gather.is_async  # its done is the very next instruction
    assert gather.groups.groups == (tuple(range(8)),)


def test_tpu_fusions_to_the_byte() -> None:
    """One gather is in five fused computations, and counts once."""
    weight = 512 * 2048 * 2
    found = collective_ops(parse(content(DATA / "tpu_v5e_fused.txt.gz")))
    assert [(o.kind, o.form, o.wire_bytes) for o in found] == [
        *[("all-gather", "plain", weight * 7 // 8)] * 3,
        ("all-gather", "async fusion", weight * 7 // 8),
        ("reduce-scatter", "fused reduce-scatter", 4 * weight * 7 // 8),
    ]
    spread = found[3]
    assert (spread.start.name, spread.done and spread.done.name) == (
        "async-collective-start",
        "async-collective-done",
    )
    assert (spread.is_async, spread.start_at, spread.done_at) == (True, 15, 58)
    assert found[4].output_bytes == 4 * weight // 8


def test_tpu_windowed_einsums_to_the_byte() -> None:
    """Three rings: four permutes in two trips each, and one outside of each loop."""
    shard = 2048 * 5632 * 2 // 8
    found = collective_ops(parse(content(DATA / "tpu_v5e_windowed.txt.gz")))
    rings = [o for o in found if o.form == "windowed"]
    assert {o.wire_bytes for o in rings} == {shard}
    by_loop: dict[str, int] = {}
    for op in rings:
        by_loop[op.loop] = by_loop.get(op.loop, 0) + op.runs.times
    assert by_loop == {"while.6": 9, "while.7": 9, "while.8": 9}
    (gather,) = [o for o in found if o.form != "windowed"]
    assert (gather.kind, gather.form) == ("all-gather", "async fusion")
    assert gather.wire_bytes == shard * 7
    assert sum(o.step_wire_bytes for o in found) == (27 + 7) * shard


def test_a100_to_the_byte() -> None:
    """c128 of 256x512x1024 on each device, along each of two mesh axes."""
    path = DATA / "a100_8_jaxfft_1024_2_4_NCCL_float64_FFT.hlo.gz"
    found = collective_ops(parse(content(path)))
    assert [(o.kind, o.groups.largest_group, o.wire_bytes) for o in found] == [
        ("all-to-all", 2, 256 * 512 * 1024 * 16 // 2),
        ("all-to-all", 4, 256 * 512 * 1024 * 16 * 3 // 4),
    ]
    assert found[0].groups.listed == ((0, 1), (2, 3), (4, 5), (6, 7))


SHARED = Path(__file__).parents[4] / "shared" / "data" / "a100_fft"


@pytest.mark.skipif(not SHARED.is_dir(), reason=f"{SHARED} is not here")
def test_all_measured_runs() -> None:
    """Every run transposes twice on a 2-D mesh, once on a 1-D one."""
    for path in sorted(SHARED.glob("*.hlo.gz")):
        first, second = map(int, path.name.split("_")[4:6])
        found = collective_ops(parse(content(path), source=path.name))
        sizes = sorted(o.groups.largest_group for o in found)
        assert sizes == sorted(n for n in (first, second) if n > 1), path.name
