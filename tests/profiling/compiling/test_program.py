import dataclasses
import os
import signal
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from profiling._compiling import process, setup
from profiling._compiling.cache import default_dir
from profiling._compiling.compiled import CompileError, Memory
from profiling._compiling.program import _Job, compile_program
from profiling._compiling.setup import devices_of, flags_for
from profiling._compiling.words import kind_of, last_words, missing_bytes
from profiling._compiling.words import warnings as warnings_in
from profiling._memory.temporaries import largest_temporaries
from profiling._targets.target import Target
from spmd._meshes.mesh import Mesh
from spmd._program.program import MLIR_MAGIC, Program
from spmd._program.stablehlo import as_artifact
from spmd._program.value import Value
from tests.profiling.compilers import need
from tests.profiling.one_weight import SMALL, program


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("compiled")


CASES = [("cpu:8", 8), ("h100:1x8", 8), ("h100:2x8", 16), ("v5e:2x4", 8)]
each_case = pytest.mark.parametrize(("target", "number"), CASES)


@each_case
def test_a_step_for_a_target(target, number, cache):
    compiled = compile_program(program(number), need(target), cache_dir=cache)
    assert compiled.target == Target.parse(target)
    assert compiled.fingerprint == program(number).fingerprint
    assert compiled.compile_s > 0
    assert b"all-reduce" in compiled.hlo or b"reduce-scatter" in compiled.hlo
    assert compiled.partitioned is not None
    assert b"SPMDPartitioner" not in compiled.partitioned
    assert b"all-gather" in compiled.partitioned
    assert compiled.buffers is not None
    memory = compiled.memory
    padded = 512 if target.startswith("v") else 4  # a TPU pads the scalar
    size = SMALL * SMALL * 4 // number
    batch = 8 * SMALL * 4
    if target.startswith("v"):  # tiles of 8 x 128 floats
        size, batch = size * 2, batch * 2
    assert memory.argument_bytes == size + batch
    assert memory.alias_bytes == size
    assert memory.output_bytes >= size + 4
    assert memory.output_bytes <= size + 2 * padded + 16
    assert memory.peak_bytes >= memory.argument_bytes
    assert compiled.over_bytes == 0
    assert compiled.versions["jaxlib"] == version("jaxlib")
    assert compiled.warnings == ()


@each_case
def test_the_second_time_it_comes_from_the_cache(target, number, cache):
    need(target)
    compile_program(program(number), target, cache_dir=cache)
    told = []
    again = compile_program(
        program(number), target, cache_dir=cache, progress=lambda *a: told.append(a)
    )
    assert again.from_cache
    assert "cached" in repr(again)
    assert told == []
    assert again.hlo.startswith(b"\n")


def test_other_source_lines_are_another_compile():
    made = [
        Program(MLIR_MAGIC + line, None, (), (), module_digest="the same")
        for line in (b"line 1", b"line 2")
    ]
    keys = {_Job.of(p, Target.parse("cpu:1"), {}).key() for p in made}
    assert len({p.fingerprint for p in made}) == 1
    assert len(keys) == 2


def test_tpus_get_the_flags_torch_xla_sets_where_a_chip_is():
    flags = flags_for(
        Target.parse("v5e:2x4"), {"xla_latency_hiding_scheduler_rerun": 2}
    )
    assert flags["xla_enable_async_all_gather"] is True
    assert flags["xla_tpu_enable_flash_attention"] is False
    assert flags["xla_latency_hiding_scheduler_rerun"] == 2
    assert "xla_enable_async_all_gather" not in flags_for(Target.parse("v6e"), {})
    assert flags_for(Target.parse("h100"), {}) == {}


def test_the_defaults_are_those_of_the_torch_xla_that_is_here(monkeypatch):
    torch_xla = pytest.importorskip("torch_xla")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "")
    monkeypatch.setattr(torch_xla.tpu, "version", lambda: 5)
    torch_xla._setup_libtpu_flags()
    theirs = dict(
        text.removeprefix("--").split("=")
        for text in os.environ["LIBTPU_INIT_ARGS"].split()
    )
    ours = flags_for(Target.parse("v5p"), {})
    assert {k: str(v).lower() for k, v in ours.items()} == theirs


def test_flags_change_what_is_compiled(cache):
    target = need("h100:1x8")
    flags = {"--xla_gpu_disable_async_collectives": "ALLCOLLECTIVES"}
    compiled = compile_program(program(8), target, flags=flags, cache_dir=cache)
    plain = compile_program(program(8), target, cache_dir=cache)
    assert compiled.hlo != plain.hlo
    assert dict(compiled.flags) == {
        "xla_gpu_disable_async_collectives": "ALLCOLLECTIVES"
    }


