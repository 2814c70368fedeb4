import pytest

from profiling._tuning.search import (
    Effect,
    descend,
    effects,
    setting_text,
    short_name,
)
from profiling._tuning.space import Knob
from profiling._tuning.trial import Judge
from tests.profiling.tuned import H100, FakeCompiler, failure, made

SIZE = Knob("xla_gpu_size_bytes", (1, 2, 4, None, 64_000_000, 128_000_000), "", True)
MODE = Knob("xla_gpu_mode", (None, "a", "b"), "")
KNOBS = (SIZE, MODE)
# A valley: the step is fastest at 2 bytes and mode b; 1 is worse again.
SECONDS = {1: 8.0, 2: 7.0, 4: 8.5, None: 10.0, 64_000_000: 12.0, 128_000_000: 6.0}


def valley(flags):
    mode = {"b": -1.0, "a": 0.5}.get(flags.get(MODE.name), 0.0)
    return SECONDS[flags.get(SIZE.name)] + mode + flags.get("useless", 0) * 0


def search(step=valley, budget=100, starts=None, knobs=KNOBS):
    compiler = FakeCompiler(step)
    judge = Judge(None, H100, budget=budget, compile=compiler, num_workers=2)
    best = descend(judge, knobs, starts or {"defaults": {}})
    return best, judge, compiler


def test_it_walks_down_to_the_next_valley():
    best, judge, _ = search()
    assert best.flags == {SIZE.name: 2, MODE.name: "b"}
    assert best.step_s == 6.0
    tried = {t.flags.get(SIZE.name) for t in judge.trials}
    assert 128_000_000 not in tried  # beyond a hill


def test_from_the_best_start():
    starts = {"defaults": {}, "mine": {SIZE.name: 128_000_000}}
    best, judge, _ = search(starts=starts)
    assert best.flags == {SIZE.name: 128_000_000, MODE.name: "b"}
    assert [t.label for t in judge.trials[:2]] == ["defaults", "mine"]


def test_a_value_of_a_start_that_is_no_rung():
    SECONDS_3 = {**SECONDS, 3: 9.0}
    best, _, _ = search(
        lambda flags: SECONDS_3[flags.get(SIZE.name)],
        starts={"defaults": {}, "mine": {SIZE.name: 3}},
    )
    assert best.flags == {SIZE.name: 2}


def test_what_makes_no_difference_is_left_out():
    starts = {"defaults": {}, "mine": {SIZE.name: 2, "useless": 1}}
    best, _, _ = search(starts=starts)
    assert best.flags == {SIZE.name: 2, MODE.name: "b"}


def test_what_does_not_fit_loses():
    def step(flags):
        big = flags.get(MODE.name) == "b"
        return made(1.0 if big else valley(flags), memory_bytes=10**11 if big else 1)

    best, _, _ = search(step)
    assert best.flags == {SIZE.name: 2}


def test_what_fails_loses():
    def step(flags):
        return failure("crash") if flags.get(SIZE.name) == 2 else valley(flags)

    best, _, _ = search(step)
    assert best.flags == {SIZE.name: 4, MODE.name: "b"}


def test_defaults_that_do_not_fit():
    def step(flags):
        over = 2 if not flags else flags.get(SIZE.name) is None
        return made(5.0, memory_bytes=10**11 * over)

    best, _, _ = search(step)
    assert best.fits


@pytest.mark.parametrize("budget", range(2, 25))
def test_any_budget(budget):
    best, judge, compiler = search(budget=budget)
    assert len(compiler.calls) == len(judge.trials) <= budget
    assert best.step_s <= 10.0
    found = effects(judge, best)
    assert len(judge.trials) <= budget
    assert [e.name for e in found] == list(best.flags)
    # Part of the budget is kept for taking each flag away.
    assert all(e.without is not None for e in found)


@pytest.mark.parametrize("budget", [5, 9, 40])
def test_the_same_in_every_run(budget):
    (_, first, _), (_, second, _) = search(budget=budget), search(budget=budget)
    assert [t.as_json() for t in first.trials] == [t.as_json() for t in second.trials]


def test_effects():
    best, judge, _ = search()
    size, mode = effects(judge, best)
    assert (size.name, size.value, size.without.step_s) == (SIZE.name, 2, 9.0)
    assert (mode.value, mode.without.step_s) == ("b", 7.0)
    assert size.without.flags == {MODE.name: "b"}


def test_an_effect_that_the_budget_does_not_reach():
    judge = Judge(None, H100, budget=2, compile=FakeCompiler(valley))
    both = {SIZE.name: 2, MODE.name: "b"}
    (best,) = judge.try_all([("both", both)])
    found = effects(judge, best)
    assert found[0].without is not None
    assert found[1] == Effect(MODE.name, "b", None)


def test_text():
    assert short_name("xla_tpu_enable_x") == "enable_x"
    assert short_name("other") == "other"
    assert setting_text("xla_jf_spmd_mib", 4) == "jf_spmd_mib=4"
    assert setting_text("xla_gpu_x", True) == "x=true"
    assert setting_text("xla_gpu_x_bytes", 2**21) == "x_bytes=2 MiB"
