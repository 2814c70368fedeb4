import copy
import io
import warnings

import numpy as np
import pytest
import torch
import torch_xla.distributed.spmd as xs
from torch import nn

import spmd
from spmd import Annotation, Mesh
from spmd._meshes.spec import shard_shape, shard_slices
from spmd._torch_xla import seam
from tests.on_device import (
    as_tiles,
    constraints,
    native,
    on_device,
    piece_shapes,
    split_by,
    sync,
)

MESH = Mesh({"replica": 2, "fsdp": 4})
FLAT = Mesh({"fsdp": 8})


def parameter(*shape: int, requires_grad: bool = True) -> nn.Parameter:
    return nn.Parameter(on_device(*shape), requires_grad)


# Inputs


@pytest.mark.parametrize(
    "mesh",
    [FLAT, MESH, Mesh({"a": 2, "b": 2, "c": 2}), Mesh([7, 5, 3, 1, 0, 2, 4, 6])],
    ids=repr,
)
@pytest.mark.parametrize("shape", [(16, 8), (9, 6), (3, 8)], ids=str)
@pytest.mark.parametrize("form", ["first", "last", "both"])
def test_each_device_holds_its_piece(mesh, shape, form):
    first, *rest = mesh.axis_names
    spec = {
        "first": (first, None),
        "last": (None, tuple(mesh.axis_names)),
        "both": (tuple(rest) or None, first),
    }[form]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some of these do not divide
        tensor = spmd.mark_sharding(on_device(*shape), mesh, spec)
    whole = torch.arange(torch.Size(shape).numel(), dtype=torch.float32).reshape(shape)
    normal = spmd.get_sharding(tensor).spec
    seen = set()
    for device, data, _, part in seam.local_shards(tensor):
        assert tuple(data.shape) == shard_shape(shape, mesh, normal)
        assert part == shard_slices(shape, mesh, normal, device=device)
        inside = tuple(slice(0, p.stop - p.start) for p in part)
        assert torch.equal(data[inside], whole[part])
        seen.add(device)
    assert seen == set(range(8))
    assert torch.equal(tensor.cpu(), whole)


@pytest.mark.parametrize(
    "dtype",
    [torch.int64, torch.int8, torch.bool, torch.bfloat16, torch.float64],
    ids=str,
)
def test_any_dtype_is_split(dtype):
    tensor = torch.ones(8, 2).to(dtype).to("xla")
    spmd.mark_sharding(tensor, FLAT, ("fsdp", None))
    assert piece_shapes(tensor) == [(1, 2)] * 8
    assert tensor.cpu().dtype == dtype and bool(tensor.cpu().all())


def test_a_scalar_takes_the_empty_spec():
    tensor = spmd.mark_sharding(torch.tensor(3.0).to("xla"), MESH, ())
    assert spmd.get_sharding(tensor) == Annotation(MESH, ())
    assert tensor.item() == 3.0


def test_an_empty_tensor_is_split():
    tensor = spmd.mark_sharding(on_device(0, 4), FLAT, ("fsdp", None))
    assert spmd.get_sharding(tensor).spec == ("fsdp", None)
    assert tensor.sum().item() == 0.0


def test_the_same_tensor_comes_back():
    tensor = on_device(8, 4)
    assert spmd.mark_sharding(tensor, MESH, ("fsdp", None)) is tensor
    assert spmd.replicate(on_device(8, 4), MESH).shape == (8, 4)


def test_a_spec_is_kept_normalised():
    tensor = spmd.mark_sharding(on_device(8, 4), MESH, [("fsdp",), ()])
    assert spmd.get_sharding(tensor) == Annotation(MESH, ("fsdp", None))


def test_replicate_keeps_the_whole_on_each_device():
    tensor = spmd.replicate(on_device(8, 4), MESH)
    assert spmd.get_sharding(tensor).spec == (None, None)
    assert piece_shapes(tensor) == [(8, 4)] * 8


