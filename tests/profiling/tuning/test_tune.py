from dataclasses import replace

import pytest

import flags
from profiling._tuning import tune as module
from profiling._tuning.search import Effect
from profiling._tuning.trial import Trial
from profiling._tuning.tune import effect_text, setting, tune
from tests.profiling.compilers import need
from tests.profiling.one_weight import program
from tests.profiling.schedules import GIB
from tests.profiling.tuned import FakeCompiler, failure, made

GATHER = "xla_gpu_all_gather_combine_threshold_bytes"
SCATTER = "xla_gpu_reduce_scatter_combine_threshold_bytes"
ESTIMATOR = "xla_gpu_enable_analytical_latency_estimator"
MINE = flags.Preset("mine", "", "gpu", "", {}, "", (flags.PresetFlag(ESTIMATOR, True),))


def seconds(given):
    """Faster with the estimator, and with any threshold for reduce-scatters."""
    return 10.0 - given.get(ESTIMATOR, 0) - 2 * (SCATTER in given)


def found(step=seconds, **options):
    need("h100:1x8")
    compiler = FakeCompiler(step)
    options = {"compile": compiler, "num_workers": 1, **options}
    return tune(program(8), "h100:1x8", **options), compiler


def test_it_finds_and_explains():
    tuned, compiler = found()
    assert tuned.defaults.step_s == 10.0
    assert tuned.best.step_s == 7.0
    assert set(tuned.best.flags) == {SCATTER, ESTIMATOR}
    without = {e.name: e.without.step_s for e in tuned.effects}
    assert without == {SCATTER: 9.0, ESTIMATOR: 8.0}
    assert len(compiler.calls) == len(tuned.trials) <= tuned.budget
    assert [t.label for t in tuned.trials[:2]] == ["defaults", "gpu-overlap"]
    assert repr(tuned) == (
        f"Tuned('step' on h100:1x8: 2 flags, estimated step 10 s to 7 s, "
        f"{len(tuned.trials)} tried)"
    )


def test_the_same_in_every_run():
    assert found()[0].as_json() == found()[0].as_json()


def test_a_preset_that_can_be_read_back(tmp_path):
    tuned, _ = found()
    path = flags.write(tuned.preset("mine", date="2026-11-29"), tmp_path / "mine.yaml")
    entry = flags.preset(path)
    assert entry == tuned.preset("mine", date="2026-11-29")
    assert entry.values() == tuned.best.flags
    assert (entry.backend, entry.versions) == ("gpu", {"jaxlib": "0.10.2"})
    assert entry.figures.startswith("Estimated step 10000.00 ms at the defaults, 7000")
    effects = {f.name: f.effect for f in entry.flags}
    assert effects[ESTIMATOR].startswith("without it: step 7000.00 to 8000.00 ms")
    assert all(f.reason and f.source for f in entry.flags)


def test_nothing_helps(tmp_path):
    tuned, _ = found(lambda given: 10.0 + len(given))
    assert (tuned.best, tuned.effects) == (tuned.defaults, ())
    path = flags.write(tuned.preset("none", date=""), tmp_path / "none.yaml")
    assert flags.preset(path).values() == {}


def test_from_a_preset_of_ones_own():
    tuned, _ = found(starts=[MINE], budget=4)
    assert [t.label for t in tuned.trials[:3]] == ["defaults", "gpu-overlap", "mine"]
    strange = replace(MINE, flags=(flags.PresetFlag("xla_no_such", 1),))
    with pytest.raises(ValueError, match="has no compile option xla_no_such"):
        found(starts=[strange])


def test_our_preset_is_left_out_where_the_compiler_does_not_take_it(monkeypatch):
    monkeypatch.setitem(module._PRESETS, "gpu", "tpu-overlap")
    tuned, _ = found()
    assert tuned.trials[1].label != "tpu-overlap"
    assert tuned.notes[0].startswith("not started from tpu-overlap: tpu-overlap: cuda")


@pytest.mark.parametrize(
    ("target", "budget", "said"),
    [
        ("cpu:8", 9, "cpu:8: there is nothing to tune, as collectives of a CPU run"),
        ("h100:1x8", 1, "budget is 1; it must be 2 or more"),
        ("h100:2x8", 9, "is for 8 devices, h100:2x8 has 16"),
    ],
)
def test_bad_use(target, budget, said):
    with pytest.raises(ValueError, match=said):
        tune(program(8), target, budget=budget, compile=FakeCompiler(seconds))


def test_tpu():
    need("v5e:2x4")
    reduce = "xla_enable_async_all_reduce"
    compiler = FakeCompiler(lambda given: 10.0 - (reduce in given))
    tuned = tune(program(8), "v5e:2x4", compile=compiler, num_workers=1)
    assert tuned.best.flags == {reduce: True}
    assert tuned.trials[1].label == "tpu-overlap"


BEST = Trial("x", {"xla_a": 1}, step_s=1.0, exposed_s=0.5)


@pytest.mark.parametrize(
    ("without", "said"),
    [
        (None, "not tried without it; a larger budget would"),
        (Trial("y", {}, error="crash: h100"), "without it: crash: h100"),
        (
            Trial("y", {}, step_s=1.0, over_bytes=GIB),
            "without it a device has 1 GiB too little",
        ),
        (
            Trial("y", {}, step_s=1.5, exposed_s=None),
            "without it: step 1000.00 to 1500.00 ms, exposed 500.00 to -",
        ),
    ],
)
def test_effects_in_words(without, said):
    assert effect_text(Effect("xla_a", 1, without), BEST) == said


def test_an_effect_of_what_was_not_compiled():
    nothing = Trial("x", {}, error="crash")
    text = effect_text(Effect("xla_a", 1, BEST), nothing)
    assert text == "without it the step compiles"


def test_a_setting():
    assert setting(Effect("xla_a", True, None)) == "xla_a=true"
    assert setting(Effect("xla_a", 3, None)) == "xla_a=3"


def test_what_does_not_fit():
    tuned, _ = found(lambda given: made(1.0, memory_bytes=99 * GIB))
    assert not tuned.best.fits
    tuned, _ = found(lambda given: failure("crash"))
    assert (tuned.best.step_s, tuned.versions) == (None, {})
    assert repr(tuned).endswith("estimated step - to -, 9 tried)")


@pytest.mark.slow
def test_a_real_step_and_its_cache(tmp_path):
    need("h100:1x8")
    first = tune(program(8), "h100:1x8", budget=3)
    again = tune(program(8), "h100:1x8", budget=3)
    assert first.as_json() == again.as_json()
    assert first.best.fits
    assert all(trial.from_cache for trial in again.trials)
