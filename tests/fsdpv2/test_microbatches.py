from collections import Counter

import pytest
import torch

import profiling
import spmd
from fsdpv2 import FSDPv2, MixedPrecision
from fsdpv2._microbatches import microbatches, over_batch
from spmd import Annotation, Mesh
from tests.fsdpv2.layers import (
    FLAT,
    check_close,
    device_ids,
    gradients,
    ids,
    loss_of,
    stack,
)
from tests.on_device import sync

MESH = Mesh({"replica": 2, "fsdp": 4})
TENSOR = Mesh({"replica": 2, "fsdp": 2, "tensor": 2})
AXES = ("replica", "fsdp")
OVER_ALL = ("fsdp", "replica")
PLAN = spmd.Plan(
    {
        "**.up.weight": ("tensor", "fsdp"),
        "**.up.bias": ("tensor",),
        "**.down.weight": ("fsdp", "tensor"),
        "**.down.bias": (None,),
        "**.norm.*": (None,),
        "embed.weight": (None, "fsdp"),
        "head.weight": ("fsdp", None),
    },
    inputs={"**.down": (AXES, None, "tensor")},
)


def test_each_device_splits_the_rows_it_has():
    rows = spmd.shard_batch(torch.arange(32).reshape(32, 1), MESH)
    batch = {"x": rows, "scale": torch.tensor(2.0), "note": "text"}
    first, second = microbatches(batch, 2, MESH, axes=AXES)
    wanted = torch.arange(32).reshape(8, 2, 2)
    assert first["x"].cpu().flatten().tolist() == wanted[:, 0].flatten().tolist()
    assert second["x"].cpu().flatten().tolist() == wanted[:, 1].flatten().tolist()
    assert first["note"] == "text" and first["scale"] is batch["scale"]
    assert spmd.get_sharding(first["x"]).spec == (AXES, None)


def test_accumulated_gradients_are_the_big_batchs():
    model = FSDPv2(stack(), FLAT, min_shard_elements=1)

    def accumulated(model, batch):
        losses = [loss_of(model, m) / 2 for m in model.microbatches(batch, 2)]
        return losses[0] + losses[1]

    got = gradients(model, device_ids(), accumulated)
    check_close(got, gradients(stack(), ids()))


@pytest.mark.parametrize("precision", [None, MixedPrecision(torch.float32)])
@pytest.mark.parametrize(("mesh", "plan"), [(MESH, None), (TENSOR, PLAN)])
def test_with_copies_they_are_the_big_batchs(mesh, plan, precision):
    model = FSDPv2(
        stack(), mesh, min_shard_elements=1, plan=plan, mixed_precision=precision
    )
    batch = device_ids(mesh=mesh)
    losses = []
    for micro in model.microbatches(batch, 2, across_copies=True):
        loss = loss_of(model, micro) / 2
        loss.backward()
        losses.append(loss.detach())
    sync()
    got = {n: p.grad.cpu() for n, p in model.named_parameters()}
    check_close({"loss": sum(losses).cpu(), **got}, gradients(stack(), ids()))


@pytest.mark.parametrize(
    ("mesh", "spec", "shape", "wanted"),
    [
        (MESH, ("fsdp", None), (16, 4), (OVER_ALL, None)),
        (MESH, (None, "fsdp"), (16, 12), (None, "fsdp")),  # does not divide
        (MESH, ("fsdp",), (16,), ("fsdp",)),
        (MESH, (None, None), (16, 16), (None, None)),
        (MESH, (OVER_ALL, None), (16, 4), (OVER_ALL, None)),
        (FLAT, ("fsdp", None), (16, 4), ("fsdp", None)),
        (TENSOR, ("tensor", "fsdp"), (16, 4), ("tensor", OVER_ALL)),
        (TENSOR, ("tensor", None), (16, 4), ("tensor", None)),
    ],
)
def test_a_gradient_over_all_axes_of_the_batch(mesh, spec, shape, wanted):
    axes = tuple(a for a in AXES if a in mesh.sizes)
    assert over_batch(Annotation(mesh, spec), shape, axes) == wanted


def head_gradient(model, batch, mesh=MESH):
    """How the head's gradient is split after a backward pass."""
    loss_of(model, batch).backward()
    return spmd.get_sharding(model.head.weight.grad, mesh).spec


def test_only_steps_that_ask_for_it_are_marked_across_copies():
    model = FSDPv2(stack(), MESH, min_shard_elements=1)
    batch, narrow, wide = device_ids(), ("fsdp", None), (OVER_ALL, None)
    for micro in (batch, *model.microbatches(batch, 2)):
        assert head_gradient(model, micro) == narrow
    model.zero_grad()
    for _ in range(2):
        for micro in model.microbatches(batch, 2, across_copies=True):
            with torch.no_grad():
                model(micro)  # an evaluation in between is no microbatch
            assert head_gradient(model, micro) == wide
        loss_of(model, batch).backward()  # nor are they over before they are zeroed
        assert model._awaited == -1
        model.zero_grad()
    assert head_gradient(model, batch) == narrow
    model.zero_grad()
    model.microbatches(batch, 2, across_copies=True)
    (one,) = model.microbatches(batch, 1, across_copies=True)
    assert head_gradient(model, one) == narrow


def reduced(mesh, target, num_microbatches, across_copies=False):
    """How often each matrix's gradient is reduced over fsdp, and all bytes for it."""
    with spmd.meta_parameters():
        model = stack(width=256)
    model = FSDPv2(model, mesh, mixed_precision=MixedPrecision())
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch):
        for micro in model.microbatches(
            batch, num_microbatches, across_copies=across_copies
        ):
            (loss_of(model, micro) / num_microbatches).backward()
        optimizer.step()
        optimizer.zero_grad()

    batch = torch.zeros(256, 64, dtype=torch.int64)
    program = spmd.trace(step, batch, model=model, optimizer=optimizer)
    matrices = {n for n, p in model.named_parameters() if p.ndim == 2}
    found = [
        (m.tensor, m.wire_bytes)
        for c in profiling.compile(program, target).collectives
        if c.role == "gradient reduction" and "fsdp" in c.axes
        for m in c.moved
        if m.tensor in matrices
    ]
    assert {t for t, _ in found} == matrices
    return Counter(t for t, _ in found), sum(n for _, n in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mesh", "target", "across_copies"),
    [
        (MESH, "h100:1x8", True),
        (Mesh.hybrid(ici={"fsdp": 8}, dcn={"replica": 2}), "h100:2x8", True),
        (Mesh.hybrid(ici={"fsdp": 4}, dcn={"replica": 2}), "v5e:2x2*2", False),
    ],
    ids=["one-host", "two-hosts", "two-slices"],
)
def test_with_copies_each_gradient_is_reduced_once(mesh, target, across_copies):
    one, of_one = reduced(mesh, target, 1)
    four, of_four = reduced(mesh, target, 4, across_copies)
    assert set(one.values()) == {1} and four == one
    assert of_four < 1.2 * of_one  # 15/16 of it where it was 7/8


def test_rows_that_do_not_divide():
    text = r"microbatches: batch\['x'\] \[8, 2\]: 8 rows, which 2 .*a multiple of 16"
    with pytest.raises(ValueError, match=text):
        microbatches({"x": torch.ones(8, 2)}, 2, MESH, axes=AXES)