def test_torch_xlas_mesh_and_spec_are_converted():
    mesh = xs.Mesh(np.arange(8), (2, 4), ("replica", "fsdp"))
    tensor = spmd.mark_sharding(on_device(8, 4), mesh, xs.ShardingSpec(mesh, (1, 0)))
    assert spmd.get_sharding(tensor) == Annotation(MESH, ("fsdp", "replica"))
    assert piece_shapes(tensor) == [(2, 2)] * 8


# Parameters and buffers


def test_a_parameter_keeps_its_identity():
    model = nn.Linear(8, 16)
    weight = model.weight
    spmd.to_device(model)
    spmd.mark_sharding(model.weight, FLAT, ("fsdp", None))
    assert model.weight is weight and isinstance(weight, nn.Parameter)
    assert piece_shapes(weight) == [(2, 8)] * 8


def test_tied_weights_stay_tied():
    model = nn.ModuleDict({"a": nn.Linear(8, 8), "b": nn.Linear(8, 8)})
    model["b"].weight = model["a"].weight
    spmd.to_device(model)
    spmd.mark_sharding(model["a"].weight, FLAT, ("fsdp", None))
    assert model["b"].weight is model["a"].weight
    assert spmd.get_sharding(model["b"].weight).spec == ("fsdp", None)


def test_a_buffer_is_split():
    model = nn.BatchNorm1d(16)
    spmd.to_device(model)
    spmd.mark_sharding(model.running_mean, FLAT, ("fsdp",))
    assert piece_shapes(model.running_mean) == [(2,)] * 8


def test_a_leafs_gradient_is_left_alone_by_default():
    weight = spmd.mark_sharding(parameter(8, 8), FLAT, ("fsdp", None))
    (weight * 2).sum().backward()
    assert constraints(weight.grad) == []


def test_a_leafs_gradient_takes_an_explicit_spec():
    weight = parameter(8, 8)
    spmd.mark_sharding(weight, FLAT, ("fsdp", None), grad=(None, "fsdp"))
    (weight * 2).sum().backward()
    assert constraints(weight.grad) == [as_tiles(FLAT, (None, "fsdp"))]
    assert torch.equal(weight.grad.cpu(), torch.full((8, 8), 2.0))


def test_a_frozen_parameters_gradient_is_marked_once_it_is_unfrozen():
    weight = parameter(8, 8, requires_grad=False)
    spmd.mark_sharding(weight, FLAT, ("fsdp", None), grad=("fsdp", None))
    assert not weight.requires_grad
    weight.requires_grad_(True)
    (weight * 2).sum().backward()
    assert constraints(weight.grad) == [as_tiles(FLAT, ("fsdp", None))]


def test_a_gradient_shared_by_two_terms_takes_each_ones_spec():
    a, b = parameter(8, 8), parameter(8, 8)
    spmd.mark_sharding(a, FLAT, ("fsdp", None), grad=("fsdp", None))
    spmd.mark_sharding(b, FLAT, (None, "fsdp"), grad=(None, "fsdp"))
    (a + b).sum().backward()
    assert constraints(a.grad) == [as_tiles(FLAT, ("fsdp", None))]
    assert constraints(b.grad) == [as_tiles(FLAT, (None, "fsdp"))]


# Values inside a forward


def value(shape: tuple[int, ...] = (8, 8)) -> tuple[nn.Parameter, torch.Tensor]:
    weight = parameter(*shape)
    return weight, weight * 2


def test_a_value_gets_a_constraint_in_the_program():
    _, x = value()
    spmd.mark_sharding(x, MESH, (("replica", "fsdp"), None))
    want = as_tiles(MESH, (("replica", "fsdp"), None))
    assert constraints((x * 3).sum()) == [want]


def test_its_gradient_gets_the_same_by_default():
    weight, x = value()
    spmd.mark_sharding(x, FLAT, ("fsdp", None))
    (x * x).sum().backward()
    want = as_tiles(FLAT, ("fsdp", None))
    assert constraints(weight.grad) == [want, want]  # the value, and its gradient


def test_its_gradient_is_free_with_none():
    weight, x = value()
    spmd.mark_sharding(x, FLAT, ("fsdp", None), grad=None)
    (x * x).sum().backward()
    assert constraints(weight.grad) == [as_tiles(FLAT, ("fsdp", None))]


