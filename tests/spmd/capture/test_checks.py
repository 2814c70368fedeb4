"""What cannot be captured is refused by name, and leaves everything usable."""

import functools
import gc
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import spmd
from spmd import CaptureError, HostReadError
from tests.on_device import on_device, split_by, sync
from tests.spmd.training import (
    MESH,
    Training,
    adamw,
    batches,
    check_equal,
    compiled,
    mlp,
    run,
    run_lazily,
    simple,
    squares,
    state_of,
    wrapped,
)


def training(**options: Any) -> Training:
    torch.manual_seed(0)
    model = wrapped(mlp())
    return simple(model, adamw(model, **options))


def refused(
    step: Callable[..., Any],
    trained: Training,
    *,
    match: str,
    error: type[Exception] = CaptureError,
    **options: Any,
) -> None:
    """The step is refused, and afterwards nothing is different from before."""
    before = state_of(trained)
    wrong = spmd.compile_step(
        step, model=trained.model, optimizer=trained.optimizer, **options
    )
    for _ in range(2):
        with pytest.raises(error, match=match):
            wrong(trained.batches[0])
    after = state_of(trained)
    check_equal({n: after[n] for n in before}, before)
    for parameter in trained.model.parameters():
        assert split_by(parameter, MESH, spmd.get_sharding(parameter).spec)
        assert parameter.grad is None


def usable(trained: Training) -> None:
    """Lazy execution and a proper step do what they would have done."""
    fresh = training()
    spmd.prime_optimizer(fresh.optimizer)
    sync()
    wanted = [*run_lazily(fresh, 2), *run_lazily(fresh, 2, first=2)]
    found = run_lazily(trained, 2)
    found += run(trained, compiled(trained), 2, first=2)
    check_equal(found, wanted)
    check_equal(state_of(trained), state_of(fresh))


def test_a_tensor_of_the_closure_by_its_variable():
    trained = training()
    table = on_device(16)

    def step(batch: torch.Tensor) -> torch.Tensor:
        return trained.step(batch * table)

    refused(
        step,
        trained,
        match=r"reads a tensor that is none of its inputs: table \(float32\[16\]\). "
        r"Pass it in the batch, register it as a buffer of the model, or name it",
    )
    usable(trained)


def test_a_global_tensor_by_its_name():
    globals()["TABLE"] = on_device(16)
    trained = training()

    def step(batch: torch.Tensor) -> torch.Tensor:
        return trained.step(batch * TABLE)  # noqa: F821 # put there above

    refused(step, trained, match=r"inputs: TABLE \(float32\[16\]\)")
    del globals()["TABLE"]


class Stepper:
    """A step as a method, or as the object itself."""

    def __init__(self, trained: Training) -> None:
        self.trained = trained
        self.scale = on_device(16)

    def __call__(self, batch: torch.Tensor) -> torch.Tensor:
        return self.trained.step(batch * self.scale)

    def method(self, batch: torch.Tensor) -> torch.Tensor:
        return self(batch)


@pytest.mark.parametrize("kind", ["object", "method", "partial", "wrapped"])
def test_an_attribute_of_the_steps_object(kind):
    trained = training()
    stepper = Stepper(trained)
    step: Callable[..., Any] = stepper if kind == "object" else stepper.method
    name = r"self\.scale"
    if kind == "partial":
        step, name = functools.partial(stepper.method), "a tensor made before the step"
    if kind == "wrapped":
        step = functools.wraps(step)(lambda batch: stepper(batch))
    refused(step, trained, match=rf"inputs: {name} \(float32\[16\]\)")


@pytest.mark.parametrize("value", [0.0, 1.0, 0.7])
def test_a_scalar_of_the_closure(value):
    trained = training()
    scale = torch.tensor(value).to("xla")

    def step(batch: torch.Tensor) -> torch.Tensor:
        return trained.step(batch + scale)

    refused(step, trained, match=r"inputs: scale \(float32\[\]\)")
    usable(trained)


def test_equal_numbers_and_scalars_are_told_apart():
    trained = training(weight_decay=0.7)
    other = torch.tensor(0.7).to("xla")  # shares its upload with the number

    def step(batch: torch.Tensor) -> torch.Tensor:
        return trained.step(batch * 0.7)

    compile_step = spmd.compile_step(
        step, model=trained.model, optimizer=trained.optimizer
    )
    compile_step(trained.batches[0])
    assert other.item() == pytest.approx(0.7)


