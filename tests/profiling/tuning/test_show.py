import io

from rich.console import Console

from profiling._tuning.show import show_tuned
from profiling._tuning.tune import tune
from tests.profiling.compilers import need
from tests.profiling.one_weight import program
from tests.profiling.schedules import GIB
from tests.profiling.tuned import FakeCompiler, failure, made

ESTIMATOR = "xla_gpu_enable_analytical_latency_estimator"


def shown(step, columns=80, budget=12):
    need("h100:1x8")
    compiler = FakeCompiler(step)
    found = tune(program(8), "h100:1x8", budget=budget, compile=compiler, num_workers=1)
    console = Console(width=columns, record=True, file=io.StringIO())
    show_tuned(found, console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= columns
    return " ".join(text.split())


def test_the_table_and_the_choice():
    text = shown(lambda given: (10.0 - given.get(ESTIMATOR, 0)) / 1000)
    assert "step on h100:1x8" in text
    assert "times are estimates" in text
    assert "defaults 10.00 1000.00 75% 50 GiB" in text
    assert "* enable_analytical_latency_estimator=true" in text
    assert "Chosen step 9.00 ms instead of 10.00, 10.0% less (estimate)" in text
    assert f"{ESTIMATOR}=true" in text
    assert "another estimate of times for the scheduler" in text
    assert "without it: step 9.00 to 10.00 ms" in text


def test_nothing_helps():
    text = shown(lambda given: 10.0)
    assert "no flag: nothing that was tried beats the defaults" in text


def test_failures():
    def step(given):
        return failure("crash") if given else made(1.0, memory_bytes=90 * GIB)

    text = shown(step)
    assert "nothing that was tried fits in memory" in text
    assert "crash: h100:1x8: crash" in text
    assert "over by 10 GiB" in text


def test_defaults_that_do_not_fit():
    text = shown(lambda given: made(1.0, memory_bytes=GIB if given else 90 * GIB))
    assert "step 1000.00 ms; the defaults do not fit in memory" in text
