"""What a traced step says of its arguments and results."""

import re

import numpy as np
import pytest
import torch
from torch import nn

import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh
from spmd._program.stablehlo import module_text
from tests.spmd import tracing
from tests.spmd.tracing import (
    DIM,
    MESH,
    ROWS,
    SEQ,
    adamw,
    by_hand,
    by_plan,
    described,
    loss_of,
    net,
    traced,
    wrapped,
)

BOTH = Mesh({"fsdp": 4, "tensor": 2})


@pytest.fixture(scope="module")
def reference():
    return traced(wrapped("meta"))


def names(program, role):
    return [v.name for v in program.inputs if v.role == role]


def test_inputs(reference):
    by_name = {v.name: v for v in reference.inputs}
    parameters = {n for n, _ in net().named_parameters()}
    assert set(names(reference, "parameter")) == parameters
    assert set(names(reference, "optimizer")) == {
        f"optimizer.{key}[{name}]"
        for key in ("step", "exp_avg", "exp_avg_sq")
        for name in parameters
    }
    assert set(names(reference, "input")) == {"batch.ids", "batch.labels"}
    assert names(reference, "learning_rate") == ["optimizer.lr[0]"]
    assert names(reference, "buffer") == ["scale"]
    assert not names(reference, "rng")
    weight = by_name["layers.1.up.weight"]
    assert (weight.shape, weight.dtype) == ((2 * DIM, DIM), "float32")
    assert weight.spec == ("fsdp", None)
    assert by_name["optimizer.exp_avg[layers.1.up.weight]"].spec == ("fsdp", None)
    assert by_name["optimizer.step[layers.1.up.weight]"].spec is None
    ids = by_name["batch.ids"]
    assert (ids.shape, ids.dtype) == ((ROWS, SEQ), "int64")
    assert ids.spec == ("fsdp", None)


def test_outputs_and_donation(reference):
    state = {v.name for v in reference.inputs if v.role in ("parameter", "optimizer")}
    updated = {v.name: v for v in reference.outputs if v.updates is not None}
    assert set(updated) == state
    for value in updated.values():
        before = reference.inputs[value.updates]
        assert before.name == value.name
        assert before.spec == value.spec
        assert reference.outputs[before.donated_to] is value
    others = [v for v in reference.inputs if v.donated_to is not None]
    assert len(others) == len(state)
    assert [v.name for v in reference.outputs if v.updates is None] == ["output"]


def test_shardings_of_the_arguments_are_in_the_module(reference):
    main = re.search(
        r"func.func public @main\((.*?)\) ->", module_text(reference.module)
    )
    main = main or re.search(
        r"func.func @main\((.*?)\) ->", module_text(reference.module)
    )
    said = re.findall(
        r"%arg\d+: tensor<[^>]*>(?: \{mhlo.sharding = \"(.*?)\"\})?", main[1]
    )
    wanted = reference.input_shardings
    assert len(said) == len(wanted)
    for text, sharding, value in zip(said, wanted, reference.inputs, strict=True):
        if value.spec is not None:
            assert text == str(sharding), value


def test_gradients_are_annotated(reference):
    found = tracing.locations(reference, "custom_call")
    marked = [name for name, _, _ in found if name.startswith("backward")]
    embed = [name for name in marked if name == "backward/embed/custom_sharding"]
    others = len(names(reference, "parameter")) - 1
    assert len(marked) - len(embed) == others + 1  # and of the output
    assert len(embed) == 1 + 4  # and what its lookup exchanges


def test_dropout_has_a_seed():
    program = traced(wrapped(dropout=0.1))
    assert names(program, "rng") == ["rng"]


def test_arguments_by_name():
    model = wrapped()

    def step(ids, *, labels, flag=True):
        assert flag
        return {"loss": loss_of(model, {"ids": ids, "labels": labels}), "n": 3}

    batch = described()
    program = spmd.trace(
        step, batch["ids"], labels=batch["labels"], model=model, mesh=MESH
    )
    assert set(names(program, "input")) == {"ids", "labels"}
    assert [v.name for v in program.outputs] == ["output.loss"]


def test_specs_of_the_batch():
    mesh = Mesh({"fsdp": 4, "sequence": 2})
    batch = described()
    program = traced(
        wrapped(mesh=mesh), batch, batch_spec={"ids": ("fsdp", "sequence")}
    )
    by_name = {v.name: v for v in program.inputs}
    assert by_name["batch.ids"].spec == ("fsdp", "sequence")
    assert by_name["batch.labels"].spec == ("fsdp", None)
    marked = torch.empty(ROWS, SEQ, dtype=torch.int64, device="meta")
    spmd.mark_sharding(marked, mesh, (None, "sequence"))
    program = traced(wrapped(mesh=mesh), {**batch, "ids": marked})
    by_name = {v.name: v for v in program.inputs}
    assert by_name["batch.ids"].spec == (None, "sequence")


def test_specs_of_several_arguments():
    model = wrapped()

    def step(ids, labels):
        return loss_of(model, {"ids": ids, "labels": labels})

    program = spmd.trace(
        step, *described().values(), model=model, batch_spec={"labels": None}
    )
    by_name = {v.name: v for v in program.inputs}
    assert by_name["ids"].spec == ("fsdp", None)
    assert by_name["labels"].spec == (None, None)


@pytest.mark.parametrize("where", ["xla", "meta"])
def test_models_annotated_by_hand(where):
    program = traced(by_hand(where, MESH))
    by_name = {v.name: v for v in program.inputs}
    for name, parameter in net().named_parameters():
        assert by_name[name].spec == ("fsdp", *[None] * (parameter.ndim - 1))
    assert program == traced(by_hand("meta", MESH))


