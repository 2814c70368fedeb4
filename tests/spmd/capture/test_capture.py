from typing import Any

import pytest
import torch

import spmd
from spmd import CaptureError
from spmd._capture.capture import rate_tensor, recorded, separate
from spmd._capture.state import StepState
from spmd._names.names import call_leaves
from spmd._torch_xla import graph as torch_xla_graph
from tests.on_device import on_device, split_by, sync
from tests.spmd.training import (
    MESH,
    adamw,
    batches,
    check_equal,
    mlp,
    simple,
    state_of,
    wrapped,
)


def record(fn: Any, *args: Any, state: StepState | None = None) -> Any:
    state = state or StepState(None, None, {})
    batch, _ = call_leaves(fn, args, {})
    return recorded(fn, args, {}, state=state, batch=batch)


def primed() -> Any:
    torch.manual_seed(0)
    model = wrapped(mlp(dropout=0.5, norm=True))
    made = simple(model, adamw(model))
    spmd.prime_optimizer(made.optimizer)
    sync()
    return made, StepState(model, made.optimizer, {})


def test_recording_leaves_everything_as_it_was():
    made, state = primed()
    torch_xla_graph.set_seed(9)
    before = state_of(made)
    objects = [s.read() for s in state.slots()]
    num = torch_xla_graph.num_compiles()
    with record(made.step, made.batches[0], state=state) as found:
        traced = torch_xla_graph.needs_execution([s.read() for s in state.slots()])
        assert all(traced) and len(found.outputs) > len(traced)
    assert torch_xla_graph.num_compiles() == num and torch_xla_graph.seed() == 9
    after = [s.read() for s in state.slots()]
    assert all(a is b for a, b in zip(after, objects, strict=True))
    check_equal(state_of(made), before)
    for parameter in made.model.parameters():
        known = spmd.get_sharding(parameter)
        assert known is not None and split_by(parameter, MESH, known.spec)
    assert made.optimizer.param_groups[0]["lr"] == 0.01


def test_the_rate_is_the_users_again_after_an_error():
    made, state = primed()
    rate = torch.tensor(0.5).to("xla")
    made.optimizer.param_groups[0]["lr"] = rate

    def step(batch: torch.Tensor) -> None:
        made.optimizer.param_groups[0]["lr"].mul_(3)
        raise KeyError

    with pytest.raises(KeyError), record(step, made.batches[0], state=state):
        pass
    assert made.optimizer.param_groups[0]["lr"] is rate and rate.item() == 0.5


def test_an_optimizer_without_a_rate():
    made, state = primed()
    del made.optimizer.param_groups[0]["lr"]
    with record(lambda batch: batch * 2, made.batches[0], state=state) as found:
        assert [s.kind for s in found.sources if s.kind != "constant"] == ["batch"]
    made.optimizer.param_groups[0]["lr"] = None
    with record(lambda batch: batch * 2, made.batches[0], state=state):
        pass
    assert made.optimizer.param_groups[0]["lr"] is None


def test_equal_rates_and_numbers_are_inputs_of_their_own():
    made, _ = primed()
    parameters = list(made.model.parameters())
    optimizer = torch.optim.SGD(
        [{"params": [p]} for p in parameters[:2]], lr=0.125, weight_decay=0.125
    )

    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = made.model(batch).sum() * 0.125
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    state = StepState(made.model, optimizer, {})
    with record(step, made.batches[0], state=state) as found:
        rates = [s.name for s in found.sources if s.kind == "learning_rate"]
        assert sorted(rates) == ["optimizer.lr[0]", "optimizer.lr[1]"]
        values = [s.value.item() for s in found.sources if s.kind == "constant"]
        assert 0.125 in values


@pytest.mark.parametrize(
    ("rate", "same"),
    [
        (lambda: 0.5, False),
        (lambda: torch.tensor(0.5), False),
        (lambda: torch.tensor([0.5]), False),
        (lambda: torch.tensor(0.5, dtype=torch.float64).to("xla"), False),
        (lambda: torch.tensor(0.5).to("xla"), True),
    ],
)
def test_a_rate_as_the_graph_takes_it(rate, same):
    given = rate()
    found = rate_tensor(given)
    assert found.device.type == "xla" and found.ndim == 0
    assert found.dtype == torch.float32 and found.item() == 0.5
    assert (found is given) == same


def test_state_on_one_buffer_gets_a_buffer_each():
    a, b = on_device(4), on_device(4)
    state = StepState(None, None, {"a": a, "b": b, "c": on_device(4)})
    b.data = a.detach()
    held = state.extra["c"].detach()
    separate(state.slots())
    handles = torch_xla_graph.handles([a, b, state.extra["c"], held])
    assert len(set(handles[:3])) == 3 and handles[2] == handles[3]
    check_equal(a.cpu(), b.cpu())


def test_a_batch_is_traced_as_a_copy_where_the_step_sees_it_otherwise_too():
    x = on_device(4)
    with record(lambda a, b: a - b, x, x) as found:
        assert sorted(s.name for s in found.sources) == ["a", "b"]

    def step(a: torch.Tensor) -> torch.Tensor:
        return a * x

    text = r"none of its inputs: x \(float32\[4\]\)"
    with pytest.raises(CaptureError, match=text), record(step, x):
        pass


def test_a_batch_that_the_step_writes_to_is_put_back():
    x, y = on_device(4), on_device(4)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        x.mul_(3)
        return (x + y).sum()

    with record(step, x, y):
        pass
    check_equal(x.cpu(), y.cpu())


def test_a_result_that_requires_gradients_leaves_no_history_in_the_state():
    made, _ = primed()
    total = torch.zeros(()).to("xla")
    state = StepState(made.model, None, {"total": total})

    def step(batch: torch.Tensor) -> None:
        total.add_(made.model(batch).sum())

    with record(step, made.batches[0], state=state):
        assert total.grad_fn is not None
    assert total.grad_fn is None and total.item() == 0
    step = spmd.compile_step(step, model=made.model, extra={"total": total})
    seen = []
    for batch in batches(3):
        step(batch)
        seen.append(total.item())
    assert len(set(seen)) == 3 and not total.requires_grad
