import io
import json
import sys

import pytest
import torch
import torch_xla
import torch_xla.debug.metrics as met

import profiling
import spmd
from profiling import StepMetrics
from profiling._compiling.compiled import Compiled, Memory
from profiling._metrics import clock as clock_module
from profiling._metrics import step_metrics
from profiling._metrics import values as values_module
from profiling._metrics.devices import DeviceMemory, Devices
from profiling._targets.target import Target
from spmd._jax.device_array import DeviceArray
from tests.profiling.captured import NUM_ROWS, batches, compiled_step

STEPS = 24
WINDOWS = [[1], list(range(2, 11)), list(range(11, 21)), [21, 22, 23, 24]]


class Late:
    """A value on a device: counts how often it is read."""

    reads = 0

    def __init__(self, number: float) -> None:
        self.number = number


@pytest.fixture
def late(monkeypatch):
    """Values that `StepMetrics` takes for those of a device; counts its reads."""

    def read(values):
        Late.reads += any(isinstance(value, Late) for value in values)
        return [getattr(value, "number", value) for value in values]

    monkeypatch.setattr(Late, "reads", 0)
    monkeypatch.setattr(step_metrics, "keep", lambda name, value: value)
    monkeypatch.setattr(step_metrics, "read", read)
    return Late


def seen(metrics: StepMetrics, losses, **given) -> list[list[int]]:
    """Numbers of the steps that became known at each step, and at the end."""
    found = [metrics.step(loss, **given) for loss in losses]
    found.append(metrics.close())
    return [[record.step for record in records] for records in found if records]


def transfers() -> int:
    """How often torch_xla has copied something to the host."""
    found = met.metric_data("TransferFromDeviceTime")
    return found[0] if found else 0


def programs() -> int:
    return met.counter_value("UncachedCompile") or 0


def test_the_host_waits_once_a_window(late):
    metrics = StepMetrics(console=False)
    reads = []
    for number in range(1, STEPS + 1):
        metrics.step(late(number), late(-number))
        reads.append(late.reads)
    assert [n for n in range(1, STEPS) if reads[n] > reads[n - 1]] == [9, 19]
    assert reads[0] == 1 and reads[-1] == 3
    metrics.close()
    assert late.reads == 4


@pytest.mark.parametrize(
    ("options", "windows"),
    [
        ({}, WINDOWS),
        ({"log_every": 100}, [[1], list(range(2, 25))]),
        ({"log_every": 12}, [[1], list(range(2, 13)), list(range(13, 25))]),
        (
            {"log_every": 20, "first_step": 31},
            [[31], [*range(32, 41)], [*range(41, 55)]],
        ),
    ],
    ids=["ten", "hundred", "twelve", "resumed"],
)
def test_windows_end_at_multiples_and_after_the_first_step(options, windows):
    metrics = StepMetrics(console=False, **options)
    assert seen(metrics, [1.0] * STEPS) == windows


def test_each_step_has_its_own_numbers():
    metrics = StepMetrics(console=False, tokens=100, log_every=3)
    found = []
    for step in range(1, 4):
        found += metrics.step(
            step / 2, grad_norm=step, lr=step * 0.1, tokens=100 * step
        )
    assert [(r.loss, r.grad_norm, r.scalars, r.tokens) for r in found] == [
        (0.5, 1.0, {"lr": 0.1}, 100),
        (1.0, 2.0, {"lr": 0.2}, 200),
        (1.5, 3.0, {"lr": pytest.approx(0.3)}, 300),
    ]
    assert [record.num_steps for record in found] == [1, 2, 2]
    assert found[1].tokens_per_s == pytest.approx(500 / (2 * found[1].step_s))
    assert metrics.step(1.0) == ()
    assert repr(metrics) == "StepMetrics(step 4, 1 not read yet, every 3)"


class Clock:
    """Time that stands still unless a test moves it."""

    now = 10.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (clock_module, step_metrics):
        monkeypatch.setattr(module, "perf_counter", clock)
    return clock


def test_a_steps_time_is_the_mean_of_its_window(clock):
    metrics = StepMetrics(console=False, tokens=600, log_every=4)
    found = []
    for seconds in (9.0, 1.0, 2.0, 3.0):
        clock.now += seconds
        found += metrics.step(1.0)
    assert [record.step_s for record in found] == [9.0, 2.0, 2.0, 2.0]
    assert [record.host_s for record in found] == [9.0, 1.0, 2.0, 3.0]
    assert found[-1].tokens_per_s == 300.0


