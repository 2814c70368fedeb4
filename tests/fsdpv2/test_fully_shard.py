import copy

import pytest
import torch
from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy, OffloadPolicy
from torch.distributed.tensor import Shard

import spmd
from fsdpv2 import fully_shard, materialize
from spmd import Mesh
from tests.fsdpv2.layers import (
    FLAT,
    Layer,
    Stack,
    check_close,
    device_ids,
    gradients,
    ids,
    stack,
)
from tests.on_device import split_by


def sharded(module, mesh=FLAT, **options):
    options.setdefault("min_shard_elements", 1)
    for layer in module.layers:
        fully_shard(layer, mesh=mesh, **options)
    return fully_shard(module, mesh=mesh, **options)


@pytest.mark.parametrize("remat", ["none", "full"])
def test_gradients_are_the_unsharded_models(remat):
    module = stack()
    names = list(module.state_dict())
    model = sharded(module, remat=remat)
    assert model is module and isinstance(model, Stack)
    assert type(model).__name__ == "FSDPStack"
    assert isinstance(model.layers[0], Layer)
    assert list(model.state_dict()) == names
    check_close(gradients(model, device_ids()), gradients(stack(), ids()))
    for parameter in model.parameters():
        assert split_by(parameter, FLAT, spmd.get_sharding(parameter).spec)
    model.set_requires_gradient_sync(False)


def test_the_output_is_split():
    model = sharded(stack())
    assert spmd.get_sharding(model(device_ids())).spec == (("fsdp",), None, None) or (
        spmd.get_sharding(model(device_ids())).spec == ("fsdp", None, None)
    )


def test_a_mesh_of_fsdp2():
    model = sharded(stack(), Mesh({"dp_replicate": 2, "dp_shard": 4}))
    found = spmd.get_sharding(model.head.weight)
    assert found.mesh == Mesh({"replica": 2, "fsdp": 4})
    assert found.spec == ("fsdp", None)
    assert spmd.get_sharding(fully_shard(stack()).head.weight).mesh == FLAT


def test_torchs_options():
    module = stack()
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
    fully_shard(
        module,
        mesh=FLAT,
        reshard_after_forward=False,
        shard_placement_fn=lambda p: Shard(1) if p.ndim == 2 else None,
        mp_policy=policy,
        offload_policy=OffloadPolicy(),
        ignored_params={module.head.weight},
        min_shard_elements=1,
    )
    assert spmd.get_sharding(module.embed.weight).spec == (None, "fsdp")
    assert spmd.get_sharding(module.head.weight).spec == (None, None)
    assert module(device_ids()).dtype == torch.bfloat16


def test_a_model_on_meta_is_materialised():
    with torch.device("meta"):
        module = Stack()
    model = materialize(sharded(module))
    assert gradients(model, device_ids())["loss"].isfinite()


@pytest.mark.parametrize("change", [copy.deepcopy, lambda m: m.to(torch.bfloat16)])
def test_a_copy_and_a_cast_are_split(change):
    model = change(sharded(stack()))
    assert all(split_by(p, FLAT, spmd.get_sharding(p).spec) for p in model.parameters())


def test_what_will_not_do():
    module = fully_shard(stack())
    with pytest.raises(ValueError, match="this FSDPStack is sharded already; call it"):
        fully_shard(module)
    with pytest.raises(ValueError, match=r"offload_policy=.*stay on the devices"):
        fully_shard(stack(), offload_policy=CPUOffloadPolicy())
    with pytest.raises(TypeError, match=r"a torch\.nn\.Module is needed, got list"):
        fully_shard([stack()])
    with pytest.raises(ValueError, match="ModuleList has no forward"):
        fully_shard(stack().layers)