def test_a_tensor_in_a_list_that_only_the_step_knows():
    trained = training()
    kept = [on_device(16)]

    def step(batch: torch.Tensor) -> torch.Tensor:
        return trained.step(batch * kept[0])

    refused(step, trained, match=r"inputs: a tensor made before the step")


def test_a_tensor_that_the_step_updates_and_nobody_named():
    trained = training()
    average = on_device(16, 16)

    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = trained.step(batch)
        average.mul_(0.9).add_(trained.model.module[4].weight[:, :16].detach())
        return loss + average.sum()

    refused(step, trained, match=r"inputs: average \(float32\[16, 16\]\)")


def test_state_that_is_overwritten_without_being_read():
    trained = training()
    seen = torch.zeros(16).to("xla")

    def step(batch: torch.Tensor) -> torch.Tensor:
        seen.copy_(batch.mean(0))
        return trained.step(batch)

    refused(
        step,
        trained,
        match="overwrites seen without reading it: .* Assign a new tensor instead",
        extra={"seen": seen},
    )
    usable(trained)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (
            torch.optim.Adagrad,
            r"Adagrad counts optimizer\.step\[0\.weight\] on the host, so a captured "
            r"step would repeat its first value for ever; use an optimizer that has",
        ),
        (
            torch.optim.Adafactor,
            "Adafactor reads a value on the host in its step, its learning rate or a",
        ),
    ],
)
def test_an_optimizer_that_counts_on_the_host(make, words):
    torch.manual_seed(0)
    model = wrapped(mlp())
    trained = simple(model, make(model.parameters()))
    spmd.prime_optimizer(trained.optimizer)
    steps = [s["step"] for s in trained.optimizer.state.values()]
    refused(trained.step, trained, match=words)
    assert all(s.item() == 0 and s.device.type == "cpu" for s in steps)
    run_lazily(trained, 2, device_lr=False)
    assert {s["step"].item() for s in trained.optimizer.state.values()} == {2}


class Counts(torch.optim.Optimizer):
    """Creates its state in the first step, with a Python number in it."""

    def __init__(self, parameters: Any, count: bool) -> None:
        super().__init__(parameters, {"lr": 0.1})
        self.count = count

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["average"] = torch.zeros_like(p)
                    if self.count:
                        state["step"] = 0
                if self.count:
                    state["step"] += 1
                state["average"].mul_(0.9).add_(p.grad)
                p.sub_(state["average"] * group["lr"])


def test_an_optimizer_that_counts_in_python():
    torch.manual_seed(0)
    model = wrapped(mlp())
    trained = simple(model, Counts(model.parameters(), count=True))
    refused(trained.step, trained, match=r"Counts counts optimizer\.step\[0\.weight\]")
    assert not any(trained.optimizer.state.values())
    run_lazily(trained, 1)
    refused(trained.step, trained, match=r"Counts counts optimizer\.step\[0\.weight\]")
    assert all(s["step"] == 1 for s in trained.optimizer.state.values())


def test_an_optimizer_that_creates_its_state_in_the_first_step_has_two_graphs():
    histories = []
    for replay in (False, True):
        torch.manual_seed(0)
        model = wrapped(mlp())
        trained = simple(model, Counts(model.parameters(), count=False))
        if replay:
            step = compiled(trained)
            with pytest.warns(UserWarning, match="what the optimizer's state holds"):
                histories.append(run(trained, step, 4))
            assert step.num_graphs == 2
        else:
            histories.append(run_lazily(trained, 4))
        histories.append(state_of(trained))
    check_equal(histories[2:], histories[:2])