def test_a_window_that_ends_a_call_later_has_that_calls_time(clock, monkeypatch):
    """As of a lazy step, which that call finds executed; it is counted once."""
    answers = iter([True, False, False])
    monkeypatch.setattr(step_metrics, "are_recorded", lambda v: [next(answers)])
    metrics = StepMetrics(console=False, log_every=2)
    clock.now += 1.0
    assert metrics.step(1.0) == ()
    clock.now += 2.0
    first, second = metrics.step(1.0)
    assert (first.host_s, first.step_s) == (3.0, 3.0)
    assert (second.host_s, second.step_s) == (0.0, 0.0)


def test_a_pause_waits_first_and_is_left_out(clock, late):
    metrics = StepMetrics(console=False, log_every=4)
    metrics.step(late(1.0))
    clock.now += 1.0
    metrics.step(late(2.0))
    assert late.reads == 1
    with metrics.paused():
        assert late.reads == 2  # the devices are done
        clock.now += 100.0
    for number in (3.0, 4.0):
        clock.now += 1.0
        records = metrics.step(late(number))
    assert [record.step_s for record in records] == [1.0] * 3
    assert [record.loss for record in records] == [2.0, 3.0, 4.0]
    assert late.reads == 3


def test_an_exception_in_the_loop_comes_out_and_steps_are_kept(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with pytest.raises(ZeroDivisionError):
        with StepMetrics(console=False, json_lines=path) as metrics:
            for _ in range(5):
                metrics.step(1.0)
            raise ZeroDivisionError
    assert len(path.read_text().splitlines()) == 5


def test_a_device_that_is_gone_hides_no_exception(monkeypatch):
    def read(values):
        raise RuntimeError("the device is gone")

    with pytest.raises(ZeroDivisionError):
        with StepMetrics(console=False) as metrics:
            metrics.step(1.0)
            metrics.step(1.0)
            monkeypatch.setattr(step_metrics, "read", read)
            raise ZeroDivisionError


def test_what_it_writes(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    stream = io.StringIO()
    with StepMetrics(
        tokens=10,
        flops=1e9,
        peak="h100",
        num_devices=4,
        console=stream,
        json_lines=tmp_path / "metrics.jsonl",
        tensorboard=tmp_path / "tb",
    ) as metrics:
        for loss in (3.0, 2.0, 1.0):
            metrics.step(loss)
    formula, first, last = stream.getvalue().splitlines()[-3:]
    assert metrics.formula.endswith("x 4 devices x 990 TFLOP/s bfloat16 of h100)")
    assert metrics.formula.endswith(formula)  # of which the start is a line above
    assert first.startswith("step:  1  loss:  3.0000  tps: ") and "mfu: " in first
    assert last.startswith("step:  3  loss:  1.0000")
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["loss"] for line in lines] == [3.0, 2.0, 1.0]
    assert len(list((tmp_path / "tb").iterdir())) == 1
    assert capsys.readouterr().out == ""


def test_memory_is_the_devices_or_the_compiled_steps_or_unknown(monkeypatch):
    memory, h100 = Memory(5, 1, 1, 2, 0, 9), Target.parse("h100:1x8")
    compiled = Compiled(h100, "f", {}, b"", None, None, memory, 1.0, {})

    def record(**options):
        (found,) = StepMetrics(console=False, **options).step(1.0)
        return found.memory_bytes, found.memory_limit_bytes, found.memory_source

    assert record() == (None, None, None)
    assert record(compiled=compiled) == (7, compiled.target.hbm_bytes, "compiled")
    monkeypatch.setattr(Devices, "memory", lambda self: DeviceMemory(3, 4))
    assert record(compiled=compiled) == (3, 4, "device")


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"log_every": 0}, ValueError, "log_every=0; at least 1 is needed"),
        ({"log_every": 1.5}, TypeError, "log_every=1.5; an int is needed"),
        ({"tokens": True}, TypeError, "tokens=True; an int is needed"),
        ({"num_devices": -1}, ValueError, "num_devices=-1; at least 1"),
        ({"first_step": 0}, ValueError, "first_step=0; at least 1"),
        ({"compiled": 5}, TypeError, "compiled=5; what profiling.compile returns"),
        ({"json_lines": "."}, ValueError, r"json_lines='\.' is a folder; a file is"),
        ({"peak": "h100"}, ValueError, "without flops"),
    ],
)
def test_bad_use(options, error, match):
    with pytest.raises(error, match=match):
        StepMetrics(**options)


