from pathlib import Path

import pytest

from profiling import CompileError, Schedule, compile, compile_many
from profiling._targets.target import Target
from tests.profiling.compilers import need
from tests.profiling.one_weight import SMALL, program


@pytest.fixture(scope="module")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("compiled")


def test_a_schedule(cache):
    schedule = compile(program(8), "cpu:8", cache_dir=cache)
    assert isinstance(schedule, Schedule)
    assert schedule.target == Target.parse("cpu:8")
    assert schedule.mesh == program(8).mesh
    assert schedule.name == "step"
    assert schedule.compiled is not None
    assert schedule.memory.origin == "compiled"
    assert schedule.memory.argument_bytes == schedule.compiled.memory.argument_bytes
    assert schedule.compile_s == schedule.compiled.compile_s
    assert schedule.versions == schedule.compiled.versions
    assert schedule.step_s is not None
    assert schedule.notes == ()
    weight = SMALL * SMALL * 4
    gathers = [c for c in schedule.collectives if c.kind == "all-gather"]
    assert {c.wire_bytes for c in gathers} == {weight * 7 // 8}
    assert {c.axes for c in schedule.collectives} == {("fsdp",)}


def test_flags_and_progress(cache):
    told = []
    flags = {"--xla_cpu_enable_fast_math": True}
    schedule = compile(
        program(8),
        "cpu:8",
        flags=flags,
        cache_dir=cache,
        progress=lambda *a: told.append(a),
    )
    assert dict(schedule.flags) == {"xla_cpu_enable_fast_math": True}
    assert {name for name, _ in told} == {"cpu:8"}


def test_errors_go_through(cache):
    flags = {"xla_no_such_flag": True}
    with pytest.raises(CompileError, match="refused a flag"):
        compile(program(8), "cpu:8", flags=flags, cache_dir=cache)
    with pytest.raises(ValueError, match=r"is for 8 devices .* has 16; trace it for"):
        compile(program(8), "h100:2x8", cache_dir=cache)


def test_several_targets_side_by_side(cache):
    wanted = [need("h100:1x8"), "cpu:8", need("a100:1x8")]
    found = compile_many(program(8), wanted, cache_dir=cache, num_workers=2)
    assert list(found) == wanted
    assert all(isinstance(result, Schedule) for result in found.values())


def test_an_error_is_one_of_several_results(cache):
    flags = {"xla_no_such_flag": True}
    found = compile_many(program(8), ["cpu:8"], flags=flags, cache_dir=cache)
    error = found["cpu:8"]
    assert isinstance(error, CompileError)
    assert error.kind == "flag"
    with pytest.raises(ValueError, match="is for 8 devices"):
        compile_many(program(8), ["cpu:4"], cache_dir=cache)
