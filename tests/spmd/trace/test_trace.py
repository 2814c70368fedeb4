import gc
import re

import numpy as np
import pytest
import torch
import torch_xla.debug.metrics as metrics
from torch import nn

import spmd
from fsdpv2 import FSDPv2
from spmd import CaptureError, HostReadError, Mesh, Program
from spmd._program.stablehlo import module_text
from tests.on_device import on_device, sync
from tests.spmd import tracing
from tests.spmd.tracing import (
    DIM,
    MESH,
    ROWS,
    SEQ,
    adamw,
    batch_of,
    by_hand,
    by_plan,
    described,
    loss_of,
    net,
    step_of,
    traced,
    wrapped,
)
from tests.spmd.training import check_equal, run, run_lazily, simple, state_of

BOTH = Mesh({"fsdp": 4, "tensor": 2})
POD = Mesh({"fsdp": 512, "tensor": 8})
SLICES = Mesh.hybrid(ici={"fsdp": 256}, dcn={"replica": 16})


def names(program, role):
    return [v.name for v in program.inputs if v.role == role]


# Where the data is does not matter


@pytest.fixture(scope="module")
def reference():
    return traced(wrapped("meta"))


@pytest.mark.parametrize("where", ["xla", "cpu", "meta"])
def test_the_same_program_wherever_the_model_is(where, reference):
    assert traced(wrapped(where)) == reference


@pytest.mark.parametrize("where", ["xla", "cpu", "meta"])
def test_models_without_annotations(where):
    program = traced(net(where), mesh=MESH)
    assert program == traced(net("meta"), mesh=MESH)
    assert all(v.spec is None for v in program.inputs if v.role == "parameter")


@pytest.mark.parametrize("where", ["xla", "cpu"])
def test_with_state_of_its_own(where, reference):
    model = wrapped(where)
    optimizer = adamw(model)
    step = step_of(model, optimizer)
    step(spmd.shard_batch(batch_of(), MESH))
    sync()
    program = spmd.trace(step, described(), model=model, optimizer=optimizer)
    assert program == reference


def test_cpu_models_with_state_of_their_own():
    model = net("cpu")
    optimizer = adamw(model)
    step = step_of(model, optimizer)
    step(batch_of())
    program = spmd.trace(step, described(), model=model, optimizer=optimizer, mesh=MESH)
    assert program == traced(net("meta"), mesh=MESH)


@pytest.mark.parametrize(
    "batch",
    [
        batch_of(),
        {n: t.numpy() for n, t in batch_of().items()},
        {n: t.to("meta") for n, t in batch_of().items()},
    ],
    ids=["cpu", "numpy", "meta"],
)
def test_the_same_program_wherever_the_batch_is(batch, reference):
    assert traced(wrapped(), batch) == reference


def test_batches_on_the_devices(reference):
    assert traced(wrapped(), spmd.shard_batch(batch_of(), MESH)) == reference
    moved = {n: t.to("xla") for n, t in batch_of().items()}
    assert traced(wrapped(), moved) == reference


@pytest.mark.parametrize("mesh", [POD, SLICES], ids=repr)
def test_meshes_of_any_size(mesh):
    program = traced(wrapped(mesh=mesh), described(mesh.size))
    assert program.mesh == mesh
    assert program.num_devices == 4096
    text = module_text(program.module)
    assert "<=[4096]" in text or "<=[16,256]" in text or "<=[512,8]" in text
    assert max(map(len, text.splitlines())) < 20_000  # no list of 4096 devices


def test_a_model_larger_than_any_memory():
    with spmd.meta_parameters():
        model = nn.Linear(2**20, 2**18, bias=False)
    model = FSDPv2(model, POD)
    optimizer = adamw(model)

    def step(x):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x = torch.empty(4096, 2**20, device="meta")
    program = spmd.trace(step, x, model=model, optimizer=optimizer)
    assert program.inputs[-1].size_bytes >= 0
    assert sum(v.size_bytes for v in program.inputs) > 3 * 2**40