def test_tensorboard_that_is_missing_is_told_at_once(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard.summary.writer", None)
    name = "tensorboard.summary.writer.event_file_writer"
    monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(ImportError, match="pip install tensorboard"):
        StepMetrics(tensorboard="runs")


def test_bad_steps():
    metrics = StepMetrics(console=False)
    with pytest.raises(ValueError, match="'step_s' is a figure of StepRecord; give"):
        metrics.step(1.0, step_s=3.0)
    with pytest.raises(TypeError, match="StepMetrics: acc is a str"):
        metrics.step(1.0, acc="good")
    with pytest.raises(ValueError, match="tokens=0; at least 1 is needed"):
        metrics.step(1.0, tokens=0)
    (record,) = metrics.step(1.0)
    assert record.step == 1  # the ones before were none
    metrics.close()
    assert metrics.close() == ()
    for use in (metrics.step, metrics.paused().__enter__):
        with pytest.raises(RuntimeError, match="it is closed; make another one"):
            use()


@pytest.fixture(scope="module")
def steps():
    return {runtime: compiled_step(runtime) for runtime in ("torch_xla", "jax")}


def test_compiled_steps_of_torch_xla_are_read_together(steps):
    step = steps["torch_xla"]
    step(next(iter(batches(1))))
    metrics = StepMetrics(tokens=NUM_ROWS, console=False)
    before, compiled = transfers(), programs()
    losses, found = [], []
    for x in metrics.batches(batches(STEPS)):
        losses.append(step(x))
        found += metrics.step(losses[-1])
    found += metrics.close()
    assert transfers() - before == len(WINDOWS)
    assert programs() == compiled
    assert [record.loss for record in found] == [float(loss.item()) for loss in losses]
    last = found[-1]
    assert (last.num_devices, last.num_compiles) == (8, compiled)
    assert last.memory_bytes is None and last.host_memory_bytes


def test_compiled_steps_of_jax_are_read_in_the_end(steps, monkeypatch):
    reads = []
    item = values_module._item
    monkeypatch.setattr(values_module, "_item", lambda v: reads.append(v) or item(v))
    monkeypatch.setattr(DeviceArray, "numpy", None)  # the whole, put together
    step = steps["jax"]
    metrics = StepMetrics(console=False)
    counts, found = [], []
    for x in batches(STEPS, "jax"):
        found += metrics.step(step(x))
        counts.append(len(reads))
    found += metrics.close()
    assert sorted(set(counts)) == [1, 10, 20]  # all of a window at its end
    assert found[0].compile_s > 0 and found[0].num_compiles >= 1
    assert {record.compile_s for record in found[1:]} == {0.0}
    assert {record.num_compiles for record in found[1:]} == {found[0].num_compiles}
    losses = [record.loss for record in found]
    assert losses == sorted(losses, reverse=True) and len(losses) == STEPS
    assert found[-1].num_devices == 8


def lazily(*, sync_first: bool, with_metrics: bool) -> tuple[list, list, int]:
    """A lazy loop: numbers of the steps known at each step, losses, and programs."""
    spmd.init()
    torch.manual_seed(0)
    x = torch.randn(8, 8).to("xla")
    weight = torch.randn(8, 8).to("xla").requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.1)
    torch_xla.sync()
    metrics = StepMetrics(console=False, log_every=2)
    before, found, losses = programs(), [], []
    for _ in range(5):
        loss = (x @ weight).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if sync_first:
            torch_xla.sync()
        if with_metrics:
            found.append(metrics.step(loss))
        else:
            losses.append(loss.detach())
        if not sync_first:
            torch_xla.sync()
    found.append(metrics.close())
    known = [[record.step for record in records] for records in found]
    losses = [r.loss for records in found for r in records] or losses
    return known, [float(loss) for loss in losses], programs() - before


def test_lazy_steps_are_not_executed_in_halves():
    """Before the sync a window waits for the next call; nothing more is compiled."""
    _, losses, _ = lazily(sync_first=True, with_metrics=False)
    after, found, num_after = lazily(sync_first=True, with_metrics=True)
    assert after == [[1], [2], [], [3, 4], [], [5]] and num_after == 0
    assert found == losses
    before, found, num_before = lazily(sync_first=False, with_metrics=True)
    assert before == [[], [1], [2], [], [3, 4], [5]] and num_before == 0
    assert found == losses


def test_it_is_refused_inside_of_a_step():
    metrics = StepMetrics(console=False)

    def wrong(x):
        metrics.step(x.sum())
        return x.sum()

    step = spmd.compile_step(wrong)
    with pytest.raises(RuntimeError, match=r"call StepMetrics.step outside"):
        step(next(iter(batches(1))))
    assert metrics.close() == ()


def test_it_is_public():
    names = {"StepFlops", "StepMetrics", "StepRecord", "step_flops"}
    assert names <= set(profiling.__all__)
