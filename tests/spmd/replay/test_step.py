"""What `compile_step` takes and refuses, what a compiled step may be given and give."""

import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import spmd
from spmd import CompiledStep
from tests.on_device import on_device
from tests.spmd.training import (
    MESH,
    adamw,
    batches,
    check_equal,
    mlp,
    simple,
    wrapped,
)


def step_of(fn: Any, **options: Any) -> CompiledStep:
    step = spmd.compile_step(fn, runtime="torch_xla", **options)
    assert isinstance(step, CompiledStep)
    return step


def test_no_function():
    with pytest.raises(TypeError, match="compile_step: 3 is not callable"):
        step_of(3)


def test_no_graph():
    with pytest.raises(ValueError, match="max_graphs=0; at least 1 is needed"):
        step_of(lambda: None, max_graphs=0)


def test_another_runtime():
    with pytest.raises(ValueError, match="runtime='cuda'; 'torch_xla', 'jax' or"):
        spmd.compile_step(lambda: None, runtime="cuda")  # pyright: ignore


def test_compile_options_are_jaxs():
    text = r"options=\{'xla_a': 1\} are compile options of jax; with torch_xla set XLA_"
    with pytest.raises(ValueError, match=text):
        step_of(lambda: None, options={"xla_a": 1})


def test_a_model_on_the_cpu():
    text = (
        r"parameter 0\.weight \[32, 16\] is on cpu; call spmd\.to_device\(model\) first"
    )
    with pytest.raises(ValueError, match=text):
        step_of(lambda: None, model=mlp())


def test_an_optimizer_on_the_cpu():
    optimizer = torch.optim.SGD(mlp().parameters())
    text = r"parameter 0 of the optimizer's group 0 is on cpu; build the optimizer from"
    with pytest.raises(ValueError, match=text):
        step_of(lambda: None, model=wrapped(mlp()), optimizer=optimizer)


def test_an_optimizer_of_another_model():
    text = r"4 of the optimizer's parameters are none of the model's: parameter 0 \[32"
    optimizer = adamw(wrapped(mlp()))
    with pytest.warns(UserWarning, match=text) as caught:
        step_of(lambda: None, model=wrapped(mlp()), optimizer=optimizer)
    assert all(w.filename == __file__ for w in caught)


@pytest.mark.parametrize(
    ("batch", "text"),
    [
        (torch.ones(8, 4), r"batch \[8, 4\] is on cpu; give it to the devices with"),
        ({"a": [torch.ones(2)]}, r"batch\.a\.0 \[2\] is on cpu"),
        (np.ones(3), r"batch is a ndarray, whose values would be baked in; give it"),
        ({"a": np.ones(3)}, r"batch\.a is a ndarray"),
    ],
)
def test_a_batch_on_the_host(batch, text):
    with pytest.raises(ValueError, match=text):
        step_of(lambda batch: batch)(batch)


Pair = namedtuple("Pair", ("one", "two"))


@dataclasses.dataclass
class Batch:
    x: Any
    y: Any = None


CONTAINERS: dict[str, Any] = {
    "tensor": lambda a, b: a,
    "dict": lambda a, b: {"a": a, "b": b},
    "ordered": lambda a, b: OrderedDict(a=a, b=b),
    "list": lambda a, b: [a, [b, 1]],
    "tuple": lambda a, b: (a, (b, None)),
    "namedtuple": lambda a, b: Pair(a, {"b": b}),
    "dataclass": lambda a, b: Batch(a, [b]),
    "nested": lambda a, b: {"x": [Batch(a), Pair(b, "text")]},
}


def tensors(tree: Any) -> list[torch.Tensor]:
    from spmd._names.rebuild import leaves

    return [leaf for _, leaf in leaves(tree) if isinstance(leaf, torch.Tensor)]


@pytest.mark.parametrize("kind", CONTAINERS)
def test_batches_and_results_in_containers(kind):
    def step(batch: Any) -> Any:
        return CONTAINERS[kind](*[t * 2 for t in tensors(batch) * 2][:2])

    a, b = batches(2)
    step = step_of(step)
    for one, two in ((a, b), (b, a)):
        found = step(CONTAINERS[kind](one, two))
        second = one if kind == "tensor" else two
        wanted = CONTAINERS[kind](one * 2, second * 2)
        assert type(found) is type(wanted)
        assert str(found).replace("tensor", "") or found is None
        check_equal(
            [t.cpu() for t in tensors(found)], [t.cpu() for t in tensors(wanted)]
        )
    assert step.num_graphs == 1


def test_positional_and_keyword_arguments():
    def fn(x: Any, *rest: Any, scale: Any = None, **more: Any) -> Any:
        for other in (*rest, *more.values()):
            x = x - other
        return x if scale is None else x * scale

    step = step_of(fn)
    a, b, c = (on_device(8, 4) * v for v in (1.0, 2.0, 5.0))
    check_equal(step(a, b, scale=c, z=a).cpu(), ((a - b - a) * c).cpu())
    check_equal(step(b, c, scale=a, z=b).cpu(), ((b - c - b) * a).cpu())
    assert step.num_graphs == 1
    with pytest.warns(UserWarning, match=r"because of scale, no longer given"):
        check_equal(step(a, b, z=a).cpu(), (a - b - a).cpu())
    with pytest.warns(UserWarning, match=r"because of args\.2, now float32\[8, 4\]"):
        check_equal(step(a, b, c).cpu(), (a - b - c).cpu())


