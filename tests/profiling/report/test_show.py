import dataclasses

import pytest

from profiling._compiling.compiled import CompileError
from profiling._compiling.outcome import Outcome
from profiling._report.show import show, show_error, show_head, show_side_by_side
from profiling._targets.target import Target
from tests.profiling.on_console import on_console
from tests.profiling.schedules import GIB, MEMORY, schedule

each_width = pytest.mark.parametrize("width", [80, 120])


@each_width
def test_all_of_it(width):
    said = on_console(show, schedule(), width=width)
    order = [
        "step on h100:1x8",
        "Memory of a device",
        "What moves",
        "The 3 largest",
        "Time of a step",
        "Exposed longest",
        "compiler's warning: [SPMD] Involuntary",
    ]
    places = [said.index(text) for text in order]
    assert places == sorted(places)
    assert "estimate" in said


@each_width
def test_without_target_mesh_and_timeline(width):
    bare = schedule(
        target=None,
        mesh=None,
        timeline=None,
        compile_s=None,
        flags={},
        source="/home/me/dumps/" + "deep/" * 30 + "step.txt",
        memory=dataclasses.replace(MEMORY, capacity_bytes=None, origin="estimate"),
        notes=("no target: give --target h100:2x8",),
    )
    said = on_console(show, bare, width=width)
    assert "deep/step.txt" in said
    assert "Time of a step" not in said
    assert said.endswith("note: no target: give --target h100:2x8\n")


def test_head():
    said = on_console(show_head, schedule())
    assert "8 GPUs (NVIDIA H100" in said
    assert "Mesh(fsdp=4, tensor=2[dcn])" in said
    assert "compiled by jaxlib 0.10.2 in 12.5 s" in said
    assert "flags: xla_a=true, xla_b=3" in said
    assert "estimate: a step takes 10 s, of which compute waits 5 s" in said
    assert said.endswith("MFU\n  20%\n")


def test_chips_and_devices_where_they_differ():
    said = on_console(show_head, schedule(target=Target.parse("tpu7x:2x2x2")))
    assert "8 chips (Google TPU7x (Ironwood)), 16 devices, 2 hosts" in said
    slices = on_console(show_head, schedule(target=Target.parse("v5e:4x4*2")))
    assert "2 slices" in slices


def test_defaults_are_only_counted():
    flags = {
        "xla_latency_hiding_scheduler_rerun": 1,
        "xla_tpu_enable_flash_attention": True,
    }
    said = on_console(show_head, schedule(flags=flags))
    assert (
        "flags: xla_tpu_enable_flash_attention=true, the 1 that torch_xla sets on TPUs"
        in said.replace("\n ", "")
    )


@each_width
def test_too_big(width):
    error = CompileError(
        "h100:1x8: out of memory",
        kind="memory",
        target=Target.parse("h100:1x8"),
        over_bytes=3 * GIB,
        holders={
            "inputs of role optimizer": 60 * GIB,
            "temporaries": 23 * GIB,
            "input w": 30 * GIB,
        },
    )
    said = on_console(show_error, error, width=width)
    assert "does not fit in memory by 3 GiB (3221225472 bytes)" in said
    assert "60 GiB  inputs of role optimizer" in said
    assert "23 GiB  temporaries\n  largest of these:\n    30 GiB  input w" in said
    assert "Shard more of it" in said


def test_too_big_in_the_compilers_words():
    error = CompileError(
        "x", kind="memory", target=Target.parse("cpu:8"), words="Ran out of memory"
    )
    said = on_console(show_error, error)
    assert "cpu:8: does not fit in memory\n" in said
    assert "the compiler's words: Ran out of memory" in said


def test_failed():
    error = CompileError(
        "cpu:8: refused [flag]", kind="flag", target=Target.parse("cpu:8")
    )
    assert on_console(show_error, error) == "cpu:8: refused [flag]\n"


def test_side_by_side():
    target = Target.parse("v5e:2x4")
    big = CompileError("x", kind="memory", target=target)
    dead = CompileError("x", kind="crash", target=target)
    outcomes = [
        Outcome("h100:1x8", schedule()),
        Outcome("v5e:2x4", None, big),
        Outcome("cpu:8", None, dead),
        Outcome("a100:1x8", schedule(timeline=None), big),
    ]
    said = on_console(show_side_by_side, outcomes)
    lines = [" ".join(line.split()) for line in said.splitlines()[2:]]
    assert lines == [
        "h100:1x8 51 GiB 80 GiB 700 B 10 s 5 s 20%",
        "v5e:2x4 - - - - - - does not fit",
        "cpu:8 - - - - - - failed",
        "a100:1x8 51 GiB 80 GiB 700 B - - - does not fit",
    ]
