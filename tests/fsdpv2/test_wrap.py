import copy
import dataclasses
import functools
import inspect
import io
import warnings
from typing import Any

import numpy as np
import pytest
import torch
import torch_xla.distributed.fsdp.wrap as theirs
import torch_xla.distributed.spmd as xs
from torch import nn
from torch.distributed.fsdp import wrap as torchs
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel,
)

import spmd
from fsdpv2 import FSDPv2, size_based_auto_wrap_policy
from spmd import Mesh
from tests.on_device import as_tiles, constraints, native, piece_shapes, split_by, sync

FLAT = Mesh({"fsdp": 8})
MESH = Mesh({"replica": 2, "fsdp": 4})
DIM = 16


class Block(nn.Module):
    def __init__(self, dim: int = DIM) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up = nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
        return x + scale * self.down(torch.relu(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self, num_layers: int = 2) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Block() for _ in range(num_layers))
        self.head = nn.Linear(DIM, 3)
        self.register_buffer("scale", torch.full((DIM,), 2.0))
        self.note = "mine"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return self.head(x * self.scale)

    def describe(self) -> str:
        return f"{self.note} {len(self.layers)}"


def model(num_layers: int = 2) -> Model:
    torch.manual_seed(0)
    return Model(num_layers)


def wrap(module: nn.Module, mesh: Mesh = FLAT, **kwargs: Any) -> FSDPv2:
    kwargs.setdefault("min_shard_elements", 1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some biases do not divide
        return FSDPv2(module, mesh, **kwargs)


def batch(rows: int = 8, mesh: Mesh = FLAT) -> torch.Tensor:
    torch.manual_seed(1)
    axes = tuple(a for a in mesh.axis_names if a in ("replica", "fsdp"))
    return spmd.mark_sharding(torch.randn(rows, DIM).to("xla"), mesh, (axes, None))


def cpu_batch(rows: int = 8) -> torch.Tensor:
    torch.manual_seed(1)
    return torch.randn(rows, DIM)


def specs(module: nn.Module) -> dict[str, Any]:
    found = {n: spmd.get_sharding(p) for n, p in module.named_parameters()}
    return {n: a and a.spec for n, a in found.items()}


def all_split(wrapped: FSDPv2) -> bool:
    """Whether torch_xla and we agree that each parameter has its spec."""
    return all(
        split_by(p, wrapped.mesh, spmd.get_sharding(p).spec)
        for p in wrapped.parameters()
    )


WHOLE_SPECS = {
    "layers.0.norm.weight": ("fsdp",),
    "layers.0.norm.bias": ("fsdp",),
    "layers.0.up.weight": ("fsdp", None),
    "layers.0.up.bias": ("fsdp",),
    "layers.0.down.weight": (None, "fsdp"),
    "layers.0.down.bias": ("fsdp",),
    "head.weight": (None, "fsdp"),
    "head.bias": (None,),
}


# Signature


def test_torch_xlas_keywords_are_all_taken():
    ours = inspect.signature(FSDPv2).parameters
    reference = inspect.signature(SpmdFullyShardedDataParallel).parameters
    assert set(reference) <= set(ours)
    for name, parameter in reference.items():
        assert ours[name].default == parameter.default
    positional = [p for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional] == ["module", "mesh"]


# Parameters


def test_parameters_are_split_with_their_pieces_on_the_devices():
    wrapped = wrap(model(1))
    assert specs(wrapped) == WHOLE_SPECS
    assert all_split(wrapped)
    assert piece_shapes(wrapped.layers[0].up.weight) == [(4, DIM)] * 8
    assert piece_shapes(wrapped.layers[0].down.weight) == [(DIM, 4)] * 8
    assert piece_shapes(wrapped.head.bias) == [(3,)] * 8


def test_small_parameters_stay_whole_by_default():
    wrapped = FSDPv2(nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 63)), FLAT)
    assert specs(wrapped) == {
        "0.weight": ("fsdp", None),  # 4096 elements
        "0.bias": (None,),
        "1.weight": (None, None),
        "1.bias": (None,),
    }


