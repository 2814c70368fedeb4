from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from spmd._meshes.convert import mesh_from, placements_from_spec, spec_from
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec, entry_axes
from tests.spmd.strategies import meshes_and_specs

MESH = Mesh({"dp": 2, "tp": 4})
SHAPE = (16, 8)


def device_mesh(ids: Any, names: tuple[str, ...] | None = None) -> DeviceMesh:
    """A DeviceMesh of type xla needs no process group."""
    return DeviceMesh("xla", ids, mesh_dim_names=names, _init_backend=False)


def torch_xla_mesh(**fields: Any) -> Any:
    """torch_xla's class without its constructor, which would open the devices."""
    from torch_xla.distributed.spmd import HybridMesh
    from torch_xla.distributed.spmd import Mesh as XlaMesh

    cls = HybridMesh if "dcn_mesh_shape" in fields else XlaMesh
    mesh = cls.__new__(cls)
    for name, value in fields.items():
        setattr(mesh, name, value)
    return mesh


def torch_xla_spec(mesh: Any, partition_spec: Any) -> Any:
    from torch_xla.distributed.spmd import ShardingSpec

    spec = ShardingSpec.__new__(ShardingSpec)
    spec.mesh, spec.partition_spec = mesh, partition_spec
    return spec


@pytest.fixture
def jax_sharding() -> Iterator[Any]:
    yield pytest.importorskip("jax.sharding", reason="converts jax's meshes and specs")


def test_our_mesh_is_returned_as_it_is() -> None:
    assert mesh_from(MESH) is MESH


def test_mesh_of_torch_xla() -> None:
    ids = np.array([0, 1, 2, 3, 7, 6, 5, 4])
    named = torch_xla_mesh(device_ids=ids, mesh_shape=(2, 4), axis_names=("dp", "tp"))
    assert mesh_from(named) == Mesh(ids, (2, 4), ("dp", "tp"))
    bare = torch_xla_mesh(device_ids=np.arange(8), mesh_shape=(2, 4), axis_names=None)
    assert mesh_from(bare).sizes == {"axis0": 2, "axis1": 4}


def test_hybrid_mesh_of_torch_xla_keeps_its_slow_axes() -> None:
    hybrid = torch_xla_mesh(
        device_ids=np.arange(8),
        mesh_shape=(2, 4),
        axis_names=("dp", "tp"),
        ici_mesh_shape=(1, 4),
        dcn_mesh_shape=(2, 1),
    )
    assert mesh_from(hybrid) == Mesh.hybrid(ici={"tp": 4}, dcn={"dp": 2})


def test_device_mesh() -> None:
    given = device_mesh(torch.arange(8).reshape(2, 4), ("dp", "tp"))
    assert mesh_from(given) == MESH
    assert mesh_from(device_mesh([[1, 0]])).axis_names == ("axis0", "axis1")
    assert mesh_from(device_mesh([[1, 0]])).device_ids == (1, 0)


def test_a_part_of_a_device_mesh() -> None:
    with pytest.raises(
        ValueError, match=r"covers devices \[4, 5\], a part of the mach"
    ):
        mesh_from(device_mesh([4, 5], ("tp",)))


def test_mesh_of_jax(jax_sharding: Any) -> None:
    abstract = jax_sharding.AbstractMesh((2, 4), ("dp", "tp"))
    assert mesh_from(abstract) == MESH

    class Device:
        def __init__(self, number: int) -> None:
            self.id = number

    concrete = object.__new__(jax_sharding.Mesh)
    devices = np.array([[Device(3), Device(2)], [Device(1), Device(0)]])
    object.__setattr__(concrete, "devices", devices)
    object.__setattr__(concrete, "axis_names", ("a", "b"))
    assert mesh_from(concrete) == Mesh([3, 2, 1, 0], (2, 2), ("a", "b"))


@pytest.mark.parametrize("obj", [None, 8, {"fsdp": 8}, np.arange(8)])
def test_what_is_no_mesh(obj: Any) -> None:
    with pytest.raises(
        TypeError, match=r"a mesh is needed, got .*allowed are spmd.Mesh"
    ):
        mesh_from(obj)


def test_plain_specs() -> None:
    assert spec_from((("dp",), None), MESH, shape=SHAPE) == ("dp", None)
    with pytest.raises(ValueError, match=r"w \[16, 8\]: spec .* has 1 entries"):
        spec_from(("dp",), MESH, shape=SHAPE, name="w")


def test_spec_of_torch_xla() -> None:
    mesh = torch_xla_mesh(
        device_ids=np.arange(8), mesh_shape=(2, 4), axis_names=("dp", "tp")
    )
    assert spec_from(torch_xla_spec(mesh, ("tp", None)), MESH, shape=SHAPE) == (
        "tp",
        None,
    )
    bare = torch_xla_mesh(device_ids=np.arange(8), mesh_shape=(2, 4), axis_names=None)
    spec = torch_xla_spec(bare, ((0, 1), None))
    assert spec_from(spec, MESH, shape=SHAPE) == (("dp", "tp"), None)


