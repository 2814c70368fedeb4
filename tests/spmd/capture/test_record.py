import dataclasses
from collections import namedtuple
from typing import Any

import torch
from torch import nn

import spmd
from spmd._capture.capture import recorded
from spmd._capture.record import (
    Output,
    Recorded,
    Source,
    leaf_names,
    rebuild,
    taken_apart,
)
from spmd._capture.state import StepState
from spmd._names.names import call_leaves
from tests.on_device import on_device
from tests.spmd.training import adamw, batches, mlp, simple, squares, wrapped

Pair = namedtuple("Pair", ("one", "two"))


@dataclasses.dataclass
class Result:
    loss: Any
    more: Any = None


def record(fn: Any, *args: Any, state: StepState | None = None) -> Recorded:
    state = state or StepState(None, None, {})
    batch, _ = call_leaves(fn, args, {})
    with recorded(fn, args, {}, state=state, batch=batch) as found:
        return found


def kinds(found: Recorded) -> dict[str, str]:
    return {s.name: s.kind for s in found.sources if s.kind != "constant"}


def test_where_inputs_come_from():
    model = wrapped(mlp(dropout=0.5))
    made = simple(model, adamw(model))
    spmd.prime_optimizer(made.optimizer)
    state = StepState(model, made.optimizer, {})
    found = record(made.step, batches(1)[0], state=state)
    assert kinds(found) == {
        "batch": "batch",
        "rng": "rng",
        "optimizer.lr[0]": "learning_rate",
        **{s.name: "state" for s in state.slots()},
    }
    constants = [s for s in found.sources if s.kind == "constant"]
    assert constants and all(c.value is not None for c in constants)
    names = {found.slots[i].name for i in found.updated}
    assert names == {s.name for s in state.slots()}
    assert found.cleared == [] and found.replaced == frozenset()
    assert len(found.donated()) == len(names)
    assert found.results() == [(len(found.outputs) - 1, "output")]


def test_gradients_that_appear_and_that_are_cleared():
    model = wrapped(nn.Linear(16, 16))
    made = simple(model, None)
    state = StepState(model, None, {})
    found = record(made.step, batches(1)[0], state=state)
    updated = {found.slots[i].name for i in found.updated}
    assert updated == {"grad[weight]", "grad[bias]"}
    assert found.donated() == []  # nothing was there before

    squares(model, batches(1)[0]).backward()

    def clear(batch: torch.Tensor) -> torch.Tensor:
        loss = squares(model, batch)
        model.zero_grad()
        return loss

    found = record(clear, batches(1)[0], state=state)
    assert found.cleared == ["grad[weight]", "grad[bias]"] and not found.updated


def test_the_order_of_outputs_does_not_depend_on_gradients_being_there():
    model = wrapped(mlp())
    made = simple(model, adamw(model))
    spmd.prime_optimizer(made.optimizer)

    def step(batch: torch.Tensor) -> torch.Tensor:
        made.optimizer.zero_grad()
        loss = squares(model, batch)
        loss.backward()
        made.optimizer.step()
        return loss

    state = StepState(model, made.optimizer, {})
    orders = []
    for _ in range(2):
        found = record(step, batches(1)[0], state=state)
        orders.append([found.slots[i].name for i in found.updated])
        squares(model, batches(1)[0]).backward()
    assert orders[0] == orders[1]


def test_a_place_with_another_tensor_is_replaced():
    model = nn.Module()
    model.register_buffer("seen", on_device(4))

    def step(x: torch.Tensor) -> None:
        model.seen = x * 2

    found = record(step, on_device(4), state=StepState(model, None, {}))
    assert found.replaced == {0} and set(found.updated) == {0}


def test_results_by_name_and_kind():
    extra = on_device(4) + 3
    state = StepState(None, None, {"kept": extra})

    def step(x: torch.Tensor) -> Any:
        y = x * extra
        return Result(y, {"again": [y, x], "kept": extra, "pair": Pair(1, y + 1)})

    found = record(step, on_device(4), state=state)
    assert found.results() == [
        (0, "output.loss"),
        (0, "output.more.again.0"),
        (1, "output.more.pair.two"),
    ]
    loss, again, x, kept, one, more = found.leaves
    assert loss == again == Output(0) and more == Output(1) and one == 1
    assert isinstance(x, Source) and (x.kind, x.name) == ("batch", "x")
    assert isinstance(kept, Source) and (kept.kind, kept.name) == ("state", "kept")


def test_rebuild_puts_results_and_inputs_in_their_places():
    extra = on_device(4) + 3

    def step(x: torch.Tensor) -> Any:
        extra.mul_(2)
        return {"new": extra.detach(), "x": x, "n": 5}, Pair(x + 1, None)

    found = record(step, on_device(4), state=StepState(None, None, {"kept": extra}))
    results: Any = ["state", "sum"]  # stand-ins
    given, pair = rebuild(
        found,
        results,
        lambda source: source.name,
        copy=lambda tensor: f"copy of {tensor}",
    )
    assert given == {"new": "copy of state", "x": "x", "n": 5}
    assert pair == Pair("sum", None)


def test_containers_of_torch_and_ours():
    tree = {"a": [1, (2, None)], "size": torch.return_types.max((3, 4))}
    shape, found = taken_apart(tree)
    assert found == [1, 2, None, 3, 4]
    assert list(leaf_names(shape)) == [
        "output.a.0",
        "output.a.1.0",
        "output.a.1.1",
        "output.size.0",
        "output.size.1",
    ]


def test_data_is_let_go_of():
    found = record(lambda x: x * 2, on_device(4))
    assert found.outputs and found.inputs.values
    found.drop_data()
    assert not found.outputs and not found.inputs.values and not found.originals
    assert found.sources