def test_its_gradient_takes_another_spec():
    weight, x = value()
    spmd.mark_sharding(x, FLAT, ("fsdp", None), grad=(None, "fsdp"))
    (x * x).sum().backward()
    want = [as_tiles(FLAT, ("fsdp", None)), as_tiles(FLAT, (None, "fsdp"))]
    assert constraints(weight.grad) == want


def test_annotating_does_not_change_values_or_gradients():
    results = []
    for mark in (False, True):
        weight, x = value()
        if mark:
            spmd.mark_sharding(x, MESH, ("replica", "fsdp"), grad=(None, "replica"))
        (x * x).sum().backward()
        results.append((x.detach().cpu(), weight.grad.cpu()))
    assert all(map(torch.equal, *results))


def test_a_view_is_marked_and_its_base_is_not():
    _, x = value()
    view = spmd.mark_sharding(x.view(4, 16), MESH, ("fsdp", None))
    assert constraints(view.sum()) == [as_tiles(MESH, ("fsdp", None))]
    assert constraints(x.sum()) == []


def test_an_in_place_result_keeps_its_spec():
    x = spmd.mark_sharding(on_device(8, 8), FLAT, ("fsdp", None))
    x.mul_(2)
    sync()
    assert split_by(x, FLAT, ("fsdp", None))
    x.add_(1)
    spmd.mark_sharding(x, FLAT, ("fsdp", None))
    assert torch.equal(x.cpu(), torch.arange(64.0).reshape(8, 8) * 2 + 1)


@pytest.mark.parametrize("how", ["to_empty", "view"])
def test_a_parameter_that_is_a_view_keeps_its_spec_when_written_into(how):
    if how == "to_empty":
        with torch.device("meta"):
            model = nn.Linear(8, 8, bias=False)
        weight = model.to_empty(device="xla").weight
    else:
        weight = nn.Parameter(on_device(64).view(8, 8))
    spmd.mark_sharding(weight, FLAT, ("fsdp", None))
    with torch.no_grad():
        weight.copy_(torch.ones(8, 8))
    assert split_by(weight, FLAT, ("fsdp", None))
    sync()
    assert piece_shapes(weight) == [(1, 8)] * 8
    assert torch.equal(weight.detach().cpu(), torch.ones(8, 8))


def test_values_under_no_grad_are_marked():
    weight = parameter(8, 8)
    with torch.no_grad():
        x = spmd.mark_sharding(weight * 2, FLAT, ("fsdp", None))
    assert constraints(x.sum()) == [as_tiles(FLAT, ("fsdp", None))]


# Annotating again


def test_the_same_spec_again_is_fine():
    tensor = on_device(8, 8)
    for spec in (("fsdp", None), (("fsdp",), ())):
        spmd.mark_sharding(tensor, FLAT, spec)
    assert split_by(tensor, FLAT, ("fsdp", None))


def test_the_same_again_marks_the_gradient_once():
    weight, x = value()
    for _ in range(2):
        spmd.mark_sharding(x, FLAT, ("fsdp", None))
        spmd.mark_sharding(weight, FLAT, ("fsdp", None), grad=("fsdp", None))
    (x * x).sum().backward()
    want = as_tiles(FLAT, ("fsdp", None))
    assert constraints(weight.grad) == [want] * 4  # x twice, its gradient, weight's


def test_a_gradients_spec_may_be_replaced():
    weight = parameter(8, 8)
    spmd.mark_sharding(weight, FLAT, ("fsdp", None), grad=("fsdp", None))
    spmd.mark_sharding(weight, FLAT, ("fsdp", None), grad=(None, "fsdp"))
    (weight * 2).sum().backward()
    assert constraints(weight.grad) == [as_tiles(FLAT, (None, "fsdp"))]


