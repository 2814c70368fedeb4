"""Folders that transformers wrote, into shards; more in test_checkpoint_hf_export."""

import pytest
import torch
from torch import nn

import spmd
from spmd import Mesh, Plan
from spmd.checkpoint import CheckpointError, from_hf
from tests.on_device import split_by
from tests.spmd.checkpoints import on_cpu, same

save_file = pytest.importorskip("safetensors.torch").save_file

MESH = Mesh({"fsdp": 4, "tensor": 2})

pytestmark = pytest.mark.filterwarnings("ignore:.*does not divide over")


def network():
    return nn.Sequential(nn.Linear(6, 13), nn.Linear(13, 3))


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    torch.manual_seed(0)
    weights = {k: v.contiguous() for k, v in network().state_dict().items()}
    folder = tmp_path_factory.mktemp("hf")
    save_file(weights, folder / "model.safetensors")
    return folder, weights


def test_onto_a_mesh_in_place(saved):
    folder, weights = saved
    plan = Plan({"*.weight": ("fsdp", "tensor"), "*.bias": ("fsdp",)})
    with spmd.meta_parameters():
        model = network()
    assert from_hf(folder, model, MESH, plan=plan) is model
    same(on_cpu(model), weights)
    assert split_by(model[0].weight, MESH, ("fsdp", "tensor"))
    again = spmd.to_device(network())
    from_hf(folder, again, MESH)
    same(on_cpu(again), weights)
    assert {spmd.get_sharding(p).spec for p in again.parameters()} == {
        (None, None),
        (None,),
    }


def test_it_stays_in_jax_arrays(saved):
    folder, weights = saved
    model = spmd.to_device(network())
    for parameter in model.parameters():
        spmd.mark_sharding(
            parameter, Mesh({"fsdp": 8}), ("fsdp", None)[: parameter.ndim]
        )
    step = spmd.compile_step(lambda x: model(x).mean(), model=model, runtime="jax")
    before = step(torch.ones(8, 6)).item()
    from_hf(folder, model)
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert step(torch.ones(8, 6)).item() != before
    same(on_cpu(model), weights)


def test_names_may_be_left_out(saved):
    folder, weights = saved
    model = network().append(nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"missing from the checkpoint: 2.weight"):
        from_hf(folder, model)
    from_hf(folder, model, strict=False)
    assert torch.equal(model[0].weight, weights["0.weight"])


def test_wrong_use_and_damage(saved, tmp_path):
    with pytest.raises(ValueError, match="a plan needs a mesh"):
        from_hf(saved[0], network(), plan=Plan({}))
    with pytest.raises(CheckpointError, match="has no safetensors file"):
        from_hf(tmp_path, network())
    good = (saved[0] / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(good[:-1])
    with pytest.raises(CheckpointError, match="is cut off"):
        from_hf(tmp_path, network())