def test_arguments_in_another_order_are_the_same():
    step = step_of(lambda x, y: x - y)
    a, b = (on_device(8, 4) * v for v in (1.0, 2.0))
    for found in (step(a, b), step(x=a, y=b), step(a, y=b)):
        check_equal(found.cpu(), (a - b).cpu())
    assert step.num_graphs == 1


def test_what_is_no_tensor_is_returned_as_it_was():
    marker = object()
    step = step_of(lambda x: (x * 2, None, 3, 1.5, "text", marker, torch.ones(2)))
    for _ in range(2):
        result = step(on_device(4))
        assert result[1:6] == (None, 3, 1.5, "text", marker)
        check_equal(result[6], torch.ones(2))


def test_nothing_at_all():
    step = step_of(lambda x: None)
    assert step(on_device(4)) is None and step(on_device(4)) is None


def test_no_arguments():
    model = spmd.to_device(nn.Linear(4, 4))

    def fn() -> torch.Tensor:
        with torch.no_grad():
            model.weight.mul_(2)
        return model.weight.sum()

    before = model.weight.detach().cpu()
    step = step_of(fn, model=model)
    for i in range(3):
        torch.testing.assert_close(step().cpu(), before.sum() * 2 ** (i + 1))


def test_one_tensor_twice():
    def step(x: torch.Tensor) -> Any:
        y = x * 2
        return y, {"again": y}, y.detach()

    step = step_of(step)
    for v in (1.0, 3.0):
        x = on_device(4) * v
        a, b, c = step(x)
        check_equal([t.cpu() for t in (a, b["again"], c)], [(x * 2).cpu()] * 3)


def test_arguments_returned_as_they_came():
    step = step_of(lambda x, y: {"y": y, "sum": x + y, "x": x})
    for v in (1.0, 3.0):
        x, y = on_device(4) * v, on_device(4) - v
        found = step(x, y)
        assert found["x"] is x and found["y"] is y
        check_equal(found["sum"].cpu(), (x + y).cpu())


def test_state_returned_as_it_is():
    model = wrapped(mlp(norm=True))
    made = simple(model, adamw(model))
    weight, frozen = model.module[0].weight, model.module[4].bias
    frozen.requires_grad_(False)

    def fn(batch: torch.Tensor) -> Any:
        loss = made.step(batch)
        running = model.module[1].running_mean
        return loss, weight, frozen, running, weight.detach(), weight * 2

    step = step_of(fn, model=model, optimizer=made.optimizer)
    earlier = []
    for batch in made.batches:
        _, a, b, c, d, e = step(batch)
        assert a is weight and b is frozen and c is model.module[1].running_mean
        now = weight.detach().cpu()
        check_equal([d.cpu(), e.cpu()], [now, now * 2])
        earlier.append((d, now))
    check_equal([d.cpu() for d, _ in earlier], [now for _, now in earlier])


def test_gradients_returned():
    model = wrapped(mlp())
    made = simple(model, None)
    weight = model.module[0].weight

    def fn(batch: torch.Tensor) -> Any:
        weight.grad = None
        loss = made.step(batch)
        return loss, weight.grad

    step = step_of(fn, model=model)
    with pytest.warns(UserWarning, match="which parameters have a gradient"):
        for batch in made.batches[:3]:
            _, gradient = step(batch)
            assert gradient is weight.grad and gradient.abs().sum().item() > 0


def test_results_do_not_require_gradients():
    model = wrapped(mlp())
    step = step_of(lambda batch: model(batch).sum(), model=model)
    assert not step(batches(1)[0]).requires_grad


def test_a_step_that_only_evaluates():
    model = wrapped(mlp(dropout=0.5)).eval()

    @torch.no_grad()
    def evaluate(batch: torch.Tensor) -> torch.Tensor:
        return model(batch)

    step = step_of(evaluate, model=model)
    for batch in batches(2):
        check_equal(step(batch).cpu(), evaluate(batch).cpu())
        known = spmd.get_sharding(step(batch), MESH)
        assert known is not None


def test_numbers_that_the_step_makes_are_fine():
    def step(x: torch.Tensor) -> torch.Tensor:
        table = torch.tensor([1.0, 2.0, 3.0, 4.0]).to(x.device)
        return x * table + torch.arange(4, device=x.device) * 0.3

    # A table made in the step is data from nowhere, for all one can tell.
    with pytest.raises(spmd.CaptureError, match=r"inputs: unnamed \(float32\[4\]\)"):
        step_of(step)(on_device(2, 4))
    step = step_of(lambda x: x * 0.3 + torch.full((4,), 0.7, device="xla"))
    x = on_device(2, 4)
    torch.testing.assert_close(step(x).cpu(), (x * 0.3 + 0.7).cpu())
