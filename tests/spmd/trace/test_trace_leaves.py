"""A trace leaves everything as it was."""

import gc

import pytest
import torch

import spmd
from tests.on_device import sync
from tests.spmd.tracing import (
    MESH,
    adamw,
    batch_of,
    described,
    loss_of,
    net,
    step_of,
    torch_xla_seed,
    traced,
    training,
    wrapped,
)
from tests.spmd.training import check_equal, run, run_lazily, state_of


def watched(model, optimizer):
    """What a trace must not touch, with identities and values."""
    found = {"grad enabled": torch.is_grad_enabled(), "seed": torch.initial_seed()}
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, tensor in tensors.items():
        found[name] = (
            id(tensor),
            tensor.device,
            tensor.requires_grad,
            tensor._version,
            type(tensor),
            dict(vars(tensor)),
            tensor._backward_hooks and dict(tensor._backward_hooks),
            id(tensor.grad),
        )
    found["modes"] = [m.training for m in model.modules()]
    found["hooks"] = [
        [list(hooks) for n, hooks in vars(m).items() if n.endswith("_hooks")]
        for m in model.modules()
    ]
    found["groups"] = [
        {k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups
    ]
    for parameter, table in optimizer.state.items():
        for key, value in table.items():
            found[f"{id(parameter)}.{key}"] = (id(value), value)
    return found


def values_of(model, optimizer):
    tensors = [*model.parameters(), *model.buffers()]
    tensors += [p.grad for p in model.parameters() if p.grad is not None]
    tensors += [v for t in optimizer.state.values() for v in t.values()]
    return [t.detach().cpu().clone() for t in tensors]


@pytest.mark.parametrize("fails", ["never", "forward", "backward", "update", "end"])
@pytest.mark.parametrize("gradients", [True, False], ids=["grads", "none"])
@pytest.mark.parametrize("where", ["xla", "cpu"])
def test_a_trace_leaves_no_trace(where, gradients, fails):
    model = wrapped("xla") if where == "xla" else net("cpu")
    optimizer = adamw(model, lr=0.1)

    def run_once(batch, fails="never"):
        if fails == "forward":
            raise ZeroDivisionError
        loss = loss_of(model, batch)
        loss.backward()
        if fails == "backward":
            raise ZeroDivisionError
        optimizer.step()
        if fails == "update":
            raise ZeroDivisionError
        optimizer.zero_grad()
        if fails == "end":
            raise ZeroDivisionError
        return loss

    batch = batch_of()
    batch = spmd.shard_batch(batch, MESH) if where == "xla" else batch
    run_once(batch)
    if gradients:
        loss_of(model, batch).backward()
    if where == "xla":
        sync()
    before, values = watched(model, optimizer), values_of(model, optimizer)
    options = {"model": model, "optimizer": optimizer, "mesh": MESH}
    if fails == "never":
        spmd.trace(run_once, batch, **options)
    else:
        with pytest.raises(ZeroDivisionError):
            spmd.trace(run_once, batch, fails=fails, **options)
    assert watched(model, optimizer) == before
    check_equal(values_of(model, optimizer), values)
    run_once(batch)
    if where == "xla":
        sync()
    assert all(v.isfinite().all() for v in values_of(model, optimizer))


def test_an_optimizer_without_state_stays_so():
    model = net("cpu")
    optimizer = adamw(model)
    traced_once = spmd.trace(
        step_of(model, optimizer),
        described(),
        model=model,
        optimizer=optimizer,
        mesh=MESH,
    )
    assert any(v.role == "optimizer" for v in traced_once.inputs)
    assert not optimizer.state
    assert optimizer.param_groups[0]["capturable"] is False
    assert optimizer.param_groups[0]["lr"] == 0.01
    step_of(model, optimizer)(batch_of())


def test_a_graph_that_is_still_alive_can_go_on():
    model = net("cpu")
    loss = loss_of(model, batch_of())
    traced(model, mesh=MESH)
    loss.backward()
    expected = net("cpu")
    loss_of(expected, batch_of()).backward()
    assert torch.equal(model.embed.weight.grad, expected.embed.weight.grad)


@pytest.mark.parametrize("how", ["lazy", "compiled"])
def test_a_trace_between_steps_disturbs_nothing(how):
    results = []
    for interrupts in (False, True):
        one = training()
        spmd.prime_optimizer(one.optimizer)
        sync()
        torch_xla_seed(3)
        if how == "compiled":
            step = spmd.compile_step(one.step, model=one.model, optimizer=one.optimizer)
        history = []
        for i in range(4):
            if how == "lazy":
                history += run_lazily(one, 1, first=i)
            else:
                history += run(one, step, 1, first=i)
            if interrupts and i in (0, 2):
                spmd.trace(
                    one.step, described(), model=one.model, optimizer=one.optimizer
                )
            if interrupts and i == 1:
                with pytest.raises(ValueError, match="xyz"):
                    spmd.trace(
                        fails_after(one),
                        described(),
                        model=one.model,
                        optimizer=one.optimizer,
                    )
        results.append((history, state_of(one)))
    check_equal(results[1][0], results[0][0])
    check_equal(results[1][1], results[0][1])


def fails_after(one):
    def step(batch):
        one.step(batch)
        raise ValueError("xyz")

    return step


def test_memory_is_given_back():
    model = wrapped()
    traced(model)
    gc.collect()
    before = sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())
    for _ in range(2):
        traced(model)
    gc.collect()
    after = sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects())
    assert after <= before
