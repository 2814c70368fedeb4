import copy

import pytest
import torch
from torch import nn

import profiling
import spmd
from fsdpv2 import FSDPv2, MixedPrecision
from spmd import Mesh
from spmd._torch_xla import seam
from tests.fsdpv2 import test_parity as parity
from tests.fsdpv2.decoder import Decoder
from tests.fsdpv2.layers import (
    FLAT,
    Layer,
    Stack,
    check_close,
    device_ids,
    gradients,
    ids,
    loss_of,
    stack,
)

MESH = Mesh({"replica": 2, "fsdp": 4})


def scanned(module=None, mesh=FLAT, **options):
    options.setdefault("min_shard_elements", 1)
    return FSDPv2(module or stack(num_layers=3), mesh, scan_layers=True, **options)


@pytest.mark.parametrize("mesh", [FLAT, MESH], ids=repr)
def test_gradients_are_the_unsharded_models(mesh):
    plain = stack(num_layers=3)
    model = scanned(mesh=mesh)
    assert list(model.state_dict()) == list(plain.state_dict())
    check_close(gradients(model, device_ids(mesh=mesh)), gradients(plain, ids()))


def test_attention_with_buffers_in_each_layer():
    def loss(model, batch):
        return model(batch, batch)[0]

    batch = parity.batches()[0]
    want = gradients(parity.build("decoder"), batch, loss)
    model = scanned(parity.build("decoder"))
    check_close(gradients(model, spmd.shard_batch(batch, FLAT), loss), want)


@pytest.mark.parametrize("precision", [None, MixedPrecision()])
def test_a_hugging_face_model(precision):
    def loss(model, batch):
        return model(input_ids=batch, labels=batch)[0]

    batch = parity.batches()[0]
    want = gradients(parity.build("llama"), batch, loss)
    model = scanned(parity.build("llama"), mixed_precision=precision)
    got = gradients(model, spmd.shard_batch(batch, FLAT), loss)
    check_close(got, want, rtol=1e-4 if precision is None else 0.05)


def test_a_replayed_step_trains_as_the_unsharded_model():
    def train(model, batch, run):
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)

        def step(batch):
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        step = run(step, model, optimizer)
        return [step(batch).item() for _ in range(3)]

    want = train(stack(num_layers=3), ids(), lambda step, *_: step)
    got = train(
        scanned(),
        device_ids(),
        lambda s, m, o: spmd.compile_step(s, model=m, optimizer=o),
    )
    assert got == pytest.approx(want, abs=3e-5)


def test_annotations_inside_a_layer_work():
    class Marked(Layer):
        def forward(self, x):
            y = spmd.mark_sharding(self.up(self.norm(x)), FLAT, ("fsdp", None, None))
            return x + self.down(torch.sin(y))

    def build():
        torch.manual_seed(0)
        return nn.ModuleDict({"layers": nn.Sequential(Marked(), Marked())})

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = build()["layers"]

        def forward(self, x):
            return self.layers(x)

    x = torch.rand(16, 4, 32)
    model = scanned(Whole())
    out = model(spmd.shard_batch(x, FLAT))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spmd, "mark_sharding", lambda tensor, *_: tensor)
        torch.testing.assert_close(out.detach().cpu(), Whole()(x).detach())


def test_frozen_layers_have_no_gradient():
    module = stack(num_layers=2)
    module.layers.requires_grad_(False)
    found = gradients(scanned(module), device_ids())
    assert found.keys() == {"loss", "embed.weight", "head.weight"}


def test_outside_the_model_the_list_is_what_it_was():
    model = scanned()
    assert len(list(model.layers)) == len(model.layers) == 3
    assert isinstance(model.layers, nn.ModuleList)
    assert type(model.layers[1].module) is type(list(model.layers)[1].module) is Layer
    assert len(model.layers[:2]) == 2
    x = spmd.shard_batch(torch.rand(16, 4, 32), FLAT)
    one, other = model.layers[1](x), stack(num_layers=3).layers[1](x.cpu())
    torch.testing.assert_close(one.detach().cpu(), other.detach())


def test_parameters_are_stacked_and_split_as_those_of_a_layer():
    model, plain = scanned(), FSDPv2(stack(num_layers=3), FLAT, min_shard_elements=1)
    named = dict(model.named_parameters())
    assert {n for n in named if "layers" in n} == {
        f"layers.*.{n}" for n, _ in Layer().named_parameters()
    }
    for name, parameter in plain.named_parameters():
        stacked = named.get(name.replace("layers.0.", "layers.*."))
        if stacked is not None and "layers" in name:
            assert stacked.shape == (3, *parameter.shape)
            assert spmd.get_sharding(stacked).spec == (
                None,
                *spmd.get_sharding(parameter).spec,
            )


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_is_loaded_layer_by_layer_and_stays_split(assign):
    torch.manual_seed(5)
    other = Stack(num_layers=3).state_dict()
    model = scanned()
    assert not any(model.load_state_dict(other, assign=assign))
    for name, value in model.state_dict().items():
        assert torch.equal(value.cpu(), other[name]), name
    up = model.get_parameter("layers.*.up.weight")
    assert spmd.get_sharding(up).spec == (None, "fsdp", None)
    assert spmd.HloSharding.parse(str(seam.sharding_of(up))) is not None


