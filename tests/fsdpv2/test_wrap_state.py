"""State of wrapped models, models on meta, and mistakes."""

import copy
import io

import pytest
import torch
from torch import nn

import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh
from tests.fsdpv2.wrapping import (
    DIM,
    FLAT,
    Block,
    Model,
    all_split,
    batch,
    cpu_batch,
    loss_of,
    model,
    specs,
    wrap,
)
from tests.on_device import as_tiles, native, sync


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
