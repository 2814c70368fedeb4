import weakref

import pytest
import torch
from torch import nn

import spmd
from spmd import Mesh, Plan
from spmd._plans.module import named_tensors, resolve_plan, tie_again, tied_names
from tests.on_device import as_tiles, constraints, on_device, piece_shapes, sync

FLAT = Mesh({"fsdp": 8})
MESH = Mesh({"replica": 2, "fsdp": 4})


class Tied(nn.Module):
    """An embedding and a head that share a weight, and a shared buffer."""

    def __init__(self, vocab: int = 16, dim: int = 8) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocab, dim)
        self.up = nn.Linear(dim, dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.lm_head.weight = self.wte.weight
        self.register_buffer("scale", torch.ones(dim))
        self.up.register_buffer("scale", self.scale, persistent=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.lm_head(self.up(self.wte(ids)) * self.scale)


# to_device


def test_everything_is_moved_and_the_module_comes_back():
    model = Tied()
    before = {name: t.clone() for name, t in named_tensors(model)}
    assert spmd.to_device(model) is model
    for name, tensor in named_tensors(model):
        assert tensor.device.type == "xla"
        assert torch.equal(tensor.cpu(), before[name])


def test_parameters_keep_their_identity_and_ties():
    model = Tied()
    weight = model.wte.weight
    spmd.to_device(model)
    assert model.wte.weight is model.lm_head.weight is weight
    assert isinstance(weight, nn.Parameter) and weight.requires_grad
    assert model.scale is model.up.scale


def test_nothing_is_uploaded_whole_before_it_is_split():
    model = spmd.to_device(nn.Linear(8, 16))
    spmd.mark_sharding(model.weight, FLAT, ("fsdp", None))
    assert piece_shapes(model.weight) == [(2, 8)] * 8


def test_an_optimizer_made_before_the_move_still_trains():
    model = Tied()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    spmd.to_device(model)
    before = {name: p.detach().cpu() for name, p in model.named_parameters()}
    ids = torch.arange(16).to("xla")
    model(ids).square().mean().backward()
    optimizer.step()
    sync()
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter.detach().cpu(), before[name]), name


def test_gradients_and_flags_are_moved_too():
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    model.weight.note = "kept"
    model(torch.ones(1, 2)).sum().backward()
    gradient = model.weight.grad.clone()
    spmd.to_device(model)
    assert model.weight.grad.device.type == "xla"
    assert torch.equal(model.weight.grad.cpu(), gradient)
    assert not model.bias.requires_grad and model.bias.grad is None
    assert model.weight.note == "kept"


def test_hooks_keep_working():
    model, hits = nn.Linear(2, 2), []
    model.weight.register_hook(lambda g: hits.append("hook"))
    model.weight.register_post_accumulate_grad_hook(lambda p: hits.append("post"))
    spmd.to_device(model)
    model(on_device(1, 2)).sum().backward()
    assert hits == ["hook", "post"]


def test_what_is_there_already_is_left_alone():
    model = spmd.to_device(Tied())
    spmd.mark_sharding(model.up.weight, FLAT, ("fsdp", None))
    held = [t for _, t in named_tensors(model)]
    spmd.to_device(model)
    assert all(a is b for (_, a), b in zip(named_tensors(model), held, strict=True))
    assert spmd.get_sharding(model.up.weight).spec == ("fsdp", None)


def test_a_half_moved_module_is_completed():
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[0].to("xla")
    spmd.to_device(model)
    assert {p.device.type for p in model.parameters()} == {"xla"}


def test_a_module_without_parameters():
    assert isinstance(spmd.to_device(nn.ReLU()), nn.ReLU)


def test_a_meta_parameter_has_no_values():
    with torch.device("meta"):
        model = Tied()
    with pytest.raises(ValueError, match=r"to_device: wte\.weight \[16, 8\] is on the"):
        spmd.to_device(model)


def test_weak_references_and_a_subclass_are_kept():
    class Special(nn.Parameter):
        pass

    model = nn.Linear(2, 2)
    model.weight = Special(torch.ones(2, 2))
    reference = weakref.ref(model.weight)
    spmd.to_device(model)
    assert reference() is model.weight and type(model.weight) is Special
    assert model.weight.device.type == "xla" and model.weight.requires_grad


def test_a_recurrent_module_which_keeps_weak_references():
    model = nn.LSTM(4, 8, batch_first=True)
    x = torch.arange(24.0).reshape(2, 3, 4)
    with torch.no_grad():
        want, _ = model(x)
    spmd.to_device(model)
    torch.testing.assert_close(model(x.to("xla"))[0].cpu(), want)


def test_a_parameter_of_a_loss_that_is_alive():
    model = nn.Linear(2, 2, bias=False)
    loss = model(torch.ones(1, 2, requires_grad=True)).sum()
    model.weight.grad = torch.ones(2, 2)
    with pytest.raises(RuntimeError, match=r"to_device: weight \[2, 2\] cannot be mo"):
        spmd.to_device(model)
    assert model.weight.device.type == "cpu" and model.weight.grad is not None
    del loss
    spmd.to_device(model)
    assert model.weight.device.type == "xla"


# Ties


def test_ties_are_found_and_made_again():
    model = Tied()
    ties = tied_names(model)
    assert ties == [("wte.weight", "lm_head.weight")]
    model.lm_head.weight = nn.Parameter(torch.zeros(16, 8))
    tie_again(model, ties)
    assert model.lm_head.weight is model.wte.weight


# shard_module


def plan() -> Plan:
    return Plan(
        {
            "wte.weight": ("fsdp", None),
            "up.weight": ("fsdp", "replica"),
            "up.bias": (None,),
            "scale": ("fsdp",),
            "up": (("replica", "fsdp"), None),
        }
    )


def test_parameters_buffers_and_outputs_get_their_specs():
    model = spmd.to_device(Tied())
    assert spmd.shard_module(model, MESH, plan()) is model
    assert piece_shapes(model.wte.weight) == [(4, 8)] * 8
    assert piece_shapes(model.up.weight) == [(2, 4)] * 8
    assert piece_shapes(model.scale) == [(2,)] * 8
    out = model.up(on_device(16, 8))
    assert spmd.get_sharding(out).spec == (("replica", "fsdp"), None)
    assert constraints(out) == [as_tiles(MESH, (("replica", "fsdp"), None))]
    assert spmd.get_sharding(model.up.bias).spec == (None,)


def test_a_meta_module_is_planned_for_a_pod():
    with torch.device("meta"):
        model = Tied(vocab=1024)
    spmd.shard_module(model, Mesh({"fsdp": 8, "replica": 8}), plan())
    assert spmd.get_sharding(model.wte.weight).spec == ("fsdp", None)


def test_a_plan_may_call_a_tied_weight_by_either_name():
    for name in ("wte.weight", "lm_head.weight"):
        model = spmd.to_device(Tied())
        chosen = Plan({name: ("fsdp", None), "up.weight": (None, None)}) | Plan(
            {"up.bias": (None,)}, name="rest"
        )
        spmd.shard_module(model, FLAT, chosen)
        assert spmd.get_sharding(model.wte.weight).spec == ("fsdp", None)
        rows = resolve_plan(model, FLAT, chosen).parameters
        weights = [r.name for r in rows if r.name.endswith(("wte.weight", "d.weight"))]
        assert weights == [name]


def test_two_specs_for_a_tied_weight_are_refused():
    model = spmd.to_device(Tied())
    both = Plan({"wte.weight": ("fsdp", None), "lm_head.weight": (None, "fsdp")})
    with pytest.raises(ValueError, match=r"lm_head\.weight \[16, 8\] is already split"):
        spmd.shard_module(model, FLAT, both)


def test_what_no_pattern_covers_is_named_in_a_warning():
    model = spmd.to_device(Tied())
    text = (
        r"2 parameters \(288 bytes\) match no pattern and stay whole on every device: "
        r"up\.weight, up\.bias"
    )
    with pytest.warns(UserWarning, match=text) as caught:
        spmd.shard_module(model, FLAT, Plan({"wte.weight": ("fsdp", None)}))
    assert caught[0].filename == __file__


def test_a_model_on_the_cpu_is_refused():
    with pytest.raises(
        ValueError, match=r"wte\.weight \[16, 8\] is still on cpu; call"
    ):
        spmd.shard_module(Tied(), FLAT, plan())


def test_a_pattern_that_matches_nothing_is_refused_before_anything_is_split():
    model = spmd.to_device(Tied())
    wrong = Plan({"wte.weight": ("fsdp", None), "up.wieght": ("fsdp", None)})
    with pytest.raises(ValueError, match=r"'up\.wieght' matches no .*up\.weight"):
        spmd.shard_module(model, FLAT, wrong)
    assert spmd.get_sharding(model.wte.weight) is None


def test_a_dim_that_does_not_divide_is_refused_when_strict():
    model = spmd.to_device(nn.Linear(4, 9, bias=False))
    with pytest.raises(ValueError, match=r"'weight' \[9, 4\]: dim 0 of size 9"):
        spmd.shard_module(model, FLAT, Plan({"weight": ("fsdp", None)}), strict=True)