def test_a_copy_and_another_dtype_stay_stacked_and_split():
    want = gradients(stack(num_layers=3), ids())
    model = scanned()
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    check_close(gradients(twin, device_ids()), want)
    twin.to(torch.bfloat16)
    up = twin.get_parameter("layers.*.up.weight")
    assert up.dtype == torch.bfloat16 and up.shape == (3, 64, 32)
    assert spmd.get_sharding(up).spec == (None, "fsdp", None)


def test_a_plan_speaks_of_one_layer():
    model = scanned()
    for parameter in model.parameters():
        spmd.clear_sharding(parameter)
    plan = spmd.Plan({"layers.*.up.weight": (None, "fsdp")})
    with pytest.warns(UserWarning, match="match no pattern"):
        spmd.shard_module(model, FLAT, plan)
    up = model.get_parameter("layers.*.up.weight")
    assert spmd.get_sharding(up).spec == (None, None, "fsdp")


def test_what_a_runner_holds_is_a_state_of_the_model():
    with spmd.meta_parameters():
        module = Stack(num_layers=3)
    planned = FSDPv2(module, FLAT, min_shard_elements=1, scan_layers=True)
    program = spmd.trace(lambda x: loss_of(planned, x), ids(), model=planned)
    runner = program.runner("cpu")
    want = scanned()
    runner.put({n: p.detach().cpu() for n, p in want.named_parameters()})
    held = {n: v.torch() for n, v in runner.held().items() if n != "rng"}
    model = scanned(Stack(num_layers=3))
    model.load_state_dict(held)
    for name, value in model.state_dict().items():
        assert torch.equal(value.cpu(), want.state_dict()[name].cpu()), name


def test_a_trace_prints_no_warnings(capfd):
    model = scanned()
    spmd.trace(lambda batch: loss_of(model, batch), device_ids(), model=model)
    assert "stack_frame_id" not in capfd.readouterr().err


def compiled(num_layers):
    with spmd.meta_parameters():
        module = Decoder(dim=256, hidden=512, num_layers=num_layers, seq=64)
    model = FSDPv2(module, FLAT, scan_layers=True)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(batch):
        loss = model(batch, batch)[0]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    batch = torch.zeros(64, 64, dtype=torch.int64)
    program = spmd.trace(step, batch, model=model, optimizer=optimizer)
    return program, profiling.compile(program, "h100:1x8")


@pytest.mark.slow
def test_a_program_does_not_grow_with_depth():
    (small, first), (large, second) = compiled(4), compiled(32)
    assert len(large.inputs) == len(small.inputs)
    assert len(large.module) < 1.05 * len(small.module)
    sizes = [len(schedule.compiled.hlo) for schedule in (first, second)]
    assert sizes[1] < 1.05 * sizes[0]
    for schedule in (first, second):
        roles = {c.role for c in schedule.collectives}
        assert roles <= {"weight gather", "gradient reduction", "scalar"}
        assert len(schedule.collectives) < 10


# What cannot be scanned


def test_layers_that_are_split_differently():
    module = spmd.to_device(stack(num_layers=2))
    spmd.mark_sharding(module.layers[1].up.weight, FLAT, (None, "fsdp"))
    with pytest.raises(ValueError, match=r"layers\.1\.up\.weight is split by \(None, "):
        scanned(module)


def test_an_optimizer_that_was_made_before():
    module = stack(num_layers=2)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    scanned(module)
    with pytest.raises(ValueError, match=r"layers\.0\.norm\.weight .* was replaced"):
        optimizer.step()


def test_layers_that_share_a_weight():
    module = stack(num_layers=2)
    module.layers[1].up.weight = module.layers[0].up.weight
    with pytest.raises(ValueError, match=r"tied to layers\.0\.up\.weight; .* Untie"):
        scanned(module)


def test_a_model_without_layers():
    with pytest.raises(ValueError, match="Linear has no list of two or more equal"):
        scanned(nn.Linear(2, 2))


def test_layers_that_differ():
    module = stack(num_layers=2)
    module.layers[1].up.bias = None
    with pytest.raises(ValueError, match=r"layers\.1 has other parameters than"):
        scanned(module)


def test_layers_that_return_something_else():
    class Pair(Layer):
        def forward(self, x):
            return super().forward(x), x

    module = stack()
    module.layers = nn.ModuleList([Pair(), Pair()])
    with pytest.raises(ValueError, match=r"return what the next one takes.*Pair ret"):
        scanned(module)(device_ids())


def test_a_part_of_the_layers():
    class Some(Stack):
        def forward(self, ids):
            x = self.embed(ids)
            for layer in self.layers[:1]:
                x = layer(x)
            return x

    with pytest.raises(ValueError, match=r"runs all 2 layers in one loop, but"):
        scanned(Some())(device_ids())


def test_what_scan_does_not_keep():
    with pytest.raises(ValueError, match="so remat='selective' cannot be had"):
        scanned(remat="selective")
    assert scanned(remat="full") is not None