@pytest.mark.parametrize("on_device_rate", [False, True])
def test_a_scheduler_called_inside(on_device_rate):
    trained = training()
    group = trained.optimizer.param_groups[0]
    if on_device_rate:
        group["lr"] = torch.tensor(0.01).to("xla")
    scheduler = torch.optim.lr_scheduler.ConstantLR(trained.optimizer)
    rate = float(group["lr"])

    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = trained.step(batch)
        group["lr"] = group["lr"] * 0.9 if not on_device_rate else group["lr"].mul_(0.9)
        return loss

    refused(
        step,
        trained,
        match=r"itself changes the learning rate of group 0 \(a scheduler called "
        r"inside it\?\); call scheduler\.step\(\) after the compiled step",
    )
    assert float(group["lr"]) == pytest.approx(rate)
    del scheduler


def test_an_operation_without_an_xla_form():
    trained = training()

    def step(batch: torch.Tensor) -> torch.Tensor:
        return trained.step(batch) + torch.histc(batch, bins=4).sum()

    refused(
        step,
        trained,
        match=r"uses aten::histc at \S*test_checks.py:\d+ in step, which has "
        r"no XLA form for .*: .* its result be baked into the compiled one\. Write it",
    )
    torch.histc(trained.batches[0], bins=4)  # counted before now
    refused(step, trained, match="aten::histc")
    usable(trained)


def test_a_result_inside_an_unknown_object():
    trained = training()

    class Report:
        def __init__(self, loss: torch.Tensor) -> None:
            self.parts = {"loss": [loss]}

    refused(
        lambda batch: {"report": Report(trained.step(batch))},
        trained,
        match="returns output.report, a Report that holds tensors; return the tensors",
    )


def test_an_argument_that_is_also_state():
    trained = training()
    weight = trained.model.module[0].weight
    step = spmd.compile_step(
        lambda batch, w: trained.step(batch),
        model=trained.model,
        optimizer=trained.optimizer,
    )
    text = (
        r"w \[32, 16\] in the arguments has the same data as 0\.weight, whose memory "
        r"the step uses again; leave it out, or pass a copy: w\.clone\(\)"
    )
    for same in (lambda: weight, weight.detach):
        with pytest.raises(CaptureError, match=text):
            step(trained.batches[0], same())
    copy = weight.detach().clone()
    step(trained.batches[0], copy)
    assert not torch.equal(copy.cpu(), weight.detach().cpu())


def test_an_error_in_the_step():
    trained = training()

    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = squares(trained.model, batch)
        loss.backward()
        trained.optimizer.step()
        raise KeyError("mine")

    refused(step, trained, match="mine", error=KeyError)
    gc.collect()
    usable(trained)


def test_an_error_in_the_backward():
    trained = training()
    handle = trained.model.module[0].weight.register_hook(lambda g: 1 / 0)
    refused(trained.step, trained, match="division", error=ZeroDivisionError)
    handle.remove()
    usable(trained)


def test_a_read_on_the_host():
    trained = training()

    def step(batch: torch.Tensor) -> float:
        return trained.step(batch).item()

    refused(step, trained, match=r"\.item\(\)", error=HostReadError)
    usable(trained)


def test_gradients_that_were_there_survive_a_refusal():
    trained = training()
    squares(trained.model, batches(1)[0]).backward()
    sync()
    before = [p.grad.cpu() for p in trained.model.parameters()]
    objects = [p.grad for p in trained.model.parameters()]
    step = spmd.compile_step(
        lambda batch: trained.step(batch).item(),
        model=trained.model,
        optimizer=trained.optimizer,
    )
    with pytest.raises(HostReadError):
        step(trained.batches[0])
    assert all(
        p.grad is g for p, g in zip(trained.model.parameters(), objects, strict=True)
    )
    check_equal([p.grad.cpu() for p in trained.model.parameters()], before)


def test_buffers_that_a_refused_step_put_in_are_gone():
    model = spmd.to_device(nn.BatchNorm1d(16))
    spmd.mark_sharding(model.weight, MESH, (None,))
    spmd.mark_sharding(model.bias, MESH, (None,))
    mean = model.running_mean

    def step(batch: torch.Tensor) -> float:
        model(batch)
        model.running_mean = model.running_mean * 2
        model.register_buffer("late", batch.mean(0))
        return batch.sum().item()

    with pytest.raises(HostReadError):
        spmd.compile_step(step, model=model)(batches(1)[0])
    assert set(dict(model.named_buffers())) == {
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }
    assert model.running_mean is mean and mean.sum().item() == 0
    assert model.num_batches_tracked.item() == 0
