import subprocess
import sys
from dataclasses import replace

import pytest

import flags
from flags._preset import Preset, PresetFlag, preset, presets, read, write
from flags._workload import Workload

STEP = Workload(16, 2, layer_bytes=103_000_000, gradient_bytes=500_000_000)
COPIES = Workload(8, layer_bytes=1946_000_000, num_copy_hosts=2)


def saved(tmp_path, text):
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_those_there_are():
    assert set(presets()) == {
        "cpu-debug",
        "deterministic",
        "gpu-overlap",
        "hlo-dump",
        "tpu-overlap",
    }


@pytest.mark.parametrize("entry", presets().values(), ids=presets())
def test_each_flag_has_a_reason_a_source_and_an_effect(entry):
    assert entry.about
    assert entry.date
    assert entry.versions
    assert entry.figures
    for flag in entry.flags:
        assert all([flag.reason, flag.source, flag.effect]), flag.name


@pytest.mark.parametrize("entry", presets().values(), ids=presets())
def test_each_flag_is_accepted_and_no_default(entry, needs):
    backend = entry.backend or "cpu"
    needs({"cpu": "jaxlib", "gpu": "cuda", "tpu": "libtpu"}[backend])
    options = flags.options(entry, workload=STEP)
    line = " ".join(flags._text.written(k, v) for k, v in options.items())
    found = flags.lint(line, where="options", backend=backend)
    assert [f.message for f in found.findings if f.kind != "deprecated"] == []
    assert flags.plan(entry, workload=STEP, environ={}).messages == ()


def test_values():
    entry = preset("gpu-overlap")
    assert entry.values(STEP) == {
        "xla_gpu_reduce_scatter_combine_threshold_bytes": 4 << 20,
        "xla_gpu_all_gather_combine_threshold_bytes": 64 << 20,
    }
    one_host = replace(STEP, num_shards=8, num_hosts=1)
    assert entry.values(one_host) == {
        "xla_gpu_reduce_scatter_combine_threshold_bytes": 8 << 20
    }
    assert entry.values(COPIES)["xla_gpu_all_reduce_combine_threshold_bytes"] == (
        256 << 20
    )
    assert entry.values(Workload(1)) == {}
    assert preset("deterministic").values() == {"xla_gpu_deterministic_ops": True}


def test_a_workload_is_needed():
    assert preset("gpu-overlap").needs_workload
    assert not preset("cpu-debug").needs_workload
    with pytest.raises(
        ValueError, match="preset 'gpu-overlap' computes xla_gpu_reduce"
    ):
        preset("gpu-overlap").values()
    with pytest.raises(ValueError, match=r"'gpu-overlap', xla_gpu_.*: needs Workload"):
        preset("gpu-overlap").values(Workload(8))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("gpu-overlp", "unknown preset 'gpu-overlp'; did you mean 'gpu-overlap'[?]"),
        ("zzz", "there are cpu-debug, .*, or give a [.]yaml file"),
    ],
)
def test_unknown(name, said):
    with pytest.raises(ValueError, match=said):
        preset(name)


def test_a_file_of_values(tmp_path):
    path = saved(tmp_path, "flags: {xla_a: 1, xla_b: true, xla_c: text}")
    assert preset(str(path)).values() == {"xla_a": 1, "xla_b": True, "xla_c": "text"}
    assert preset(path).name == "mine"


def test_a_file_that_is_not_there():
    with pytest.raises(OSError, match=r"none\.yaml"):
        preset("none.yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "no YAML"),
        ("[]", "holds no preset; write e.g. 'flags: {xla_x: 1}'"),
        ("flags: 3", "holds no preset"),
        ("flgs: {}", "holds no preset"),
        ("{flags: {}, backend: rocm}", "backend: 'rocm'; it is one of cpu, gpu, tpu"),
        ("{flags: {}, autor: me}", "unknown key 'autor'; allowed are about, backend"),
        ("flags: {xla_a: {valu: 1}}", "xla_a: unknown key 'valu'; allowed are value"),
        ("flags: {xla_a: {}}", "xla_a: give either a value or a formula"),
        (
            "flags: {xla_a: {value: 1, formula: all_gather_threshold}}",
            "xla_a: give either a value or a formula",
        ),
        ("flags: {xla_a: [1]}", r"xla_a: \[1\] is no value"),
        ("flags: {xla_a: {formula: x}}", "xla_a, formula: unknown 'x'; there are all_"),
        (
            "flags: {xla_a: {value: 1, when: x}}",
            "xla_a, when: unknown 'x'; there are se",
        ),
    ],
)
def test_a_file_that_is_none(tmp_path, text, said):
    with pytest.raises(ValueError, match=said):
        read(saved(tmp_path, text))