@pytest.mark.parametrize("mesh, spec", [(FLAT, (None, "fsdp")), (MESH, ("fsdp", None))])
def test_another_spec_names_the_tensor_and_both(mesh, spec):
    tensor = spmd.mark_sharding(on_device(8, 8), FLAT, ("fsdp", None), name="wte")
    text = (
        r"wte \[8, 8\] is already split by \('fsdp', None\) on Mesh\(fsdp=8\); it "
        r"cannot also get .*clear_sharding"
    )
    with pytest.raises(ValueError, match=text) as error:
        spmd.mark_sharding(tensor, mesh, spec, name="wte")
    assert str(spec) in str(error.value) and repr(mesh) in str(error.value)
    assert split_by(tensor, FLAT, ("fsdp", None))


def test_after_clear_sharding_another_spec_is_fine():
    tensor = spmd.mark_sharding(on_device(8, 8), FLAT, ("fsdp", None))
    sync()
    assert spmd.clear_sharding(tensor) is tensor
    assert spmd.get_sharding(tensor) is None and native(tensor) is None
    spmd.mark_sharding(tensor, FLAT, (None, "fsdp"))
    assert piece_shapes(tensor) == [(8, 1)] * 8
    assert torch.equal(tensor.cpu(), torch.arange(64.0).reshape(8, 8))


def test_clear_sharding_frees_the_gradient_too():
    weight = parameter(8, 8)
    spmd.mark_sharding(weight, FLAT, ("fsdp", None), grad=("fsdp", None))
    spmd.clear_sharding(weight)
    (weight * 2).sum().backward()
    assert constraints(weight.grad) == []


def test_clear_sharding_of_an_unmarked_tensor_does_nothing():
    for tensor in (torch.ones(2), on_device(2), torch.ones(2, device="meta")):
        assert spmd.clear_sharding(tensor) is tensor


def test_a_spec_given_through_torch_xla_is_not_overruled():
    tensor = on_device(8, 8)
    xs.mark_sharding(tensor, xs.Mesh(np.arange(8), (8,), ("fsdp",)), ("fsdp", None))
    spmd.mark_sharding(tensor, FLAT, ("fsdp", None))  # the same
    other = on_device(8, 8)
    xs.mark_sharding(other, xs.Mesh(np.arange(8), (8,), ("fsdp",)), ("fsdp", None))
    with pytest.raises(ValueError, match=r"wte \[8, 8\] is already split as .*clear_"):
        spmd.mark_sharding(other, FLAT, (None, "fsdp"), name="wte")


def test_data_that_was_computed_whole_can_be_split():
    tensor = on_device(8, 8) + 1
    sync()
    assert native(tensor).is_replicated
    spmd.mark_sharding(tensor, FLAT, ("fsdp", None))
    assert piece_shapes(tensor) == [(1, 8)] * 8


# Asking


def test_get_sharding_of_an_unmarked_tensor():
    for tensor in (torch.ones(2), on_device(2), torch.ones(2, device="meta")):
        assert spmd.get_sharding(tensor) is None
        assert spmd.get_sharding(tensor, FLAT) is None


def test_get_sharding_of_a_result():
    x = spmd.mark_sharding(on_device(8, 8), MESH, ("fsdp", None))
    y = x * 2
    sync()
    seam.wait()
    assert spmd.get_sharding(y) is None
    assert spmd.get_sharding(y, MESH) == Annotation(MESH, ("fsdp", None))


def test_get_sharding_on_a_mesh_that_cannot_say_it():
    x = spmd.mark_sharding(on_device(8, 8), MESH, ("fsdp", None))
    y = x * 2
    sync()
    seam.wait()
    with pytest.raises(ValueError, match=r"no spec on Mesh\(fsdp=8\) gives"):
        spmd.get_sharding(y, FLAT)


# Meta tensors


def test_a_meta_tensor_only_remembers_on_a_mesh_of_any_size():
    pod = Mesh({"fsdp": 256, "tensor": 16})
    tensor = torch.empty(1024, 1024, device="meta")
    spmd.mark_sharding(tensor, pod, ("fsdp", "tensor"))
    assert spmd.get_sharding(tensor) == Annotation(pod, ("fsdp", "tensor"))
    with pytest.raises(ValueError, match="already split"):
        spmd.mark_sharding(tensor, pod, (None, None))
    spmd.clear_sharding(tensor)
    spmd.mark_sharding(tensor, pod, (None, None))


