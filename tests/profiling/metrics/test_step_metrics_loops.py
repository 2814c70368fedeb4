"""Loops as users write them: odd losses, odd steps, odd places."""

import io
import json
import math
import sys
from itertools import pairwise
from time import perf_counter

import pytest
import torch

import spmd
from profiling import StepMetrics
from tests.profiling.captured import batches, compiled_step


def rows(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("as_tensor", [False, True], ids=["float", "tensor"])
def test_a_loss_that_is_not_finite(tmp_path, number, as_tensor):
    stream, path = io.StringIO(), tmp_path / "metrics.jsonl"
    loss = torch.tensor(number) if as_tensor else number
    board = tmp_path / "tb"
    with StepMetrics(console=stream, json_lines=path, tensorboard=board) as metrics:
        (record,) = metrics.step(loss, grad_norm=loss)
    assert str(record.loss) == str(number)
    text = f"{number:7.4f}"
    assert f"loss: {text}  grad_norm: {text}" in stream.getvalue()
    assert [float(row["loss"]) for row in rows(path)] == [
        pytest.approx(number, nan_ok=True)
    ]


def test_a_step_that_is_skipped_has_no_loss(tmp_path):
    """As a loop does that finds the gradients not finite, or accumulates them."""
    stream, path = io.StringIO(), tmp_path / "metrics.jsonl"
    with StepMetrics(console=stream, json_lines=path, log_every=4) as metrics:
        metrics.step(4.0)
        metrics.step()
        metrics.step(2.0)
        records = metrics.step()
    assert [record.loss for record in records] == [None, 2.0, None]
    assert [row["loss"] for row in rows(path)] == [4.0, None, 2.0, None]
    assert "loss" not in stream.getvalue().splitlines()[-1]


def test_a_step_that_nobody_counts_is_time_of_the_next():
    metrics = StepMetrics(console=False, log_every=2)
    metrics.step(1.0)
    started = perf_counter()
    torch.randn(400, 400) @ torch.randn(400, 400)  # a step without metrics.step
    passed = perf_counter() - started
    (record,) = metrics.step(1.0)
    assert (record.step, record.num_steps) == (2, 1)
    assert record.step_s >= passed


def test_a_run_that_is_shorter_than_a_window(tmp_path):
    path = tmp_path / "metrics.jsonl"
    with StepMetrics(console=False, json_lines=path, log_every=1000) as metrics:
        for step in range(3):
            metrics.step(step)
    assert [(row["step"], row["num_steps"]) for row in rows(path)] == [
        (1, 1),
        (2, 2),
        (3, 2),
    ]


def test_a_run_of_no_steps(tmp_path):
    path, stream = tmp_path / "metrics.jsonl", io.StringIO()
    with StepMetrics(console=stream, json_lines=path, tensorboard=tmp_path / "tb"):
        pass
    assert stream.getvalue() == "" and not path.exists()


def test_a_run_that_goes_on_adds_to_its_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for first in (1, 4):
        with StepMetrics(console=False, json_lines=path, first_step=first) as metrics:
            for _ in range(3):
                metrics.step(1.0)
    assert [row["step"] for row in rows(path)] == [1, 2, 3, 4, 5, 6]


def test_tokens_of_each_step_are_those_of_the_window_together():
    metrics = StepMetrics(console=False, log_every=4, tokens=1)
    metrics.step(1.0)
    for tokens in (100, 300):
        metrics.step(1.0, tokens=tokens)
    records = metrics.step(1.0)
    assert [record.tokens for record in records] == [100, 300, 1]
    for record in records:
        assert record.tokens_per_s == pytest.approx(401 / (3 * record.step_s))


def test_tokens_that_one_step_does_not_know_are_nobodys():
    metrics = StepMetrics(console=False, log_every=3)
    metrics.step(1.0)
    metrics.step(1.0, tokens=100)
    records = metrics.step(1.0)
    assert [(r.tokens, r.tokens_per_s) for r in records] == [(100, None), (None, None)]


def test_two_at_once(tmp_path):
    """Such as training and validation; neither disturbs the other."""
    streams = io.StringIO(), io.StringIO()
    one = StepMetrics(console=streams[0], json_lines=tmp_path / "a.jsonl", log_every=2)
    two = StepMetrics(console=streams[1], json_lines=tmp_path / "b.jsonl", log_every=3)
    for step in range(1, 7):
        one.step(float(step))
        two.step(-float(step))
    one.close()
    two.step(-7.0)
    two.close()
    assert [row["loss"] for row in rows(tmp_path / "a.jsonl")] == [1, 2, 3, 4, 5, 6]
    assert [row["loss"] for row in rows(tmp_path / "b.jsonl")] == [
        *(-1, -2, -3, -4, -5, -6, -7)
    ]
    assert [len(s.getvalue().splitlines()) for s in streams] == [4, 4]


def test_a_step_that_fails_and_is_tried_again():
    """The failed one is no step; its time is the next one's."""
    spmd.init()
    fails = True

    def loss_of(x):
        if fails:
            raise FloatingPointError("too large")
        return x.square().sum()

    step = spmd.compile_step(loss_of)
    metrics = StepMetrics(console=False, log_every=2)
    (x,) = batches(1)
    with pytest.raises(FloatingPointError, match="too large"):
        metrics.step(step(x))
    fails = False
    found = [*metrics.step(step(x)), *metrics.step(step(x))]
    assert [record.step for record in found] == [1, 2]
    assert (
        found[0].loss == found[1].loss == pytest.approx(float(x.cpu().square().sum()))
    )


def test_losses_on_the_host_before_losses_on_devices():
    step = compiled_step("torch_xla")
    metrics = StepMetrics(console=False, log_every=2)
    found = [*metrics.step(5.0)]
    for x in batches(2):
        found += metrics.step(step(x))
    found += metrics.close()
    assert [record.num_devices for record in found] == [8, 8, 8]
    assert all(late.loss < early.loss for early, late in pairwise(found[1:]))


def test_without_devices(monkeypatch):
    """A loop of numpy or plain torch, where neither runtime was ever started."""
    for name in ("spmd._runtime", "spmd._torch_xla.seam"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    metrics = StepMetrics(console=False, flops=1e9, peak=1e12, tokens=8)
    (record,) = metrics.step(torch.tensor(2.0))
    assert (record.num_devices, record.num_compiles) == (1, None)
    assert record.memory_bytes is None and record.host_memory_bytes
    assert record.mfu == pytest.approx(1e9 / (record.step_s * 1e12))


def test_in_a_notebook_a_line_is_as_long_as_it_is(monkeypatch):
    """There stdout is an object of its own, and no file that could be asked."""
    monkeypatch.delenv("COLUMNS", raising=False)
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "__stdout__", None)
    with StepMetrics(tokens=8, flops=1e9, peak="h100", num_devices=4) as metrics:
        metrics.step(1.0, grad_norm=2.0, learning_rate=3e-4, dropped_tokens=0.125)
    (line,) = [x for x in stream.getvalue().splitlines() if "step:" in x]
    assert line.startswith("step:  1  loss:  1.0000") and len(line) > 100
    assert "  learning_rate: 0.0003  dropped_tokens: 0.125" in line


def test_in_80_columns_no_line_is_longer(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    stream = io.StringIO()
    with StepMetrics(
        tokens=8, flops=1e9, peak="h100", num_devices=4, console=stream
    ) as metrics:
        metrics.step(1.0, grad_norm=2.0, learning_rate=3e-4, dropped_tokens=0.125)
    lines = stream.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert "mfu: " in stream.getvalue() and "dropped_tokens: 0.125" in stream.getvalue()
