from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings

from spmd._meshes.mesh import Mesh
from spmd._meshes.sharding import Form, HloSharding, from_hlo, to_hlo
from spmd._meshes.spec import Spec, entry_axes, num_shards
from tests.spmd.strategies import entry, meshes_and_specs, tile_of, walk

FORMS: tuple[Form, ...] = ("iota", "tiles")


def without_ones(mesh: Mesh, spec: Spec) -> Spec:
    return tuple(
        entry([a for a in entry_axes(item) if mesh.sizes[a] > 1]) for item in spec
    )


@settings(deadline=None)
@given(meshes_and_specs())
def test_each_device_holds_its_tile(mesh_and_spec: tuple[Mesh, Spec]) -> None:
    mesh, spec = mesh_and_spec
    for form in FORMS:
        sharding = to_hlo(mesh, spec, form=form)
        tiles = sharding.tiles()
        if sharding.is_replicated:
            assert set(num_shards(mesh, spec)) <= {1}
            continue
        assert sharding.num_devices == mesh.size
        where = {int(device): index for index, device in np.ndenumerate(tiles)}
        for device, place in walk(mesh):
            assert where[device][: len(spec)] == tile_of(mesh, spec, place)


@settings(deadline=None)
@given(meshes_and_specs())
def test_there_and_back(mesh_and_spec: tuple[Mesh, Spec]) -> None:
    mesh, spec = mesh_and_spec
    for form in FORMS:
        sharding = to_hlo(mesh, spec, form=form)
        read = HloSharding.parse(str(sharding))
        assert read == sharding
        for each in (sharding, read):
            assert from_hlo(each, mesh, ndim=len(spec)) == without_ones(mesh, spec)


@settings(deadline=None)
@given(meshes_and_specs())
def test_xla_reads_the_same(mesh_and_spec: tuple[Mesh, Spec]) -> None:
    """XLA's own parser gives the same devices and writes the compact form the same."""
    mesh, spec = mesh_and_spec
    for form in FORMS:
        sharding = to_hlo(mesh, spec, form=form)
        theirs = xla_sharding().from_string(str(sharding))
        if sharding.is_replicated:
            assert theirs.is_replicated()
            continue
        assert str(theirs) == str(sharding)
        assert theirs.tile_assignment_dimensions() == list(sharding.tile_shape)
        assert theirs.tile_assignment_devices() == sharding.tiles().reshape(-1).tolist()
        assert theirs.replicate_on_last_tile_dim() == sharding.replicate_last


def xla_sharding() -> Any:
    jaxlib = pytest.importorskip("jaxlib.xla_client", reason="compares with XLA itself")
    return jaxlib.HloSharding


@pytest.mark.parametrize(
    ("sizes", "spec"),
    [
        ({"fsdp": 8}, ("fsdp", None)),
        ({"fsdp": 8}, (None, None)),
        ({"fsdp": 4, "tensor": 2}, ("tensor", None)),
        ({"fsdp": 4, "tensor": 2}, ("tensor", "fsdp")),
        ({"fsdp": 4, "tensor": 2}, (("tensor", "fsdp"), None)),
        ({"fsdp": 4, "tensor": 2}, (("fsdp", "tensor"), None)),
        ({"a": 2, "b": 2, "c": 2}, ("c", None, "a")),
        ({"a": 2, "b": 2, "c": 2}, (("a", "c"), "b")),
        ({"a": 2, "b": 2, "c": 2}, (("c", "a"), None)),
        ({"a": 2, "b": 1, "c": 4}, (("b", "c"), "a")),
        ({"a": 2, "b": 1, "c": 4}, ("b", None)),
        ({"dcn": 4, "data": 16, "model": 8}, (("dcn", "data"), None, "model")),
    ],
)
def test_jax_gives_the_same(sizes: dict[str, int], spec: tuple[Any, ...]) -> None:
    sharding = pytest.importorskip("jax.sharding", reason="compares with jax")
    mesh = sharding.AbstractMesh(tuple(sizes.values()), tuple(sizes))
    named = sharding.NamedSharding(mesh, sharding.PartitionSpec(*spec))
    theirs = named._to_xla_hlo_sharding(len(spec))
    ours = to_hlo(Mesh(sizes), spec)
    assert str(ours) == str(theirs)
    if not ours.is_replicated:
        assert ours.tiles().reshape(-1).tolist() == theirs.tile_assignment_devices()
        listed = to_hlo(Mesh(sizes), spec, form="tiles")
        assert list(listed.devices) == theirs.tile_assignment_devices()