def test_min_shard_elements_reaches_nested_wrappers():
    wrapped = wrap(model(), min_shard_elements=500, auto_wrap_policy=Block)
    assert specs(wrapped)["layers.0.up.weight"] == ("fsdp", None)
    assert specs(wrapped)["layers.0.up.bias"] == (None,)


def test_a_replica_axis_does_not_split_parameters():
    wrapped = wrap(model(), MESH)
    assert specs(wrapped)["layers.0.up.weight"] == ("fsdp", None)
    assert piece_shapes(wrapped.layers[0].up.weight) == [(8, DIM)] * 8
    assert wrapped.batch_axes == ("replica", "fsdp") and wrapped.mesh == MESH


def test_without_a_mesh_there_is_one_over_all_devices():
    assert FSDPv2(model()).mesh == FLAT


def test_without_a_mesh_torch_xlas_global_one_is_taken(monkeypatch):
    mesh = xs.Mesh(np.arange(8), (2, 4), ("replica", "fsdp"))
    monkeypatch.setattr(xs.xla_sharding, "_GLOBAL_MESH", mesh)
    assert FSDPv2(model()).mesh == MESH


def test_torch_xlas_mesh_is_converted():
    mesh = xs.Mesh(np.arange(8), (2, 4), ("replica", "fsdp"))
    assert FSDPv2(model(), mesh).mesh == MESH


def test_dims_that_do_not_divide_are_padded():
    with pytest.warns(UserWarning, match=r"weight \[17, 9\]: dim 0 of size 17"):
        wrapped = FSDPv2(nn.Linear(9, 17), FLAT, min_shard_elements=100)
    reference = copy.deepcopy(wrapped.module).to("cpu")
    x = torch.randn(8, 9)
    out = wrapped(spmd.mark_sharding(x.to("xla"), FLAT, ("fsdp", None)))
    torch.testing.assert_close(out.cpu(), reference(x))
    assert piece_shapes(wrapped.weight) == [(3, 9)] * 8


def test_a_spec_given_before_is_kept():
    module = spmd.to_device(model())
    spmd.mark_sharding(module.head.weight, FLAT, (None, None))
    xs.mark_sharding(
        module.layers[0].up.weight,
        xs.Mesh(np.arange(8), (8,), ("fsdp",)),
        (None, "fsdp"),
    )
    wrapped = wrap(module)
    assert specs(wrapped)["head.weight"] == (None, None)
    assert specs(wrapped)["layers.0.up.weight"] == (None, "fsdp")
    assert all_split(wrapped)


def test_a_foreign_sharding_is_left_alone():
    module = spmd.to_device(nn.Linear(DIM, DIM))
    other = xs.Mesh(np.arange(8), (2, 4), ("data", "tensor"))
    xs.mark_sharding(module.weight, other, ("tensor", None))
    before = native(module.weight)
    wrapped = wrap(module)
    wrapped(batch())
    assert native(module.weight) == before
    assert specs(wrapped) == {"weight": None, "bias": ("fsdp",)}


def test_a_model_moved_by_hand_before_is_split():
    module = model().to("xla")
    module(torch.ones(8, DIM).to("xla"))
    sync()  # now its parameters are whole on every device
    assert all_split(wrap(module))


def test_gradients_take_the_parameters_specs():
    wrapped = wrap(model(1), MESH)
    wrapped(batch(mesh=MESH)).square().mean().backward()
    sync()
    for name, parameter in wrapped.named_parameters():
        want = as_tiles(MESH, spmd.get_sharding(parameter).spec)
        assert native(parameter.grad) == want, name


def test_frozen_parameters_are_split_and_have_no_gradient():
    module = model()
    module.layers[0].requires_grad_(False)
    wrapped = wrap(module)
    assert all_split(wrapped)
    wrapped(batch()).sum().backward()
    assert wrapped.layers[0].up.weight.grad is None
    assert wrapped.layers[1].up.weight.grad is not None
    wrapped.layers[0].requires_grad_(True)
    wrapped(batch()).sum().backward()
    want = as_tiles(FLAT, ("fsdp", None))
    assert want in constraints(wrapped.layers[0].up.weight.grad)