@pytest.mark.parametrize("entry", presets().values(), ids=presets())
def test_written_and_read(tmp_path, entry):
    assert read(write(entry, tmp_path / f"{entry.name}.yaml")) == entry


def test_zero_and_false_are_values(tmp_path):
    made = (PresetFlag("xla_a", 0), PresetFlag("xla_b", False), PresetFlag("xla_c", ""))
    entry = Preset("mine", "", None, "", {}, "", made)
    assert read(write(entry, tmp_path / "mine.yaml")) == entry


def test_repr():
    assert repr(preset("cpu-debug")).startswith("Preset('cpu-debug': xla_backend_opt")


@pytest.mark.parametrize("dropped", [None, "xla_dump_hlo_pass_re"])
def test_hlo_dump_gives_what_inspect_reads(tmp_path, dropped):
    from profiling import read as read_dump

    values = {"xla_dump_to": str(tmp_path / "my dump")}
    plan = flags.plan("hlo-dump", change=values, environ={}, backend="cpu")
    line = flags._text.without(
        plan.variables["XLA_FLAGS"], frozenset({dropped}), "XLA_FLAGS"
    )
    source = (
        "import jax, numpy as np; from jax.sharding import *; "
        "m = Mesh(np.array(jax.devices()), 'x'); "
        "s = NamedSharding(m, PartitionSpec('x')); "
        "print(jax.jit(lambda x: x.sum())(jax.device_put(np.ones(8), s)))"
    )
    environment = {
        "XLA_FLAGS": line,
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": "2",
        "PATH": "",
    }
    subprocess.run([sys.executable, "-c", source], check=True, env=environment)
    program = read_dump(tmp_path / "my dump").largest
    assert program.scheduled is not None
    assert (program.partitioned is None) == (dropped is not None)


def without_each(name, step=None):
    """A preset's options, and those without one of its flags, for each."""
    whole = dict(flags.options(name, workload=step))
    yield None, whole
    for dropped in whole:
        yield dropped, {k: v for k, v in whole.items() if k != dropped}


def order(schedule):
    """What a device runs, in order, without names."""
    return [i.opcode for c in schedule.module.computations for i in c.instructions]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("gpu-overlap", "h100:2x8"),
        ("gpu-overlap", "h100:1x8"),
        ("tpu-overlap", "v5e:4x4"),
    ],
)
def test_every_flag_earns_its_place(name, target):
    from tests.flags.decoders import figures, judged

    found = {
        dropped: judged(target, options)
        for dropped, options in without_each(name, figures(target))
    }
    whole = found.pop(None)
    default = judged(target, {})
    assert whole.timeline.step_s < default.timeline.step_s
    for dropped, schedule in found.items():
        assert order(schedule) != order(whole), dropped
        assert schedule.timeline.step_s > whole.timeline.step_s, dropped


@pytest.mark.slow
def test_all_reduces_between_hosts_earn_their_place():
    import profiling
    from profiling._tuning.workload import workload
    from tests.flags.decoders import copied_program
    from tests.profiling.compilers import need

    target = profiling.Target.parse(need("h100:2x8"))
    step = copied_program()
    found = {
        dropped: profiling.compile(step, target, flags=options)
        for dropped, options in without_each("gpu-overlap", workload(step, target))
    }
    whole = found[None]
    dropped = found["xla_gpu_all_reduce_combine_threshold_bytes"]
    assert order(dropped) != order(whole)
    assert dropped.timeline.step_s > 1.01 * whole.timeline.step_s


@pytest.mark.slow
def test_copied_thresholds_are_harmful():
    from tests.flags.decoders import judged

    names = [
        f"xla_gpu_{kind}_combine_threshold_bytes"
        for kind in ("all_gather", "reduce_scatter", "all_reduce")
    ]
    default = judged("h100:2x8", {})
    copied = judged("h100:2x8", dict.fromkeys(names, 1 << 30))
    assert copied.timeline.step_s > 1.05 * default.timeline.step_s


@pytest.mark.slow
def test_deterministic_sorts_before_it_scatters():
    import profiling
    from tests.profiling.compilers import need
    from tests.profiling.programs import decoder_program

    step, target = decoder_program(16), need("h100:2x8")
    options = flags.options("deterministic")
    sorts = [
        order(profiling.compile(step, target, flags=given)).count("sort")
        for given in ({}, options)
    ]
    assert sorts == [0, 1]
