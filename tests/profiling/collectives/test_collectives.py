"""Roles, axes and totals: on fixtures, on compiled models, against torch_xla's run."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType

import jax
import jax.numpy as jnp
import pytest

from profiling._collectives.collective import Collective
from profiling._collectives.collectives import collectives, names_of
from profiling._collectives.ops import collective_ops
from profiling._compiling.program import compile_program
from profiling._hlo.binary import read_binary
from profiling._hlo.module import Module
from profiling._read import read
from profiling._targets.target import Target
from profiling._timeline.timeline import Overlap, Timeline
from spmd import Mesh, Program
from spmd._program.stablehlo import as_artifact
from spmd._program.value import Value
from tests.profiling.closed_form import arrays, fsdp_ratios, sharded_bytes
from tests.profiling.compiling.test_compile import need
from tests.profiling.hlo_files import DATA, STEP, SUM, TEXTS, content, entry, parse
from tests.profiling.traced_steps import FSDP, REPLICA, TENSOR, program_of

EIGHT = Mesh({"fsdp": 8})
WIRE = {  # bytes that one device sends in a step, counted by hand
    STEP.name: 63488,
    "module_0000.SyncTensorsGraph.47.cpu_after_optimizations.txt": 14336 + 28672 + 7,
    "gpu_h100.txt.gz": 2 * 4 * 512 * 2048 * 2 * 7 // 8,
    "tpu_v5e_fused.txt.gz": 2 * 4 * 512 * 2048 * 2 * 7 // 8,
    "tpu_v5e_windowed.txt.gz": (27 + 7) * 2048 * 5632 * 2 // 8,
    "a100_8_jaxfft_1024_2_4_NCCL_float64_FFT.hlo.gz": 5 * 256 * 512 * 1024 * 16 // 4,
}


def totals(found: Iterable[Collective]) -> tuple[dict[str, int], ...]:
    """Wire bytes of a step by role, by axes and by kind."""
    by_role, by_axes, by_kind = Counter[str](), Counter[str](), Counter[str]()
    for collective in found:
        by_axes[", ".join(collective.axes)] += collective.step_wire_bytes
        by_kind[collective.kind] += collective.step_wire_bytes
        for moved in collective.moved:
            by_role[moved.role] += moved.wire_bytes * collective.num_runs
    return dict(by_role), dict(by_axes), dict(by_kind)


def check_totals(module: Module, found: tuple[Collective, ...]) -> int:
    """All ways to add up give the same, which is what the instructions say."""
    whole = sum(op.step_wire_bytes for op in collective_ops(module))
    assert {sum(total.values()) for total in totals(found)} <= {whole}
    assert len({c.name for c in found}) == len(found)
    for collective in found:
        moved = collective.moved
        assert sum(m.wire_bytes for m in moved) == collective.wire_bytes
        assert sum(m.operand_bytes for m in moved) == collective.operand_bytes
        assert [m.operand_bytes for m in moved] == sorted(
            (m.operand_bytes for m in moved), reverse=True
        )
    return whole


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_fixtures_to_the_byte(path: Path) -> None:
    module = parse(content(path))
    assert check_totals(module, collectives(module)) == WIRE.get(path.name, 0)


def shown(found: Iterable[Collective]) -> list[tuple[object, ...]]:
    return [
        (c.name, c.kind, c.axes, m.role, m.tensor, m.phase, m.wire_bytes)
        for c in found
        for m in c.moved
    ]


def test_jax_on_cpu() -> None:
    found = collectives(parse(content(STEP)), mesh=Mesh({"data": 4, "model": 2}))
    gather, reduced = 64 * 64 * 4 * 3 // 4, 64 * 64 * 4 * 2 * 3 // 4
    assert shown(found) == [
        ("all-gather", "all-gather", ("data",), "weight gather", "w1", "forward",
         gather),
        ("all-gather.1", "all-gather", ("data",), "activation", "", "forward",
         gather // 2),
        ("all-gather.2", "all-gather", ("data",), "activation", "", "backward",
         gather // 2),
        ("all-reduce", "all-reduce", ("model",), "activation", "", "forward", 2048),
        ("all-reduce.1", "reduce-scatter", ("data",), "activation", "", "backward",
         reduced // 2),
        ("all-reduce.2", "reduce-scatter", ("data",), "gradient reduction", "w1",
         "backward", reduced),
    ]  # fmt: skip
    assert found[0].source == "/home/user/j.py:7"


def test_torch_xla_on_cpu() -> None:
    """It says neither names nor scopes."""
    module = parse(content(TEXTS[2]))
    assert shown(collectives(module, mesh=EIGHT)) == [
        ("all-gather", "all-gather", ("fsdp",), "weight gather", "param.1", "", 14336),
        ("all-reduce.1", "reduce-scatter", ("fsdp",), "gradient reduction", "param.1",
         "backward", 28672),
        ("all-reduce", "all-reduce", ("fsdp",), "scalar", "", "", 7),
    ]  # fmt: skip


def test_combined_on_gpu() -> None:
    module = parse(content(DATA / "gpu_h100.txt.gz"))
    gather, scatter = collectives(module, mesh=EIGHT, target=Target.parse("h100:1x8"))
    weights = ["p[0][0]", "p[0][1]", "p[1][0]", "p[1][1]"]
    for collective, role in (
        (gather, "weight gather"),
        (scatter, "gradient reduction"),
    ):
        assert [m.tensor for m in collective.moved] == weights
        assert {m.role for m in collective.moved} == {role} == {collective.role}
        assert {m.wire_bytes for m in collective.moved} == {1835008}
        assert (collective.group_size, collective.num_groups) == (8, 1)
        assert (collective.link, collective.crosses_hosts) == ("nvlink", False)
        assert collective.axes == ("fsdp",)
    assert gather.tensor == "p[0][0] +3"
    assert (gather.phase, scatter.phase) == ("forward", "backward")


@pytest.mark.parametrize("name", ["tpu_v5e_fused.txt.gz", "tpu_v5e_windowed.txt.gz"])
def test_fused_and_windowed_on_tpu(name: str) -> None:
    module = parse(content(DATA / name))
    found = collectives(module, mesh=EIGHT, target=Target.parse("v5e:2x4"))
    forms = {(c.form, c.role) for c in found}
    if "windowed" in name:
        assert forms == {
            ("windowed", "weight gather"),
            ("windowed", "gradient reduction"),
            ("async fusion", "weight gather"),
        }
        assert {m.tensor for c in found for m in c.moved} == {"p[0][0]", "p[0][1]"}
    else:
        assert forms == {
            ("plain", "weight gather"),
            ("async fusion", "weight gather"),
            ("fused reduce-scatter", "gradient reduction"),
        }
    assert {c.axes for c in found} == {("fsdp",)}
    assert {c.link for c in found} == {"ici"}


X = "x = f32[8] parameter(0)\n"
ON = "to_apply=sum, channel_id=1, use_global_device_ids=true, replica_groups"


@pytest.mark.parametrize(
    ("groups", "target", "link", "crosses_hosts"),
    [
        ("[2,8]<=[16]", "h100:2x8", "nvlink", False),
        ("[8,2]<=[2,8]T(1,0)", "h100:2x8", "ib", True),
        ("[16,1]<=[16]", "h100:2x8", "", False),
        ("[1,16]<=[16]", "v5e:4x4", "ici", True),
        ("[4,4]<=[16]", "v5e:4x4", "ici", False),
    ],
)
def test_links(groups: str, target: str, link: str, crosses_hosts: bool) -> None:
    body = f"{X}ROOT y = f32[8] all-reduce(x), {ON}={groups}"
    module = entry(body, header=", num_partitions=16", before=SUM)
    (found,) = collectives(module, target=Target.parse(target))
    assert (found.link, found.crosses_hosts) == (link, crosses_hosts)
    assert found.axes == ()
    assert found.groups == groups


def test_times_come_from_the_timeline() -> None:
    body = f"{X}ROOT y = f32[8] all-reduce(x), {ON}=[1,8]<=[8]"
    module = entry(body, header=", num_partitions=8", before=SUM)
    overlaps = MappingProxyType({"y": Overlap(3.0, 2.0, 1.0, True)})
    line = Timeline((), 9.0, 7.0, 3.0, 2.0, 1.0, 0.0, 1.0, overlaps, 1.0)
    (found,) = collectives(module, timeline=line)
    assert (found.total_s, found.hidden_s, found.exposed_s) == (3.0, 2.0, 1.0)
    assert found.overlaps_matmul
    (found,) = collectives(module)
    assert (found.total_s, found.overlaps_matmul) == (None, False)


def test_repr() -> None:
    body = f"{X}y = f32[8] all-reduce(x), {ON}=[1,8]<=[8]\nROOT z = f32[8] sort(y)"
    module = entry(body, header=", num_partitions=8", before=SUM)
    (found,) = collectives(module, mesh=EIGHT)
    assert repr(found) == (
        "Collective(y: all-reduce over fsdp, input x, 56 bytes on the wire, 1x)"
    )


def test_two_that_start_in_one_fusion() -> None:
    before = SUM + (
        "both {\n  p = f32[8] parameter(0)\n"
        f"  a = f32[8] all-reduce(p), {ON}=[1,8]<=[8]\n"
        f"  b = f32[8] all-reduce(a), {ON}=[1,8]<=[8]\n"
        "  ROOT t = (f32[8], f32[8]) tuple(a, b)\n}\n"
    )
    body = f"{X}ROOT f = (f32[8], f32[8]) fusion(x), kind=kCustom, calls=both"
    module = entry(body, header=", num_partitions=8", before=before)
    assert names_of(collective_ops(module)) == ("f", "b")


def test_no_collectives() -> None:
    assert collectives(entry("ROOT x = f32[8] parameter(0)")) == ()


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"mesh": Mesh({"a": 4})}, r"is for 8 devices, Mesh\(a=4\) has 4"),
        ({"target": Target.parse("h100:2x8")}, "is for 8 devices, h100:2x8 has 16"),
    ],
)
def test_of_another_size(options: dict[str, object], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        collectives(parse(content(STEP)), **options)


# Compiled models


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("collectives")


def compiled(program: Program, target: str, cache: Path) -> Module:
    found = compile_program(program, need(target), cache_dir=cache)
    return read_binary(found.hlo, source=target)


def listed(
    program: Program, target: str, cache: Path
) -> tuple[Module, tuple[Collective, ...]]:
    module = compiled(program, target, cache)
    return module, collectives(module, program=program, target=Target.parse(target))


TWO_AXES = Mesh({"fsdp": 8, "tensor": 2})
FAST = [("decoder", FSDP, "cpu:8"), ("decoder", REPLICA, "h100:2x8")]
CASES = [
    case if case in FAST else pytest.param(*case, marks=pytest.mark.slow)
    for kind in ("decoder", "llama", "gpt2")
    for case in (
        (kind, FSDP, "cpu:8"),
        (kind, FSDP, "h100:1x8"),
        (kind, FSDP, "v5e:2x4"),
        (kind, REPLICA, "h100:2x8"),
        (kind, TENSOR, "cpu:8"),
        (kind, TENSOR, "h100:1x8"),
        (kind, TENSOR, "v5e:2x4"),
        (kind, TWO_AXES, "h100:2x8"),
    )
]


@pytest.mark.parametrize(("kind", "mesh", "target"), CASES)
def test_models(kind: str, mesh: Mesh, target: str, cache: Path) -> None:
    program = program_of(kind, mesh)
    module, found = listed(program, target, cache)
    whole = check_totals(module, found)
    roles = totals(found)[0]
    assert roles.get("unknown", 0) < 0.02 * whole
    assert all(c.link for c in found)
    # Whatever is told of an array, it is one of the program's.
    parameters = {v.name for v in program.inputs if v.role == "parameter"}
    for collective in found:
        for moved in collective.moved:
            if moved.role in ("weight gather", "gradient reduction"):
                assert moved.tensor in parameters
                assert moved.module
                assert re.search(r"\.py:\d+$", moved.source)
            assert moved.phase
    # Every parameter has its gradient reduced, but over fsdp alone that of a table is
    # exchanged: each device has columns of it.
    reduced = {m.tensor for m in arrays(found, "gradient reduction")}
    tables = {name for name in parameters if "embed" in name}
    if kind != "gpt2":
        assert reduced == parameters - (set() if "replica" in mesh.sizes else tables)
        # The partitioner halves heads, and pairs of rows, beyond the two axes.
        named = sum(c.step_wire_bytes for c in found if c.axes)
        assert named > 0.95 * whole
    if "tensor" not in mesh.axis_names and kind != "gpt2":
        exchanged = totals(found)[2].get("all-to-all", 0) + roles.get("input", 0)
        of_weights = roles["weight gather"] + roles["gradient reduction"]
        assert of_weights + exchanged > 0.99 * whole


def test_fully_sharded_is_the_closed_form(cache: Path) -> None:
    """Each weight gathered once or twice, each gradient reduced once: to the byte."""
    program = program_of("decoder", FSDP)
    _, found = listed(program, "h100:1x8", cache)
    sizes = sharded_bytes(program)
    gathers = Counter(m.tensor for m in arrays(found, "weight gather"))
    assert set(gathers) == set(sizes)
    assert set(gathers.values()) <= {1, 2}
    assert totals(found)[0]["weight gather"] == sum(
        sizes[name] * count * 7 // 8 for name, count in gathers.items()
    )
    phases = {(m.tensor, m.phase) for m in arrays(found, "weight gather")}
    assert len(phases) == sum(gathers.values())
    reductions = Counter(m.tensor for m in arrays(found, "gradient reduction"))
    assert reductions == dict.fromkeys(sizes, 1)
    ratios = fsdp_ratios(program, found)
    assert ratios["gradient reduction"] == 1.0
    kept = sum(sizes[name] for name, count in gathers.items() if count == 1)
    assert ratios["weight gather"] == 1 - kept / sum(sizes.values()) / 2


def test_a_cpu_reduces_with_twice_the_bytes(cache: Path) -> None:
    program = program_of("decoder", FSDP)
    _, found = listed(program, "cpu:8", cache)
    ratios = fsdp_ratios(program, found)
    assert ratios["gradient reduction"] == 2.0
    assert 0.5 <= ratios["weight gather"] <= 1.0


def test_a_guess_without_the_program_is_nearly_as_good(cache: Path) -> None:
    program = program_of("decoder", REPLICA)
    module, found = listed(program, "h100:2x8", cache)
    guessed = collectives(module, mesh=REPLICA)
    assert totals(guessed) == totals(found)
    assert [[m.tensor for m in c.moved] for c in guessed] == [
        [m.tensor for m in c.moved] for c in found
    ]
    assert {c.axes for c in found} == {("replica",), ("fsdp",), ("replica", "fsdp")}
    assert {c.link for c in found if "replica" in c.axes} == {"ib"}


LAYERS, DIM = 4, 64


def scanned() -> Program:
    """Momentum on layers that run in a loop, their weights stacked in one array."""

    def loss_of(ws, x):
        y, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ w), None), x, ws)
        return (y**2).mean()

    def step(ws, buffer, x):
        loss, gradient = jax.value_and_grad(loss_of)(ws, x)
        buffer = 0.9 * buffer + gradient
        return ws - 0.1 * buffer, buffer, loss

    stack, spec = (LAYERS, DIM, DIM), (None, "fsdp", None)
    names = {"ws": "parameter", "optimizer.momentum[ws]": "optimizer"}
    shapes = [jax.ShapeDtypeStruct(s, jnp.float32) for s in (stack, stack, (64, DIM))]
    return Program(
        as_artifact(jax.jit(step).lower(*shapes).as_text()),
        FSDP,
        (
            *(Value(n, r, stack, "float32", spec) for n, r in names.items()),
            Value("x", "input", (64, DIM), "float32", ("fsdp", None)),
        ),
        (
            *(
                Value(n, r, stack, "float32", updates=i)
                for i, (n, r) in enumerate(names.items())
            ),
            Value("loss", "output", (), "float32"),
        ),
    )


@pytest.mark.parametrize(
    "target",
    [
        "cpu:8",
        pytest.param("h100:1x8", marks=pytest.mark.slow),
        pytest.param("v5e:2x4", marks=pytest.mark.slow),
    ],
)
def test_layers_in_a_loop(target: str, cache: Path) -> None:
    """Slices of the stack are gathered, twice, and slices of its gradient reduced."""
    program = scanned()
    module, found = listed(program, target, cache)
    check_totals(module, found)
    moved = [(m.role, m.tensor, c.num_runs) for c in found for m in c.moved]
    assert sorted(moved) == [
        ("gradient reduction", "ws", LAYERS),
        ("scalar", "", 1),
        ("weight gather", "ws", LAYERS),
        ("weight gather", "ws", LAYERS),
    ]
    if target != "v5e:2x4":  # which multiplies, and gathers, in bfloat16
        assert fsdp_ratios(program, found)["weight gather"] == 1.0


RUN = """
    import torch, spmd
    from fsdpv2 import FSDPv2
    from tests.fsdpv2.decoder import Decoder

    spmd.init()
    mesh = spmd.Mesh({"fsdp": 8})
    model = FSDPv2(
        Decoder(128, seq=16), mesh, min_shard_elements=1, auto_wrap_policy={"Block"}
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(batch):
        loss = model(**batch)[0]
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    ids = torch.zeros(16, 16, dtype=torch.int64)
    batch = spmd.shard_batch({"input_ids": ids, "labels": ids}, mesh)
    compiled = spmd.compile_step(step, model=model, optimizer=optimizer)
    losses = [float(compiled(batch)) for _ in range(2)]
    assert losses[1] < losses[0]
"""
KINDS = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
LINE = re.compile(
    rf"= (?P<shape>\(.*?\)|\S+) (?P<kind>{KINDS})\([^)]*\)"
    r".*?replica_groups=(?P<groups>\S+\}\}|\[\d+,\d+\]<=\S+?),?(?: |$)"
)


def in_the_text(text: str) -> Counter[tuple[str, int, int]]:
    """Kind, devices and bytes of the result, of each collective line of a dump."""
    found = Counter[tuple[str, int, int]]()
    for line in text.splitlines():
        if not (match := LINE.search(line)):
            continue
        size = 0
        for dtype, dims in re.findall(r"([a-z]+\d+)\[([\d,]*)\]", match["shape"]):
            count = 1
            for dim in filter(None, dims.split(",")):
                count *= int(dim)
            size += count * int(dtype.lstrip("abcdefghijklmnopqrstuvwxyz")) // 8
        groups = match["groups"]
        if groups.startswith("["):
            devices = int(groups[1:].partition("]")[0].split(",")[1])
        else:
            devices = groups.partition("}")[0].count(",") + 1
        found[match["kind"], devices, size] += 1
    return found


@pytest.mark.slow  # a process that trains two steps
def test_what_torch_xla_itself_runs(run_script, tmp_path: Path, cache: Path) -> None:
    """Listed is what its dump says, and what the traced program is compiled to."""
    flags = (
        f"--xla_dump_to={tmp_path}/dump --xla_dump_hlo_as_text "
        f"--xla_dump_hlo_module_re=SyncTensorsGraph "
        f"--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
    )
    result = run_script(RUN, env={"XLA_FLAGS": flags}, timeout_s=300)
    assert result.rc == 0, result.stderr[-2000:]
    step = read(tmp_path / "dump").largest
    assert step.scheduled is not None
    found = collectives(step.scheduled, mesh=FSDP)
    said = in_the_text(step.files["scheduled"].read_text())
    kinds = {"all-reduce + slice": "all-reduce"}  # as it is written
    listed_ = Counter[tuple[str, int, int]]()
    for c in found:
        written = c.form == "all-reduce + slice"
        size = c.operand_bytes if written else c.output_bytes
        listed_[kinds.get(c.form, c.kind), c.group_size, size] += c.num_runs
    assert listed_ == said
    assert sum(said.values()) > 40
    check_totals(step.scheduled, found)
    program = program_of("decoder", FSDP)
    _, foreseen = listed(program, "cpu:8", cache)
    assert by_array(foreseen) == by_array(found)
    assert sum(c.step_wire_bytes for c in found) == sum(
        c.step_wire_bytes for c in foreseen
    )
    for role in ("weight gather", "gradient reduction"):
        assert totals(found)[0][role] == totals(foreseen)[0][role]


def by_array(found: Iterable[Collective]) -> Counter[tuple[object, ...]]:
    """Written kind, axes and bytes of each array: compilers join them differently."""
    return Counter(
        (
            "all-reduce" if c.form == "all-reduce + slice" else c.kind,
            c.axes,
            m.operand_bytes,
        )
        for c in found
        for m in c.moved
        for _ in range(c.num_runs)
    )