def test_ties_stay():
    module = nn.Sequential(nn.Linear(DIM, DIM), nn.Linear(DIM, DIM))
    module[1].weight = module[0].weight
    wrapped = wrap(module, auto_wrap_policy=nn.Linear)
    assert wrapped[0].weight is wrapped[1].weight
    assert len(list(wrapped.parameters())) == 3


# Training against the unsharded module


def loss_of(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return module(x).square().mean()


@pytest.mark.parametrize("mesh", [FLAT, MESH, Mesh({"fsdp": 4, "tensor": 2})], ids=repr)
@pytest.mark.parametrize("policy", [None, Block])
def test_an_optimizer_made_before_wrapping_trains_like_the_unsharded(mesh, policy):
    reference, module = model(), model()
    plain = torch.optim.AdamW(reference.parameters(), lr=0.01)
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.01)
    wrapped = wrap(module, mesh, auto_wrap_policy=policy)
    for _ in range(3):
        for m, o, x in (
            (reference, plain, cpu_batch()),
            (wrapped, optimizer, batch(mesh=mesh)),
        ):
            o.zero_grad()
            loss = loss_of(m, x)
            loss.backward()
            o.step()
        sync()
    want = dict(reference.named_parameters())
    for name, parameter in wrapped.named_parameters():
        torch.testing.assert_close(parameter.detach().cpu(), want[name].detach())
    assert all_split(wrapped)


@pytest.mark.parametrize("norm_type", [2.0, 1.0, float("inf")])
def test_clip_grad_norm_is_the_unsharded_models(norm_type):
    reference, wrapped = model(), wrap(model(), auto_wrap_policy=Block)
    loss_of(reference, cpu_batch()).backward()
    loss_of(wrapped, batch()).backward()
    want = nn.utils.clip_grad_norm_(reference.parameters(), 0.05, norm_type)
    got = wrapped.clip_grad_norm_(0.05, norm_type)
    assert want > 0.05
    sync()
    torch.testing.assert_close(got.cpu(), want)
    grads = {n: p.grad for n, p in reference.named_parameters()}
    for name, parameter in wrapped.named_parameters():
        torch.testing.assert_close(parameter.grad.cpu(), grads[name])


def test_accumulated_gradients_equal_the_big_batchs():
    big, small = wrap(model()), wrap(model())
    loss_of(big, batch(16)).backward()
    whole = cpu_batch(16)
    with small.no_sync():
        for half in whole.chunk(2):
            x = spmd.mark_sharding(half.to("xla"), FLAT, ("fsdp", None))
            (loss_of(small, x) / 2).backward()
    sync()
    for a, b in zip(big.parameters(), small.parameters(), strict=True):
        torch.testing.assert_close(a.grad.cpu(), b.grad.cpu())
        assert native(b.grad) == as_tiles(FLAT, spmd.get_sharding(b).spec)


# Wrapping inside wrapping


POLICIES = [
    Block,
    {"Block"},
    size_based_auto_wrap_policy(1000),
    functools.partial(
        torchs.transformer_auto_wrap_policy, transformer_layer_cls={Block}
    ),
    functools.partial(
        theirs.transformer_auto_wrap_policy, transformer_layer_cls={Block}
    ),
]


@pytest.mark.parametrize("policy", POLICIES)
def test_layers_are_wrapped_and_names_stay(policy):
    wrapped = wrap(model(), auto_wrap_policy=policy)
    plain = model()
    assert [type(m) for m in wrapped.layers] == [FSDPv2, FSDPv2]
    assert isinstance(wrapped.layers[0].module, Block)
    assert list(wrapped.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in wrapped.named_parameters()] == [
        n for n, _ in plain.named_parameters()
    ]
    assert [n for n, _ in wrapped.named_buffers()] == ["scale"]
    assert [n for n, _ in wrapped.named_modules()] == [
        n for n, _ in plain.named_modules()
    ]
    torch.testing.assert_close(wrapped(batch()).cpu(), plain(cpu_batch()))


def blocks_spec(wrapped: FSDPv2, mesh: Mesh) -> Any:
    seen = []
    wrapped.layers[0].register_forward_hook(
        lambda _m, _i, out: seen.append(spmd.get_sharding(out).spec)
    )
    wrapped(batch(mesh=mesh))
    return seen[0]