def test_compact_form_stays_compact() -> None:
    mesh = Mesh({"replica": 16, "fsdp": 256})
    assert str(to_hlo(mesh, ("fsdp", None))) == (
        "{devices=[256,1,16]<=[16,256]T(1,0) last_tile_dim_replicate}"
    )
    assert str(to_hlo(mesh, (("replica", "fsdp"),))) == "{devices=[4096]<=[4096]}"


def test_another_device_order_is_listed() -> None:
    mesh = Mesh([3, 2, 1, 0], (4,), ("x",))
    assert str(to_hlo(mesh, ("x",))) == "{devices=[4]3,2,1,0}"
    assert from_hlo(to_hlo(mesh, ("x",)), mesh) == ("x",)


@pytest.mark.parametrize("text", ["{replicated}", "replicated", "", " {replicated} "])
def test_replicated(text: str) -> None:
    sharding = HloSharding.parse(text)
    assert sharding.is_replicated
    assert sharding.num_devices == 0
    assert sharding.tiles().size == 0
    assert str(sharding) == "{replicated}"
    assert from_hlo(sharding, Mesh({"x": 8}), ndim=2) == (None, None)


@pytest.mark.parametrize(
    "text",
    [
        "{devices=[1,1,8]<=[8] last_tile_dim_replicate}",
        "{devices=[1,1,8]0,2,1,3,4,5,6,7 last_tile_dim_replicate}",
    ],
)
def test_one_tile_is_not_split(text: str) -> None:
    """torch_xla writes a replicated tensor this way on some paths."""
    assert from_hlo(HloSharding.parse(text), Mesh({"x": 8})) == (None, None)


def test_one_device() -> None:
    mesh = Mesh({"x": 1})
    assert to_hlo(mesh, ("x", None)).is_replicated
    assert from_hlo(HloSharding.parse("{devices=[1,1]<=[1]}"), mesh) == (None, None)


def test_the_order_of_copies_is_free() -> None:
    mesh = Mesh({"a": 2, "b": 4})
    text = "{devices=[2,4]3,1,2,0,4,6,5,7 last_tile_dim_replicate}"
    assert from_hlo(HloSharding.parse(text), mesh) == ("a",)


@pytest.mark.parametrize(
    ("text", "caret"),
    [
        ("{maximal device=0}", 1),
        ("{manual}", 1),
        ("{devices=[2,x]<=[2]}", 10),
        ("{devices=[2]<=[2]T(0}", 17),
        ("{devices=[2]<=[2] last_tile_dims={manual}}", 17),
        ("{devices=[2]<=[2]} more", 18),
        ("nonsense", 0),
    ],
)
def test_text_that_is_no_sharding(text: str, caret: int) -> None:
    with pytest.raises(
        ValueError, match="not a sharding that splits a tensor"
    ) as caught:
        HloSharding.parse(text)
    shown, pointer = str(caught.value).splitlines()[1:]
    assert shown.strip() == text
    assert pointer.index("^") - 2 == caret


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"tile_shape": (4,), "reshape_dims": (8,)}, "needs 4 devices, the .* has 8"),
        ({"tile_shape": (4,)}, "needs 4 devices, the assignment has 0"),
        ({"tile_shape": (2,), "devices": (0, 0)}, r"devices \(0, 0\) are not 0..1"),
        ({"tile_shape": (2,), "devices": (1, 2)}, "are not 0..1"),
        (
            {"tile_shape": (4,), "reshape_dims": (2, 2), "transpose_perm": (0, 0)},
            r"T\(0, 0\) is no permutation of the 2 dims",
        ),
    ],
)
def test_assignments_that_do_not_add_up(fields: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        HloSharding(**fields)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("{replicated}", r"needs ndim=\.\.\."),
        ("{devices=[4]<=[4]}", r"is over 4 devices, the mesh Mesh\(a=2, b=4\) has 8"),
        ("{devices=[8]1,0,2,3,4,5,6,7}", r"no spec on Mesh\(a=2, b=4\) gives"),
        ("{devices=[4,2]<=[8]}", "no spec on"),
        ("{devices=[2,2,2]<=[8]}", "no spec on"),
        ("{devices=[2,2,2]<=[2,2,2]T(2,1,0)}", "no spec on"),
        ("{devices=[2,4]0,1,2,4,3,5,6,7 last_tile_dim_replicate}", "no spec on"),
    ],
)
def test_shardings_no_spec_gives(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        from_hlo(HloSharding.parse(text), Mesh({"a": 2, "b": 4}))