@pytest.mark.parametrize("where", ["xla", "meta"])
def test_models_annotated_by_a_plan(where):
    program = traced(by_plan(where, BOTH))
    by_name = {v.name: v for v in program.inputs}
    assert by_name["layers.0.up.weight"].spec == ("tensor", "fsdp")
    assert by_name["embed.weight"].spec == ("fsdp", None)
    notes = [(n.module, n.spec) for n in program.annotations]
    assert notes == [
        (f"layers.{i}{part}", spec)
        for i in range(2)
        for part, spec in (
            (".up", ("fsdp", None, "tensor")),
            ("", ("fsdp", None, None)),
        )
    ]
    assert program == traced(by_plan("meta", BOTH))


def test_a_plan_under_the_wrapper():
    model = FSDPv2(by_plan("meta", BOTH), BOTH)
    program = traced(model)
    by_name = {v.name: v for v in program.inputs}
    assert by_name["layers.0.up.weight"].spec == ("tensor", "fsdp")
    assert program.mesh == BOTH


def test_annotations_of_torch_xla():
    import torch_xla.distributed.spmd as xs

    model = net("xla")
    theirs = xs.Mesh(np.arange(8), (8,), ("fsdp",))
    for parameter in model.parameters():
        xs.mark_sharding(parameter, theirs, ("fsdp", *[None] * (parameter.ndim - 1)))
    program = traced(model, mesh=MESH)
    assert program == traced(by_hand_whole("meta"), mesh=MESH)
    assert all(spmd.get_sharding(p) is None for p in model.parameters())


def by_hand_whole(where):
    model = net(where)
    for parameter in model.parameters():
        spmd.mark_sharding(parameter, MESH, ("fsdp", *[None] * (parameter.ndim - 1)))
    return model


def test_gradients_that_are_kept():
    model = wrapped()

    def step(batch):
        loss = loss_of(model, batch)
        loss.backward()
        return loss

    program = spmd.trace(step, described(), model=model)
    made = {v.name: v for v in program.outputs if v.role == "gradient"}
    assert set(made) == {f"grad[{n}]" for n, _ in net().named_parameters()}
    assert all("fsdp" in v.spec and v.updates is None for v in made.values())
    for parameter in model.parameters():
        parameter.grad = torch.empty_like(parameter)
    again = spmd.trace(step, described(), model=model)
    taken = {v.name: v for v in again.inputs if v.role == "gradient"}
    assert set(taken) == set(made)
    assert all("fsdp" in v.spec for v in taken.values())
    updated = [v for v in again.outputs if v.role == "gradient"]
    assert all(again.inputs[v.updates].name == v.name for v in updated)


def test_extra_tensors():
    model = wrapped()
    average = torch.zeros(2 * DIM, DIM)
    count = torch.zeros((), device="meta")

    def step(batch):
        loss = loss_of(model, batch)
        with torch.no_grad():
            average.lerp_(model.layers[0].up.weight, 0.1)
            count.add_(1)
        return loss

    extra = {"average": average, "count": count}
    program = spmd.trace(step, described(), model=model, extra=extra)
    assert set(names(program, "buffer")) == {"scale", "average", "count"}
    updated = {v.name for v in program.outputs if v.updates is not None}
    assert updated == {"average", "count"}
    assert average.device.type == "cpu" and not average.any()
    assert count.device.type == "meta"


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(DIM, DIM)
        self.norm = nn.BatchNorm1d(DIM)
        self.register_buffer("table", torch.arange(DIM) / DIM, persistent=False)
        self.again = nn.Module()
        self.again.register_buffer("table", self.table)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.up(x)) + self.table * self.again.table


def test_buffers_keep_their_values():
    with spmd.meta_parameters():
        model = Normed()
    model.norm.running_var.fill_(3)
    program = spmd.trace(
        lambda x: model(x).sum(), torch.ones(8, DIM), model=model, mesh=MESH
    )
    kept = program.constants
    assert {n for n in kept if not n.startswith("constant.")} == {
        "norm.running_mean",
        "norm.running_var",
        "norm.num_batches_tracked",
        "table",
    }
    assert (kept["norm.running_var"] == 3).all()
    assert (kept["table"] == np.arange(DIM) / DIM).all()
    updated = {v.name for v in program.outputs if v.updates is not None}
    assert updated == {n for n in kept if n.startswith("norm.")}


def test_buffers_without_values_are_named():
    with torch.device("meta"):
        model = Normed()
    with pytest.warns(
        UserWarning, match=r"4 buffers .* meta .*: table, norm.running_mean, "
    ):
        program = spmd.trace(
            lambda x: model(x).sum(), torch.ones(8, DIM), model=model, mesh=MESH
        )
    assert "table" not in program.constants


def test_results_that_are_inputs_or_state():
    model = wrapped()
    optimizer = adamw(model)

    def step(batch):
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss, "ids": batch["ids"], "w": model.layers[0].up.weight}

    program = spmd.trace(step, described(), model=model, optimizer=optimizer)
    results = [v.name for v in program.outputs if v.updates is None]
    assert results == ["output.loss"]


def test_equal_results_are_returned_once():
    model = wrapped()

    def step(batch):
        loss = loss_of(model, batch)
        return loss, loss

    program = spmd.trace(step, described(), model=model)
    assert [v.name for v in program.outputs] == ["output.0"]


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_set_to_zero(set_to_none):
    model = wrapped()
    optimizer = adamw(model)

    def step(batch):
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=set_to_none)
        return loss

    program = spmd.trace(step, described(), model=model, optimizer=optimizer)
    made = [v.name for v in program.outputs if v.role == "gradient"]
    assert len(made) == (0 if set_to_none else len(list(model.parameters())))
