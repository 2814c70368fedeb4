"""Values into tensors on any device, which stay what and where they are."""

import pytest
import torch
from torch import nn

import spmd
from spmd import Mesh
from spmd.checkpoint._fill import annotation_of, fill_place, target_device
from spmd.checkpoint._places import model_places
from spmd.checkpoint._source import TorchFileSource
from tests.on_device import split_by

MESH = Mesh({"a": 4, "b": 2})
VALUE = torch.arange(13 * 6, dtype=torch.float32).reshape(13, 6)

pytestmark = pytest.mark.filterwarnings("ignore:.*does not divide over")


@pytest.fixture
def source(tmp_path):
    torch.save({"weight": VALUE}, tmp_path / "a.pt")
    return TorchFileSource(tmp_path / "a.pt")


def holder(tensor):
    module = nn.Module()
    module.register_parameter("weight", nn.Parameter(tensor))
    return module


def fill(module, source, **options):
    (place,) = model_places(module)
    counted = []
    fill_place(place, source, advance=counted.append, **options)
    return sum(counted)


def test_on_the_cpu_in_place(source):
    module = holder(torch.zeros(13, 6))
    held, data, version = (
        module.weight,
        module.weight.data_ptr(),
        module.weight._version,
    )
    assert fill(module, source) == VALUE.nbytes
    assert module.weight is held and held.data_ptr() == data
    assert held._version > version  # a graph that saved it must notice
    assert torch.equal(held, VALUE)


@pytest.mark.parametrize("spec", [("a", None), (None, "b"), ("b", "a"), (None, None)])
def test_split_and_only_the_pieces_are_read(spec, source):
    module = spmd.to_device(holder(torch.zeros(13, 6)))
    spmd.mark_sharding(module.weight, MESH, spec)
    held = module.weight
    assert fill(module, source) == VALUE.nbytes
    assert module.weight is held and split_by(held, MESH, spec)
    assert spmd.get_sharding(held).spec == spec
    assert torch.equal(held.cpu(), VALUE)


def test_from_meta_to_where_it_is_told(source):
    module = holder(torch.empty(13, 6, device="meta"))
    assert target_device(module.parameters()) == "cpu"
    fill(module, source, device="cpu")
    assert torch.equal(module.weight, VALUE)
    module = holder(torch.empty(13, 6, device="meta"))
    spmd.mark_sharding(module.weight, MESH, ("a", "b"))
    assert target_device(module.parameters()) == "xla"
    fill(module, source, device="xla")
    assert split_by(module.weight, MESH, ("a", "b"))
    assert torch.equal(module.weight.cpu(), VALUE)


def test_dtype_is_kept_or_taken(source):
    for device in ("cpu", "xla"):
        module = holder(torch.zeros(13, 6, dtype=torch.bfloat16)).to(device)
        fill(module, source)
        assert torch.equal(module.weight.cpu(), VALUE.bfloat16())
        fill(module, source, assign=True)
        assert torch.equal(module.weight.cpu(), VALUE)


def test_what_is_elsewhere_is_left_to_who_has_it(source):
    module = holder(torch.empty(13, 6, device="meta"))
    asked = []

    def refill(source, key, advance):
        asked.append(key)

    fill(module, source, elsewhere={id(module.weight): refill})
    assert asked == ["model.weight"] and module.weight.device.type == "meta"


def test_how_a_tensor_is_split():
    weight = torch.zeros(8, 6)
    assert annotation_of(weight, "w") is None
    there = weight.to("xla")
    assert annotation_of(there, "w") is None
    spmd.mark_sharding(there, MESH, ("a", None))
    assert annotation_of(there, "w").spec == ("a", None)