# Files and copies


def test_a_marked_tensor_is_saved_without_our_classes():
    weight = spmd.mark_sharding(
        parameter(8, 8), FLAT, ("fsdp", None), grad=("fsdp", None)
    )
    data = spmd.mark_sharding(on_device(8, 8), FLAT, ("fsdp", None))
    file = io.BytesIO()
    torch.save([weight, data], file)
    file.seek(0)
    for loaded in torch.load(file):  # weights_only
        assert torch.equal(loaded.cpu(), torch.arange(64.0).reshape(8, 8))
        assert spmd.get_sharding(loaded) is None
        spmd.mark_sharding(loaded, FLAT, (None, "fsdp"))


def test_a_copy_is_not_marked():
    data = spmd.mark_sharding(on_device(8, 8), FLAT, ("fsdp", None))
    assert spmd.get_sharding(copy.deepcopy(data)) is None
    assert spmd.get_sharding(data.detach()) is None


# Mistakes


def test_not_a_tensor():
    with pytest.raises(TypeError, match=r"mark_sharding: \[1, 2\] is no tensor"):
        spmd.mark_sharding([1, 2], FLAT, ("fsdp",))


def test_on_the_cpu():
    with pytest.raises(
        ValueError, match=r"wte \[8\] is on cpu.*spmd\.to_device\(model"
    ):
        spmd.mark_sharding(torch.ones(8), FLAT, ("fsdp",), name="wte")


@pytest.mark.parametrize("size", [4, 16])
def test_a_mesh_of_another_size_than_the_machine(size):
    text = rf"tensor \[8\]: Mesh\(fsdp={size}\) has {size} devices, this machine runs 8"
    with pytest.raises(ValueError, match=text):
        spmd.mark_sharding(on_device(8), Mesh({"fsdp": size}), ("fsdp",))


def test_a_parameter_is_called_one():
    with pytest.raises(ValueError, match=r"parameter \[8, 8\]: spec"):
        spmd.mark_sharding(parameter(8, 8), FLAT, ("fsdp",))


@pytest.mark.parametrize(
    "spec, text",
    [
        (("fsdp",), r"has 1 entries for 2 dims"),
        (("tensor", None), r"names mesh axis 'tensor', but the mesh has"),
        (("fsdp", "fsdp"), r"uses mesh axis 'fsdp' 2 times"),
    ],
)
def test_a_wrong_spec(spec, text):
    with pytest.raises(ValueError, match=rf"wte \[8, 8\].*{text}"):
        spmd.mark_sharding(on_device(8, 8), FLAT, spec, name="wte")


def test_a_wrong_gradient():
    _, x = value()
    with pytest.raises(ValueError, match=r"grad='all'; 'same', None or a spec"):
        spmd.mark_sharding(x, FLAT, ("fsdp", None), grad="all")
    with pytest.raises(ValueError, match=r"gradient of h \[8, 8\].*1 entries"):
        spmd.mark_sharding(x, FLAT, ("fsdp", None), grad=("fsdp",), name="h")
    assert spmd.get_sharding(x) is None


def test_a_dim_that_does_not_divide_warns_once_with_what_it_costs():
    text = (
        r"uneven \[9, 2\]: dim 0 of size 9 does not divide over 'fsdp' \(8 shards\); "
        r"XLA pads 56 bytes"
    )
    with pytest.warns(UserWarning, match=text) as caught:
        spmd.mark_sharding(on_device(9, 2), FLAT, ("fsdp", None), name="uneven")
    assert caught[0].filename == __file__  # at this line, not inside the library
    spmd.mark_sharding(on_device(9, 2), FLAT, ("fsdp", None), name="uneven")


def test_a_dim_that_does_not_divide_is_refused_when_strict():
    with pytest.raises(ValueError, match=r"dim 0 of size 9 .*strict=False"):
        spmd.mark_sharding(on_device(9, 2), FLAT, ("fsdp", None), strict=True)