def test_variables_of_this_process_change_nothing(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_no_such_flag")
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--no_such_flag")
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "3")  # would hide what it warns of
    found = process.environment()
    assert found["TF_CPP_MIN_LOG_LEVEL"] == "1"
    assert not {"XLA_FLAGS", "LIBTPU_INIT_ARGS"} & found.keys()
    assert found["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"


@pytest.mark.parametrize("target", ["cpu:8", "h100:1x8", "v5e:2x4"])
def test_what_the_compiler_warns_of(target, cache, monkeypatch):
    """From (b, a) on dim 0 to b and a on two dims: not without gathering it all."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")  # as our examples have it

    def step(x):
        return jnp.sin(x.reshape(64, 4, 16)) * 2

    x = jax.ShapeDtypeStruct((256, 16), jnp.float32)
    resharding = Program(
        as_artifact(jax.jit(step).lower(x).as_text()),
        Mesh({"a": 2, "b": 4}),
        (Value("x", "input", (256, 16), "float32", (("b", "a"), None)),),
        (Value("y", "output", (64, 4, 16), "float32", (None, "b", "a")),),
    )
    compiled = compile_program(resharding, need(target), cache_dir=cache)
    (warning,) = compiled.warnings
    assert warning.startswith("[SPMD] Involuntary full rematerialization.")
    assert compile_program(resharding, target, cache_dir=cache).warnings == (warning,)


@pytest.mark.parametrize(
    ("flags", "error", "match"),
    [
        (
            {"xla_dump_to": "/tmp"},
            ValueError,
            "compile uses the xla_dump_ flags itself",
        ),
        ({"xla_a": 1, "--xla_a": 2}, ValueError, "flag --xla_a is given twice"),
        ({"xla_a": None}, TypeError, "flag xla_a=None: a bool, number or text"),
    ],
)
def test_flags_that_are_refused_here(flags, error, match):
    with pytest.raises(error, match=match):
        compile_program(program(8), "cpu:8", flags=flags)


@pytest.mark.parametrize("target", ["cpu:8", "h100:1x8", "v5e:2x4"])
def test_an_unknown_flag(target, cache):
    flags = {"xla_no_such_flag": True}
    with pytest.raises(CompileError, match="refused a flag") as error:
        compile_program(program(8), need(target), flags=flags, cache_dir=cache)
    assert error.value.kind == "flag"
    assert "No such compile option: 'xla_no_such_flag'" in error.value.words


def test_a_value_that_a_flag_does_not_take(cache):
    flags = {"xla_cpu_enable_fast_math": "maybe"}
    with pytest.raises(CompileError, match="'maybe' is not a valid bool") as error:
        compile_program(program(8), "cpu:8", flags=flags, cache_dir=cache)
    assert error.value.kind == "flag"


def test_too_big_for_a_gpu(cache):
    with pytest.raises(CompileError, match=r"out of memory by .* GiB") as caught:
        compile_program(program(8, 200_000), need("h100:1x8"), cache_dir=cache)
    error = caught.value
    assert error.kind == "memory"
    assert error.compiled is not None
    assert error.over_bytes == error.compiled.over_bytes > 0
    whole = 200_000**2 * 4
    assert error.holders["inputs of role parameter"] == whole // 8
    assert error.holders["temporaries"] > whole
    temporaries = [v for k, v in error.holders.items() if k.startswith("temporary ")]
    assert max(temporaries) >= whole
    assert "input w" in str(error)
    with pytest.raises(CompileError) as again:  # the verdict comes from the cache too
        compile_program(program(8, 200_000), "h100:1x8", cache_dir=cache)
    assert again.value.compiled is not None
    assert again.value.compiled.from_cache


def test_too_big_for_a_tpu(cache):
    with pytest.raises(CompileError, match=r"out of memory by .* GiB") as caught:
        compile_program(program(8, 100_000), need("v5e:2x4"), cache_dir=cache)
    error = caught.value
    assert error.kind == "memory"
    assert error.over_bytes is not None
    assert error.over_bytes > 1 << 30
    assert error.holders["temporaries"] > 16 << 30
    assert "RESOURCE_EXHAUSTED" in error.words


def test_another_number_of_devices(cache):
    with pytest.raises(ValueError, match=r"is for 8 devices .* has 16; trace it for"):
        compile_program(program(8), "h100:2x8", cache_dir=cache)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL, as the system does"),
        ("import os; os.abort()", "killed by SIGABRT"),
        ("print('dying'); raise SystemExit(7)", "exit status 7.*\ndying"),
    ],
)
def test_a_compiler_that_dies(code, words, cache, monkeypatch):
    def start(folder, output):
        command = [sys.executable, "-c", code]
        return subprocess.Popen(
            command, stdout=output, stderr=output, start_new_session=True
        )

    monkeypatch.setattr(process, "start", start)
    flags = {"xla_cpu_enable_fast_math": True}
    with pytest.raises(CompileError, match=words) as error:
        compile_program(program(8), "cpu:8", flags=flags, cache_dir=cache)
    assert error.value.kind == "crash"


def test_a_compiler_killed_from_outside(cache, monkeypatch):
    begun = []
    start = process.start
    monkeypatch.setattr(
        process, "start", lambda *a: begun.append(start(*a)) or begun[-1]
    )

    def kill(target: str, elapsed_s: float) -> None:
        os.kill(begun[-1].pid, signal.SIGKILL)

    flags = {"xla_cpu_enable_fast_math": True}
    with pytest.raises(CompileError, match="SIGKILL"):
        compile_program(
            program(8), "cpu:8", flags=flags, cache_dir=cache, progress=kill
        )


def test_a_compiler_that_takes_too_long(cache, monkeypatch):
    begun = []
    start = process.start
    monkeypatch.setattr(
        process, "start", lambda *a: begun.append(start(*a)) or begun[-1]
    )
    flags = {"xla_cpu_enable_fast_math": True}
    with pytest.raises(CompileError, match=r"stopped after 0.2 s") as error:
        compile_program(
            program(8), "cpu:8", flags=flags, cache_dir=cache, timeout_s=0.2
        )
    assert error.value.kind == "timeout"
    assert begun[0].poll() == -signal.SIGKILL


@pytest.mark.parametrize(
    ("target", "package", "command"),
    [
        ("h100:1x8", "jax-cuda12-plugin", "pip install 'xla-spmd[gpu]'"),
        ("v5e:2x4", "libtpu", "pip install 'xla-spmd[tpu]'"),
    ],
)
def test_a_missing_extra(target, package, command, monkeypatch):
    def without(name: str) -> str:
        if name == package:
            raise PackageNotFoundError(name)
        return "1"

    monkeypatch.setattr(setup, "version", without)
    monkeypatch.delenv("TPU_LIBRARY_PATH", raising=False)
    with pytest.raises(CompileError) as error:
        compile_program(program(8), target)
    assert error.value.kind == "missing extra"
    assert package in str(error.value)
    assert command in str(error.value)


def test_progress(cache):
    told = []
    flags = {"xla_cpu_enable_fast_min_max": True}
    compile_program(
        program(8),
        "cpu:8",
        flags=flags,
        cache_dir=cache,
        progress=lambda *a: told.append(a),
    )
    assert {name for name, _ in told} == {"cpu:8"}
    assert [s for _, s in told] == sorted(s for _, s in told)
    assert len(told) >= 2


# The cache


def test_the_cache_belongs_to_the_user(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_dir() == tmp_path / "xla-spmd"
    monkeypatch.setenv("XDG_CACHE_HOME", "not/absolute")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert default_dir() == tmp_path / ".cache" / "xla-spmd"


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "other"])
def test_damaged_entries_are_compiled_again(damage, tmp_path):
    first = compile_program(program(8), "cpu:8", cache_dir=tmp_path)
    (path,) = tmp_path.iterdir()
    data = bytearray(path.read_bytes())
    if damage == "flipped":
        data[len(data) // 3] ^= 0xFF
    content = {"cut": data[: len(data) // 2], "empty": b"", "other": b"PK\x05\x06"}
    path.write_bytes(content.get(damage, data))
    again = compile_program(program(8), "cpu:8", cache_dir=tmp_path)
    assert not again.from_cache
    assert again.memory == first.memory
    assert compile_program(program(8), "cpu:8", cache_dir=tmp_path).from_cache
    assert [p.suffix for p in tmp_path.iterdir()] == [".compiled"]


def test_a_cache_that_cannot_be_written(tmp_path):
    file = tmp_path / "file"
    file.touch()
    with pytest.warns(UserWarning, match="what was compiled is not kept"):
        compiled = compile_program(program(8), "cpu:8", cache_dir=file / "below")
    assert not compiled.from_cache


@pytest.mark.slow  # seconds for each
@pytest.mark.parametrize(
    ("target", "number"),
    [
        ("a100:2x8", 16),
        ("h200:1x8", 8),
        ("b200:1x8", 8),
        ("gb200:36x4", 144),
        ("v4:2x2x1", 4),
        ("v5p:4x4x8_twisted", 128),
        ("v6e:16x16", 256),
        ("tpu7x:2x2x1", 8),
        ("v5e:4x4*2", 32),
        ("v6e:1x1", 1),
        ("cpu:512", 512),
    ],
)
def test_every_kind_of_target(target, number, cache):
    compiled = compile_program(program(number), need(target), cache_dir=cache)
    assert compiled.target.num_devices == number


# What compilers say


@pytest.mark.parametrize(
    ("text", "devices"),
    [
        ("gb200:36x4", {"topology": "2x18x4"}),
        ("h100:2x8", {"topology": "2x1x8"}),
        ("h100:2x4", {"topology": "2x1x4"}),
        ("cpu:8", {"number": 8}),
        ("v4", {"name": "v4:2x2x1", "options": {"chip_config_name": "megacore"}}),
        ("v5e:16x16", {"options": {"wrap": [True, True, False]}}),
        ("v6e:1x1", {"options": {"chips_per_host_bounds": [1, 1, 1]}}),
    ],
)
def test_devices_of(text, devices):
    found = devices_of(Target.parse(text))
    assert devices.items() <= found.items()


def test_warnings_without_what_is_always_said():
    log = "\n".join(
        [
            "W1129 15:37:00.622650    7601 sharding_propagation.cc:3132] GSPMD "
            "sharding propagation is going to be deprecated and not supported",
            "W1129 15:37:00.622650    7601 spmd_partitioner.cc:619] [SPMD] Involuntary "
            "full rematerialization. The compiler cannot go",
            "I1129 15:37:00.622650    7601 somewhere.cc:1] nothing",
            "W1129 15:37:01.622650    7601 spmd_partitioner.cc:619] [SPMD] Involuntary "
            "full rematerialization. The compiler cannot go",
        ]
    )
    assert warnings_in(log) == (
        "[SPMD] Involuntary full rematerialization. The compiler cannot go",
    )


def test_last_words_are_the_fatal_ones():
    log = "noise\nF1129 15:39:56.656567    8642 a.cc:201] Check failed: x\nmore\n"
    assert last_words(log) == "Check failed: x"
    assert last_words("a\n\nb\n") == "a\nb"


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        (
            "ABORTED: Internal error when accessing libtpu multi-process lockfile",
            "lock",
        ),
        ("No such compile option: 'x'", "flag"),
        ("ERROR: Unknown command line flag 'x'", "flag"),
        ("RESOURCE_EXHAUSTED: Ran out of memory", "memory"),
        ("something else", None),
    ],
)
def test_kind_of(words, kind):
    assert kind_of(words) == kind


@pytest.mark.parametrize(
    ("words", "gibibytes"),
    [
        ("temporaries (19.00G) exceeds available HBM (15.75G).", 3.25),
        ("Used 20.50G of 15.75G hbm. Exceeded hbm capacity by 4.75G.", 4.75),
        ("Used 17.00G of 15.75G hbm.", 1.25),
        ("nothing of it", None),
    ],
)
def test_missing_bytes(words, gibibytes):
    found = missing_bytes(words)
    assert found == (None if gibibytes is None else gibibytes * 2**30)


def test_memory_adds_up():
    memory = Memory(100, 50, 40, 30, 5, 120)
    assert memory.total_bytes == 145


def test_a_target_of_unknown_memory_is_not_judged(cache):
    compiled = compile_program(program(8), "cpu:8", cache_dir=cache)
    assert compiled.over_bytes == 0
    small = dataclasses.replace(compiled.target.chip, hbm_bytes=1000)
    target = dataclasses.replace(compiled.target, chip=small)
    judged = dataclasses.replace(compiled, target=target)
    assert judged.over_bytes == compiled.memory.total_bytes - 125 * 8


def test_largest_temporaries(cache):
    compiled = compile_program(program(8), "cpu:8", cache_dir=cache)
    assert compiled.buffers is not None
    found = largest_temporaries(compiled.buffers, 3)
    assert len(found) == 3
    sizes = list(found.values())
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == SMALL * SMALL * 4  # the gathered weight
    for name in found:
        assert name.encode() in compiled.buffers
    assert largest_temporaries(b"", 3) == {}