def test_nothing_is_executed():
    names = ("CompileTime", "ExecuteTime", "ExecuteReplicatedTime")

    def counts():
        return [metrics.metric_data(n) and metrics.metric_data(n)[0] for n in names]

    model = wrapped("xla")
    sync()
    before = counts()
    traced(model)
    assert counts() == before


def test_only_scalars_are_kept(reference):
    sizes = {n: a.size for n, a in reference.constants.items()}
    assert sizes.pop("scale") == DIM
    assert set(sizes.values()) == {1}
    assert len(sizes) < 16


# What the program says


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


# Everything is as it was


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
    assert names(traced_once, "optimizer")
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


def training(num=1):
    torch.manual_seed(0)
    model = wrapped("xla", dropout=0.2)
    made = simple(model, adamw(model))
    made.step = step_of(model, made.optimizer)
    made.batches = [spmd.shard_batch(batch_of(i), MESH) for i in range(4)]
    return made


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


def torch_xla_seed(seed):
    from spmd._torch_xla import graph as torch_xla_graph

    torch_xla_graph.set_seed(seed)


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


# What is refused


def test_not_callable():
    with pytest.raises(TypeError, match="trace: 3 is not callable"):
        spmd.trace(3)


def test_no_mesh():
    with pytest.raises(ValueError, match=r"no mesh: .* Give mesh=.*FSDPv2"):
        spmd.trace(lambda x: x * 2, torch.ones(8))
    with pytest.raises(ValueError, match="no mesh"):
        spmd.trace(lambda x: x * 2, torch.ones(8), model=net())


def test_batches_that_do_not_divide():
    with pytest.raises(ValueError, match=r"7"):
        traced(wrapped(), described(7))


def test_dtypes_torch_lacks():
    class Described:
        shape, dtype = (8,), np.dtype("datetime64[s]")

    with pytest.raises(TypeError, match=r"trace: .*torch has no dtype datetime64"):
        spmd.trace(lambda x: x, Described(), mesh=MESH)


def test_batches_that_nobody_splits_are_named():
    mesh = Mesh({"fsdp": 8})
    batch = {**described(), "table": np.zeros((3, DIM), np.float32)}
    with pytest.warns(UserWarning, match=r"table.* \[3, 16\]"):
        spmd.trace(
            lambda batch: batch["ids"].sum() + batch["table"].sum(), batch, mesh=mesh
        )


def test_tensors_from_elsewhere():
    table = on_device(8, 8)
    with pytest.raises(CaptureError, match=r"none of its inputs: table.*\[8, 8\]"):
        spmd.trace(lambda x: x + table, torch.ones(8, 8), mesh=MESH)


def test_large_constants_made_inside():
    def step(x):
        return x + torch.tensor([1.0] * 8, device=x.device)

    with pytest.raises(CaptureError, match=r"none of its inputs"):
        spmd.trace(step, torch.ones(8, 8), mesh=MESH)


def test_tensors_on_the_host():
    table = torch.ones(8, 8)
    with pytest.raises(CaptureError, match=r"none of its inputs.*\[8, 8\]"):
        spmd.trace(lambda x: x + table, torch.ones(8, 8), mesh=MESH)


def test_host_reads():
    model = wrapped()

    def step(batch):
        loss = loss_of(model, batch)
        if loss.item() > 3:
            loss = loss * 2
        return loss

    with pytest.raises(HostReadError, match=r"test_trace.py:\d+ in step"):
        spmd.trace(step, described(), model=model)


class Custom(torch.optim.Optimizer):
    """Makes its state inside the step, as most optimizers outside torch do."""

    def __init__(self, params, lr=0.1):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["average"] = torch.zeros_like(parameter)
                state["average"].lerp_(parameter.grad, 0.1)
                parameter.sub_(state["average"] * group["lr"])