def test_the_batch_is_split_over_all_data_axes_in_nested_wrappers():
    wrapped = wrap(model(), MESH, auto_wrap_policy=Block)
    assert blocks_spec(wrapped, MESH) == (("replica", "fsdp"), None)


def test_the_extra_data_axis_reaches_nested_wrappers():
    mesh = Mesh({"mine": 2, "fsdp": 4})
    wrapped = wrap(model(), mesh, auto_wrap_policy=Block, extra_data_axis="mine")
    assert blocks_spec(wrapped, mesh) == (("mine", "fsdp"), None)
    assert wrapped.layers[0].batch_axes == ("mine", "fsdp")


def test_a_custom_wrapper_for_the_layers():
    made = []

    def wrapper(module: nn.Module, *args: Any, **kwargs: Any) -> FSDPv2:
        made.append((type(module), args, sorted(kwargs)))
        return FSDPv2(module, *args, **kwargs)

    mesh = Mesh({"mine": 2, "fsdp": 4})
    wrapped = wrap(
        model(),
        mesh,
        auto_wrap_policy=Block,
        auto_wrapper_callable=wrapper,
        extra_data_axis="mine",
    )
    assert made == [(Block, (), ["extra_data_axis", "mesh", "shard_output"])] * 2
    assert blocks_spec(wrapped, mesh) == (("mine", "fsdp"), None)


def test_wrapping_by_hand_inside_out():
    module = model()
    for i, layer in enumerate(module.layers):
        module.layers[i] = wrap(layer)
    wrapped = wrap(module)
    assert list(wrapped.state_dict()) == list(model().state_dict())
    torch.testing.assert_close(wrapped(batch()).cpu(), model()(cpu_batch()))