@pytest.mark.parametrize(
    "fields",
    [
        {"mesh_shape": (4, 2), "axis_names": ("dp", "tp")},
        {"mesh_shape": (2, 4), "axis_names": ("tp", "dp")},
    ],
)
def test_spec_of_another_mesh(fields: dict[str, Any]) -> None:
    spec = torch_xla_spec(
        torch_xla_mesh(device_ids=np.arange(8), **fields), ("tp", None)
    )
    with pytest.raises(ValueError, match=r"w \[16, 8\]: the spec was made for Mesh\("):
        spec_from(spec, MESH, shape=SHAPE, name="w")


def test_spec_of_jax(jax_sharding: Any) -> None:
    spec = jax_sharding.PartitionSpec
    assert spec_from(spec("tp"), MESH, shape=SHAPE) == ("tp", None)
    assert spec_from(spec(("dp", "tp"), None), MESH, shape=SHAPE) == (
        ("dp", "tp"),
        None,
    )
    mesh = jax_sharding.AbstractMesh((2, 4), ("dp", "tp"))
    named = jax_sharding.NamedSharding(mesh, spec(None, "dp"))
    assert spec_from(named, MESH, shape=SHAPE) == (None, "dp")
    with pytest.raises(ValueError, match="the spec was made for Mesh"):
        spec_from(named, Mesh({"dp": 8}), shape=SHAPE)
    with pytest.raises(ValueError, match=r"dim 0 of .* is UNCONSTRAINED"):
        spec_from(spec(spec.UNCONSTRAINED), MESH, shape=SHAPE)
    with pytest.raises(ValueError, match=r"leaves sums over \['dp'\] pending"):
        spec_from(spec("tp", unreduced={"dp"}), MESH, shape=SHAPE)
    with pytest.raises(ValueError, match="has 3 entries for 2 dims"):
        spec_from(spec("tp", None, None), MESH, shape=SHAPE)


@pytest.mark.parametrize(
    ("placements", "expected"),
    [
        ([Shard(0), Replicate()], ("dp", None)),
        ((Shard(1), Shard(0)), ("tp", "dp")),
        ((Shard(0), Shard(0)), (("dp", "tp"), None)),
        ((Shard(-1), Replicate()), (None, "dp")),
        ((Replicate(), Replicate()), (None, None)),
    ],
)
def test_placements(placements: Any, expected: Spec) -> None:
    assert spec_from(placements, MESH, shape=SHAPE) == expected


def test_one_placement_for_a_mesh_of_one_axis() -> None:
    assert spec_from(Shard(1), Mesh({"x": 8}), shape=SHAPE) == (None, "x")


@pytest.mark.parametrize(
    ("placements", "error", "match"),
    [
        ((Partial(), Shard(0)), ValueError, "on mesh axis 'dp' is a sum still to be"),
        (
            (Shard(2), Replicate()),
            ValueError,
            r"Shard\(2\) on mesh axis 'dp'.* -2\.\.1",
        ),
        ((Replicate(), Shard(-3)), ValueError, r"Shard\(-3\) on mesh axis 'tp'"),
        ((Shard(0),), ValueError, "1 placements .* for the 2 axes"),
        ((Shard(0), None), TypeError, "mixes DTensor placements"),
        (
            (_StridedShard(0, split_factor=4), Shard(0)),
            ValueError,
            "on mesh axis 'dp' is not Shard or Replicate; write the spec instead",
        ),
    ],
)
def test_wrong_placements(placements: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=rf"w \[16, 8\]: .*{match}"):
        spec_from(placements, MESH, shape=SHAPE, name="w")


def test_back_to_placements() -> None:
    assert placements_from_spec(("dp", None), MESH) == (Shard(0), Replicate())
    assert placements_from_spec((None, ("dp", "tp")), MESH) == (Shard(1), Shard(1))
    assert placements_from_spec((), MESH) == (Replicate(), Replicate())


def test_placements_follow_the_order_of_the_mesh() -> None:
    with pytest.raises(
        ValueError, match=r"dim 0 is split by \('tp', 'dp'\).*\('dp', 't"
    ):
        placements_from_spec((("tp", "dp"), None), MESH)
    with pytest.raises(ValueError, match="axis 'x' does not exist"):
        placements_from_spec(("x",), MESH)
    ones = Mesh({"dp": 1, "tp": 4})
    assert placements_from_spec((("tp", "dp"),), ones) == (Shard(0), Shard(0))


@settings(deadline=None)
@given(meshes_and_specs())
def test_placements_there_and_back(mesh_and_spec: tuple[Mesh, Spec]) -> None:
    mesh, spec = mesh_and_spec
    ordered = tuple(
        tuple(sorted(entry_axes(item), key=mesh.axis_index)) for item in spec
    )
    placements = placements_from_spec(ordered, mesh)
    shape = (64,) * len(spec)
    got = spec_from(placements, mesh, shape=shape)
    assert tuple(entry_axes(item) for item in got) == ordered


def test_neither_torch_nor_jax_is_imported(run_script: Callable[..., Any]) -> None:
    done = run_script(
        """
        import sys
        import spmd._meshes.convert, spmd._plans.plan, spmd._shown.visualize
        from spmd._meshes.mesh import Mesh
        spmd._meshes.convert.spec_from(("x",), Mesh({"x": 8}), shape=(8,))
        spmd._shown.visualize.visualize(("x",), Mesh({"x": 8}), console=False)
        print([m for m in ("torch", "torch_xla", "jax") if m in sys.modules])
        """
    )
    assert (done.rc, done.stdout.strip()) == (0, "[]"), done.stderr