def test_optimizers_that_make_their_state_in_the_step():
    model = wrapped()
    optimizer = Custom(model.parameters())
    program = spmd.trace(
        step_of(model, optimizer), described(), model=model, optimizer=optimizer
    )
    assert set(names(program, "optimizer")) == {
        f"optimizer.average[{n}]" for n, _ in net().named_parameters()
    }
    assert not optimizer.state


# The fingerprint


def changed_spec():
    model = net()
    for parameter in model.parameters():
        spmd.mark_sharding(parameter, MESH, (None,) * parameter.ndim)
    return traced(model)


def changed_op():
    model = wrapped()
    model.layers[0].drop = nn.ReLU()
    return traced(model)


def changed_rate():
    model = wrapped()
    optimizer = adamw(model, weight_decay=0.5)
    return spmd.trace(
        step_of(model, optimizer), described(), model=model, optimizer=optimizer
    )


CHANGES = {
    "spec": changed_spec,
    "mesh": lambda: traced(wrapped(mesh=Mesh({"fsdp": 4}))),
    "shape": lambda: traced(wrapped(), described(2 * ROWS)),
    "dtype": lambda: traced(wrapped().bfloat16()),
    "operation": changed_op,
    "number": changed_rate,
    "mode": lambda: traced(wrapped(dropout=0.1)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_other_programs_have_other_fingerprints(change, reference):
    program = CHANGES[change]()
    assert program.fingerprint != reference.fingerprint
    assert program.fingerprint == CHANGES[change]().fingerprint


def test_names_are_no_part_of_the_fingerprint(reference):
    program = traced(wrapped(), name="other")
    assert program.name == "other"
    assert program.fingerprint == reference.fingerprint
    assert "module @other" in module_text(program.module)


SCRIPT = """
import sys
{padding}
sys.path.insert(0, sys.argv[1])
from tests.spmd.tracing import traced, wrapped, described, loss_of, net
import spmd

if {noise}:  # other work first
    import torch
    spmd.init()
    (torch.ones(3).to("xla") * 2).sum().item()
    traced(net("xla"), mesh=spmd.Mesh({{"fsdp": 16}}), batch=described(16))
model = wrapped()

def step(batch):
    loss = loss_of(model, batch)
    loss.backward()
    return loss * 2

print(traced(model).fingerprint)
print(spmd.trace(step, described(), model=model).fingerprint)
"""


def test_fingerprints_elsewhere(run_script, reference, tmp_path, request):
    root = str(request.config.rootpath)
    first = run_script(SCRIPT.format(padding="", noise=False), root)
    assert first.rc == 0, first.stderr
    padding = "# another line\n" * 9
    second = run_script(SCRIPT.format(padding=padding, noise=True), root)
    assert second.rc == 0, second.stderr
    assert first.stdout.split() == second.stdout.split()
    assert first.stdout.split()[0] == reference.fingerprint


# It runs


def test_the_program_runs_with_the_same_losses(tmp_path):
    torch.manual_seed(0)
    made = training()
    optimizer = spmd.prime_optimizer(made.optimizer)
    sync()
    program = traced(made.model).save(tmp_path / "step.spmd")
    torch_xla_seed(7)
    runner = Program.load(program).runner("cpu")
    state = dict(made.model.state_dict())
    for name, parameter in made.model.named_parameters():
        for key, value in optimizer.state[parameter].items():
            state[f"optimizer.{key}[{name}]"] = value
    known = {v.name for v in runner.program.inputs}
    host = {n: t.detach().cpu().clone() for n, t in state.items() if n in known}
    runner.put({**host, "rng": np.int64(7)}, partial=True)
    ours = [
        runner.step({"batch": batch_of(i % 4)}, learning_rate=0.01)["output"].item()
        for i in range(5)
    ]
    theirs = [float(loss[0]) for loss in run_lazily(made, 5)]
    assert ours == pytest.approx(theirs, abs=1e-5)
    assert ours[-1] < ours[0]
    kept = runner.state_dict()
    for name, parameter in made.model.named_parameters():
        torch.testing.assert_close(
            kept[name], parameter.detach().cpu(), atol=1e-4, rtol=0
        )


def test_other_meshes_than_the_models():
    with pytest.raises(
        ValueError,
        match=r"embed.weight \[32, 16\] is split on Mesh\(fsdp=8\), but the program is "
        r"for Mesh\(fsdp=16\)",
    ):
        traced(wrapped(), described(16), mesh=Mesh({"fsdp": 16}))
    x = torch.ones(8, 2, device="meta")
    spmd.mark_sharding(x, Mesh({"data": 4}), ("data", None))
    with pytest.raises(ValueError, match=r"x \[8, 2\] is split on Mesh\(data=4\)"):
        spmd.trace(lambda x: x * 2, x, mesh=MESH)

    def step(x):
        return spmd.mark_sharding(x * 2, POD, (None, None), name="double")

    with pytest.raises(ValueError, match=r"double \[8, 2\] is split on .*fsdp=512"):
        spmd.trace(step, torch.ones(8, 2), mesh=MESH)


def test_another_view_of_the_mesh_inside():
    experts = Mesh({"expert": 8})

    def step(x):
        return spmd.mark_sharding(x * 2, experts, ("expert", None)) + 1

    program = spmd.trace(step, torch.ones(8, 2), mesh=MESH)
    assert program.annotations == ()
    assert "[8,1]" in module_text(program.module)


def test_meshes_of_torch_xla():
    import torch_xla.distributed.spmd as xs

    theirs = xs.Mesh(np.arange(8), (8,), ("fsdp",))
    assert traced(net(), mesh=theirs) == traced(net(), mesh=MESH)


@pytest.mark.parametrize("step", [lambda x: None, lambda x: x, lambda x: 3])
def test_steps_that_compute_nothing(step):
    with pytest.raises(ValueError, match=r"neither returns a tensor that it computes"):
        spmd.trace(step, torch.ones(8), mesh=MESH)


# What may be in a step


OPTIMIZERS = {
    "SGD": {"momentum": 0.9},
    "Adam": {},
    "Muon": {},
    "RMSprop": {},
    "RAdam": {},
    "NAdam": {},
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers(kind):
    model = wrapped()
    parameters = [p for p in model.parameters() if p.ndim == 2]
    optimizer = getattr(torch.optim, kind)(parameters, lr=0.1, **OPTIMIZERS[kind])
    program = spmd.trace(
        step_of(model, optimizer), described(), model=model, optimizer=optimizer
    )
    state = names(program, "optimizer")
    updated = {v.name for v in program.outputs if v.updates is not None}
    assert set(state) <= updated
    assert len(state) % 5 == 0 and state
    assert names(program, "learning_rate")
    assert not optimizer.state


def test_scanned_layers(monkeypatch):
    from torch_xla.experimental import scan
    from torch_xla.experimental.scan_layers import scan_layers

    # torch_xla's own needs torchax.
    monkeypatch.setattr(scan, "shard_as", lambda *tensors: tensors)

    class Scanned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(tracing.Mlp() for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scan_layers(self.layers, x, is_layer_pure=True)

    with spmd.meta_parameters():
        model = FSDPv2(Scanned(), MESH, min_shard_elements=1)
    optimizer = adamw(model)

    def step(x):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x = torch.ones(8, DIM)
    program = spmd.trace(step, x, model=model, optimizer=optimizer)
    assert len(names(program, "parameter")) == 9
    assert max(a.size for a in program.constants.values()) == 1
    assert "stablehlo.while" in module_text(program.module)
    places = {
        (n.partition("/")[0], file) for n, file, _ in tracing.locations(program, "dot")
    }
    assert places == {("forward", __file__), ("backward", __file__)}