def test_a_nested_wrapper_takes_any_batch():
    """A position embedding gets one row, and the root's batch rule is the root's."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wpe = nn.Embedding(32, DIM)
            self.head = nn.Linear(DIM, DIM)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            at = torch.arange(x.shape[1], device=x.device)[None]
            mask = torch.ones(x.shape[0], x.shape[1], 1, device=x.device)
            return self.head(x + self.wpe(at) * mask)

    wrapped = wrap(Positions(), auto_wrap_policy=theirs.always_wrap_policy)
    x = torch.randn(8, 4, DIM).to("xla")
    spmd.mark_sharding(x, FLAT, ("fsdp", None, None))
    assert wrapped(x).shape == (8, 4, DIM)
    with torch.no_grad():
        assert wrapped.module(torch.randn(1, 4, DIM).to("xla")).shape == (1, 4, DIM)


def test_module_runs_a_small_batch_unsplit():
    wrapped = wrap(model(), auto_wrap_policy=Block)
    with torch.no_grad():
        out = wrapped.module(cpu_batch(1).to("xla"))
    torch.testing.assert_close(out.cpu(), model()(cpu_batch(1)).detach())


# Outputs


class Returns(nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: torch.Tensor) -> Any:
        return self.make(x)


@dataclasses.dataclass
class Output:
    loss: Any
    logits: Any


SPLIT = as_tiles(FLAT, ("fsdp", None))


@pytest.mark.parametrize(
    "make, pick",
    [
        (lambda x: x * 2, lambda o: [o]),
        (lambda x: (x * 2, x + 1), lambda o: list(o)),
        (lambda x: [x * 2, x + 1], lambda o: list(o)),
        (lambda x: {"a": x * 2, "b": x + 1}, lambda o: list(o.values())),
        (lambda x: (x.mean(), x * 2, None), lambda o: [o[1]]),
        (lambda x: Output(x.mean(), x * 2), lambda o: [o.logits]),
        (lambda x: Output(None, (x * 2, [x + 1])), lambda o: [*o.logits[:1]]),
    ],
)
def test_every_container_comes_back_with_its_tensors_split(make, pick):
    out = wrap(Returns(make))(batch())
    assert type(out) is type(make(torch.ones(8, DIM)))
    for tensor in pick(out):
        assert constraints(tensor)[-1] == SPLIT
        assert spmd.get_sharding(tensor).spec == ("fsdp", None)


def test_a_hugging_face_output_comes_back_split():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    make = lambda x: outputs.CausalLMOutput(loss=x.mean(), logits=x * 2)  # noqa: E731
    out = wrap(Returns(make))(batch())
    assert type(out) is outputs.CausalLMOutput
    assert constraints(out.logits) == [SPLIT] and constraints(out.loss) == []


def test_no_output_is_fine():
    assert wrap(Returns(lambda x: None))(batch()) is None


def test_a_custom_shard_output_is_called_instead():
    calls = []

    def custom(output: torch.Tensor, mesh: Mesh) -> None:
        calls.append(mesh)
        spmd.mark_sharding(output, mesh, (None, "fsdp"))

    wrapped = wrap(nn.Linear(DIM, DIM), shard_output=custom)
    out = wrapped(batch())
    assert calls == [FLAT] and spmd.get_sharding(out).spec == (None, "fsdp")


def test_a_custom_shard_output_may_return_another():
    wrapped = wrap(model(), shard_output=lambda out, mesh: (out, mesh))
    assert wrapped(batch())[1] == FLAT


# Behaving as the module


def test_what_the_wrapper_lacks_the_module_has():
    module = model()
    wrapped = wrap(module)
    assert wrapped.module is module
    assert wrapped.note == "mine" and wrapped.describe() == "mine 2"
    assert wrapped.layers is module.layers and wrapped.scale is module.scale
    with pytest.raises(AttributeError, match="'Model' object has no attribute 'nope'"):
        _ = wrapped.nope
    assert not hasattr(wrapped, "nope")


def test_a_sequential_is_indexed():
    wrapped = wrap(nn.Sequential(nn.Linear(DIM, DIM), nn.ReLU()))
    assert isinstance(wrapped[0], nn.Linear) and len(wrapped) == 2
    assert len(wrapped[:1]) == 1 and bool(wrapped)
    assert bool(wrap(nn.Sequential(Block())))
    with pytest.raises(TypeError):
        len(wrap(model()))


def test_train_and_eval_reach_everything():
    module = model()
    wrapped = wrap(module, auto_wrap_policy=Block)
    for mode in (False, True):
        assert wrapped.train(mode) is wrapped
        everything = [wrapped, module, *wrapped.modules(), *module.modules()]
        everything += [m.module for m in wrapped.layers]
        assert all(m.training is mode for m in everything)
    wrapped.eval()
    assert not wrapped.layers[0].module.training
    outer = nn.Sequential(wrapped)
    outer.train()
    assert module.training and wrapped.layers[0].module.training
    assert not wrap(model().eval()).training


def test_requires_grad_and_zero_grad():
    wrapped = wrap(model())
    loss_of(wrapped, batch()).backward()
    wrapped.zero_grad()
    assert all(p.grad is None for p in wrapped.parameters())
    wrapped.requires_grad_(False)
    assert not any(p.requires_grad for p in wrapped.module.parameters())


def test_the_text_of_a_wrapper():
    wrapped = wrap(model(), auto_wrap_policy=Block)
    assert repr(wrapped).startswith("FSDPv2[Model, Mesh(fsdp=8)](")
    assert "(0-1): 2 x FSDPv2[Block, Mesh(fsdp=8)](" in repr(wrapped)
    assert "in_features=16" in repr(wrap(nn.Linear(DIM, DIM)))


@pytest.mark.parametrize("how", ["bfloat16", "to", "to materialised"])
def test_another_dtype_keeps_specs_and_identity(how):
    wrapped = wrap(model(), auto_wrap_policy=Block)
    held = list(wrapped.parameters())
    before = specs(wrapped)
    if how == "to materialised":
        wrapped(batch())
        sync()
    wrapped.bfloat16() if how == "bfloat16" else wrapped.to(torch.bfloat16)
    assert all(a is b for a, b in zip(held, wrapped.parameters(), strict=True))
    assert {p.dtype for p in wrapped.parameters()} == {torch.bfloat16}
    assert specs(wrapped) == before
    out = wrapped(batch().to(torch.bfloat16))
    out.sum().backward()
    sync()
    assert out.dtype == torch.bfloat16 and all_split(wrapped)


def test_to_the_cpu_and_back_keeps_specs_and_ties():
    module = nn.Sequential(nn.Linear(DIM, DIM), nn.Linear(DIM, DIM))
    module[1].weight = module[0].weight
    wrapped = wrap(module)
    before = specs(wrapped)
    wrapped.to("cpu")
    assert wrapped[0].weight.device.type == "cpu"
    assert wrapped[0].weight is wrapped[1].weight
    wrapped.to("xla")
    assert specs(wrapped) == before and all_split(wrapped)
    assert wrapped[0].weight is wrapped[1].weight


# State


def test_state_of_the_unwrapped_model_loads_and_back():
    plain, wrapped = model(), wrap(Model(), auto_wrap_policy=Block)
    before = specs(wrapped)
    result = wrapped.load_state_dict(plain.state_dict(), strict=True)
    assert not result.missing_keys and not result.unexpected_keys
    assert specs(wrapped) == before and all_split(wrapped)
    sync()
    assert all_split(wrapped)
    torch.testing.assert_close(wrapped(batch()).cpu(), plain(cpu_batch()))
    again = Model()
    again.load_state_dict(wrapped.state_dict(), strict=True)
    for a, b in zip(again.parameters(), plain.parameters(), strict=True):
        assert torch.equal(a, b)


def test_wrong_state_is_refused_as_usual():
    wrapped = wrap(model())
    state = model().state_dict()
    del state["head.bias"]
    with pytest.raises(RuntimeError, match=r'Missing key.* "head\.bias"'):
        wrapped.load_state_dict(state)
    assert wrapped.load_state_dict(state, strict=False).missing_keys == ["head.bias"]


def test_assigned_state_is_moved_and_split():
    plain, wrapped = model(), wrap(Model())
    before = specs(wrapped)
    wrapped.load_state_dict(plain.state_dict(), assign=True)
    assert {p.device.type for p in wrapped.parameters()} == {"xla"}
    assert specs(wrapped) == before and all_split(wrapped)
    torch.testing.assert_close(wrapped(batch()).cpu(), model()(cpu_batch()))


def test_state_is_saved_and_read_without_our_classes():
    wrapped = wrap(model(), auto_wrap_policy=Block)
    file = io.BytesIO()
    torch.save(wrapped.state_dict(), file)
    file.seek(0)
    plain = Model()
    plain.load_state_dict(torch.load(file, map_location="cpu"))
    torch.testing.assert_close(plain.head.weight, model().head.weight)


def test_a_batch_norms_state_version_is_kept():
    module = nn.Sequential(nn.Linear(DIM, DIM), nn.BatchNorm1d(DIM))
    wrapped = wrap(module, auto_wrap_policy=nn.BatchNorm1d)
    metadata = wrapped.state_dict()._metadata
    assert metadata["1"]["version"] == nn.BatchNorm1d._version


@pytest.mark.parametrize("how", ["deepcopy", "file"])
def test_a_copy_is_a_split_model_of_its_own(how):
    wrapped = wrap(model(), auto_wrap_policy=Block)
    if how == "deepcopy":
        other = copy.deepcopy(wrapped)
    else:
        file = io.BytesIO()
        torch.save(wrapped, file)
        file.seek(0)
        other = torch.load(file, weights_only=False)
    assert isinstance(other, FSDPv2) and isinstance(other.layers[0], FSDPv2)
    assert other.module.layers is other.layers
    assert other.layers[0].module.up.weight is other.layers[0].up.weight
    assert specs(other) == specs(wrapped) and all_split(other)
    for a, b in zip(other.parameters(), wrapped.parameters(), strict=True):
        assert a is not b
    loss_of(other, batch()).backward()
    assert all(p.grad is None for p in wrapped.parameters())
    sync()
    up = other.layers[0].up.weight
    assert native(up.grad) == as_tiles(FLAT, ("fsdp", None))
    torch.testing.assert_close(other(batch()).cpu(), model()(cpu_batch()))


def test_a_parameter_put_in_later_is_split_at_the_next_forward():
    wrapped = wrap(model())
    wrapped.head.weight = nn.Parameter(torch.ones(3, DIM).to("xla"))
    wrapped(batch())
    assert specs(wrapped)["head.weight"] == (None, "fsdp")


# Meta


def test_a_meta_model_is_annotated_for_a_pod():
    with torch.device("meta"):
        module = Model()
    pod = Mesh({"replica": 32, "fsdp": 8})
    wrapped = wrap(module, pod, auto_wrap_policy=Block)
    assert specs(wrapped)["layers.0.up.weight"] == ("fsdp", None)
    assert spmd.get_sharding(wrapped.head.weight).mesh == pod


def test_a_meta_model_that_gets_values_is_split():
    with torch.device("meta"):
        module = Model()
    wrapped = wrap(module)
    wrapped.to_empty(device="xla")
    wrapped.load_state_dict(model().state_dict())
    assert all_split(wrapped)
    torch.testing.assert_close(wrapped(batch()).cpu(), model()(cpu_batch()))


def test_a_meta_model_does_not_run():
    with torch.device("meta"):
        module = Model()
    text = (
        r"parameter layers\.0\.norm\.weight \[16\] is on the meta device.*materialize"
    )
    with pytest.raises(ValueError, match=text):
        wrap(module)(batch())


# Mistakes


def test_a_model_moved_back_to_the_cpu_does_not_run():
    wrapped = wrap(model()).to("cpu")
    with pytest.raises(ValueError, match=r"is on cpu; call spmd\.to_device\(model\)"):
        wrapped(batch())
    spmd.to_device(wrapped)
    assert wrapped(batch()).shape == (8, 3) and all_split(wrapped)


def test_not_a_module():
    with pytest.raises(TypeError, match=r"wraps a torch\.nn\.Module, got function"):
        FSDPv2(lambda x: x, FLAT)


def test_a_module_without_a_forward():
    with pytest.raises(ValueError, match="ModuleList has no forward"):
        FSDPv2(nn.ModuleList([nn.Linear(2, 2)]), FLAT)


def test_wrapping_twice():
    with pytest.raises(ValueError, match="this Model is already wrapped; wrap inner"):
        FSDPv2(wrap(model()), FLAT)


def test_a_policy_over_layers_wrapped_by_hand():
    module = model()
    module.layers[1] = wrap(module.layers[1])
    with pytest.raises(ValueError, match=r"layers\.1 is already wrapped; either wrap"):
        FSDPv2(module, FLAT, auto_wrap_policy=Block)


def test_a_mesh_without_an_fsdp_axis():
    with pytest.raises(ValueError, match="the mesh has no axis 'fsdp', only"):
        FSDPv2(model(), Mesh({"data": 8}))


def test_an_unknown_extra_data_axis():
    with pytest.raises(ValueError, match="the mesh has no axis 'data'"):
        FSDPv2(model(), FLAT, extra_data_axis="data")


def test_a_mesh_of_another_size():
    with pytest.raises(ValueError, match="has 4 devices, this machine runs 8"):
        FSDPv2(model(), Mesh({"fsdp": 4}))


def test_not_a_mesh():
    with pytest.raises(TypeError, match="a mesh is needed"):
        FSDPv2(model(), 8)


def test_a_class_that_is_not_there_leaves_the_model_unwrapped():
    module = model()
    with pytest.raises(ValueError, match="'Blok'; did you mean 'Block'"):
        FSDPv2(module, FLAT, auto_wrap_policy={"Blok"})
    assert not any(isinstance(m, FSDPv2) for m in module.modules())
    assert specs(wrap(module, auto_wrap_policy="Block"))


def test_inputs_that_will_not_do():
    wrapped = wrap(model())
    with pytest.raises(ValueError, match=r"input args\[0\] \[8, 16\] is on cpu"):
        wrapped(cpu_batch())
    with pytest.raises(ValueError, match="a batch of 4, smaller than the 8 devices"):
        wrapped(x=batch(8)[:4])
    with pytest.warns(UserWarning, match=r"input x \[8, 16\] has no spec"):
        wrapped(x=cpu_batch().to("xla"))
