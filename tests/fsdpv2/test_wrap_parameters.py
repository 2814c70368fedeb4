"""How a wrapper splits parameters."""

import copy
import inspect

import numpy as np
import pytest
import torch
import torch_xla.distributed.spmd as xs
from torch import nn
from torch_xla.experimental.spmd_fully_sharded_data_parallel import (
    SpmdFullyShardedDataParallel,
)

import spmd
from fsdpv2 import FSDPv2
from tests.fsdpv2.wrapping import (
    DIM,
    FLAT,
    MESH,
    WHOLE_SPECS,
    Block,
    all_split,
    batch,
    model,
    specs,
    wrap,
)
from tests.on_device import as_tiles, constraints, native, piece_shapes, sync


def test_torch_xlas_keywords_are_all_taken():
    ours = inspect.signature(FSDPv2).parameters
    reference = inspect.signature(SpmdFullyShardedDataParallel).parameters
    assert set(reference) <= set(ours)
    for name, parameter in reference.items():
        assert ours[name].default == parameter.default
    positional = [p for p in ours.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert [p.name for p in positional] == ["module", "mesh"]


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
