from __future__ import annotations

import copy
import pickle
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from spmd._meshes.mesh import DATA_AXES, Mesh
from tests.spmd.strategies import meshes, walk


def test_sizes_by_name() -> None:
    mesh = Mesh({"replica": 2, "fsdp": 4})
    assert mesh.axis_names == ("replica", "fsdp")
    assert mesh.shape == (2, 4)
    assert mesh.sizes == {"replica": 2, "fsdp": 4}
    assert (mesh.size, mesh.ndim) == (8, 2)
    assert mesh.device_ids == tuple(range(8))
    assert mesh.devices.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    ("axes", "num_devices", "shape"),
    [
        ({"replica": 2, "fsdp": -1}, 8, (2, 4)),
        ({"fsdp": -1}, 256, (256,)),
        ({"fsdp": 4, "tensor": -1}, 4, (4, 1)),
        ({"fsdp": np.int64(4), "tensor": np.int64(-1)}, 8, (4, 2)),
    ],
)
def test_fill(axes: dict[str, int], num_devices: int, shape: tuple[int, ...]) -> None:
    assert Mesh(axes, num_devices=num_devices).shape == shape


def test_fill_asks_the_runtime(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spmd._runtime.num_devices", lambda: 8)
    assert Mesh({"replica": 2, "fsdp": -1}).shape == (2, 4)


def test_larger_than_the_machine() -> None:
    mesh = Mesh({"data": 64, "fsdp": 64})
    assert mesh.size == 4096
    assert mesh.axis_groups("fsdp")[1][:2] == (64, 65)


def test_hybrid_puts_dcn_axes_outermost() -> None:
    mesh = Mesh.hybrid(
        ici={"fsdp": -1, "tensor": 2}, dcn={"replica": 2}, num_devices=16
    )
    assert mesh.axis_names == ("replica", "fsdp", "tensor")
    assert mesh.shape == (2, 4, 2)
    assert mesh.dcn_axes == ("replica",)
    assert mesh.crosses_dcn("replica")
    assert mesh.crosses_dcn(("fsdp", "replica"))
    assert not mesh.crosses_dcn(("fsdp", "tensor"))


def test_an_axis_of_one_device_crosses_nothing() -> None:
    assert not Mesh.hybrid(ici={"fsdp": 8}, dcn={"replica": 1}).crosses_dcn("replica")


def test_signature_of_torch_xla() -> None:
    mesh = Mesh(np.arange(8), (2, 4), ("data", "model"))
    assert mesh == Mesh({"data": 2, "model": 4})
    assert Mesh([3, 2, 1, 0], (2, 2)).axis_names == ("axis0", "axis1")
    assert Mesh(np.arange(8), (-1, 2), ("a", "b")).shape == (4, 2)
    assert Mesh(np.arange(8).reshape(2, 4), axis_names=("a", "b")).shape == (2, 4)
    assert Mesh(range(4)).shape == (4,)


def test_device_order() -> None:
    mesh = Mesh([3, 2, 1, 0], (2, 2), ("a", "b"))
    assert not mesh.is_iota
    assert mesh.axis_groups("a") == ((3, 1), (2, 0))
    assert mesh.coordinates(1) == {"a": 1, "b": 0}
    assert Mesh({"a": 4}).is_iota


def test_data_axes() -> None:
    mesh = Mesh({"replica": 2, "tensor": 2, "fsdp": 2})
    assert mesh.data_axes == ("replica", "fsdp")
    assert {"dcn", "data"} <= set(DATA_AXES)


def test_repr_is_one_line() -> None:
    assert repr(Mesh.hybrid(ici={"fsdp": 4}, dcn={"replica": 2})) == (
        "Mesh(replica=2[dcn], fsdp=4)"
    )
    assert repr(Mesh([1, 0], (2,), ("x",))) == "Mesh(x=2, device_ids=...)"


def test_value_semantics() -> None:
    mesh = Mesh({"replica": 2, "fsdp": 4})
    assert mesh == Mesh({"replica": 2, "fsdp": 4})
    assert hash(mesh) == hash(Mesh({"replica": 2, "fsdp": 4}))
    assert mesh != Mesh({"fsdp": 4, "replica": 2})
    assert mesh != Mesh({"replica": 2, "fsdp": 4}, dcn_axes="replica")
    assert pickle.loads(pickle.dumps(mesh)) == copy.deepcopy(mesh) == mesh
    with pytest.raises(AttributeError):
        mesh.shape = (8,)  # pyright: ignore[reportAttributeAccessIssue] frozen


@given(meshes())
def test_coordinates_count_row_major(mesh: Mesh) -> None:
    for device, place in walk(mesh):
        assert mesh.coordinates(device) == place
    for axis, size in mesh.sizes.items():
        assert mesh.axis_size(axis) == size
        assert mesh.axis_names[mesh.axis_index(axis)] == axis


@given(st.data())
def test_axis_groups_match_brute_force(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    count = data.draw(st.integers(0, mesh.ndim))
    axes = tuple(data.draw(st.permutations(mesh.axis_names))[:count])
    expected: dict[tuple[int, ...], list[tuple[tuple[int, ...], int]]] = {}
    for device, place in walk(mesh):
        outside = tuple(place[a] for a in mesh.axis_names if a not in axes)
        inside = tuple(place[a] for a in axes)
        expected.setdefault(outside, []).append((inside, device))
    groups = mesh.axis_groups(axes)
    assert groups == tuple(
        tuple(device for _, device in sorted(members))
        for _, members in sorted(expected.items())
    )
    assert mesh.axis_size(axes) == len(groups[0])
    assert sorted(d for group in groups for d in group) == list(range(mesh.size))


def build(*args: Any, **kwargs: Any) -> Mesh:
    return Mesh(*args, **kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "error", "match"),
    [
        (({"a": 8}, (8,)), {}, TypeError, "either sizes by axis name or"),
        (({"a": 8}, None, ("a",)), {}, TypeError, "either sizes by axis name or"),
        ((8,), {}, TypeError, r"Mesh\(8\): give sizes by axis name"),
        (("fsdp",), {}, TypeError, r"Mesh\('fsdp'\): give sizes by axis name"),
        (([0.5, 1.0],), {}, TypeError, "with integer device ids"),
        ((range(8), (2, 4), ("a",)), {}, ValueError, "1 axis names .* of 2 axes"),
        (({"a": 2},), {"num_devices": 8}, ValueError, "make 2 devices, num_devices=8"),
        (({"a": 2},), {"dcn_axes": ("b",)}, ValueError, "dcn axis 'b' is none of the"),
        (({"a": 2},), {"dcn_axes": "bc"}, ValueError, "dcn axis 'bc' is none of the"),
        (({"a": "2"},), {}, TypeError, "axis 'a' has size '2'; an int is needed"),
        (({"a": 2.0},), {}, TypeError, "axis 'a' has size 2.0; an int is needed"),
        (({"a": True},), {}, TypeError, "axis 'a' has size True"),
        ((range(4), (2.0, 2), "ab"), {}, TypeError, "axis 'a' has size 2.0"),
        (({"a": 0},), {}, ValueError, "axis 'a' has size 0; it must be positive"),
        (({"a": -2},), {}, ValueError, "axis 'a' has size -2; it must be positive"),
        (([],), {}, ValueError, "axis 'axis0' has size 0"),
        (({"a": -1, "b": -1},), {}, ValueError, "only one axis may be -1"),
        (({"a": 3, "b": -1},), {"num_devices": 8}, ValueError, "does not divide 8"),
        (({"a": 8, "b": -1},), {"num_devices": 0}, ValueError, "does not divide 0"),
        (({"a": 8, "b": -1},), {"num_devices": -8}, ValueError, "does not divide -8"),
        (({},), {}, ValueError, "at least one axis is needed"),
        (({"": 2},), {}, TypeError, "axis names are non-empty strings, got ''"),
        (({0: 2},), {}, TypeError, "axis names are non-empty strings, got 0"),
        ((range(4), (2, 2), ("a", "a")), {}, ValueError, "axis name is used twice"),
        (
            (range(8), (2, 2), ("a", "b")),
            {},
            ValueError,
            "make 4 devices, but 8 device",
        ),
        (([0, 0], (2,), ("a",)), {}, ValueError, r"each of 0..1 once, got \(0, 0\)"),
        (([4, 5], (2,), ("a",)), {}, ValueError, "each of 0..1 once"),
    ],
)
def test_wrong_meshes(
    args: tuple[Any, ...], kwargs: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        build(*args, **kwargs)


def test_an_axis_inside_and_between_hosts() -> None:
    with pytest.raises(ValueError, match="axis 'fsdp' is in both ici and dcn"):
        Mesh.hybrid(ici={"fsdp": 4}, dcn={"fsdp": 2})


@pytest.mark.parametrize("method", ["axis_size", "axis_index", "axis_groups"])
def test_unknown_axis(method: str) -> None:
    with pytest.raises(ValueError, match=r"'tensor' does not exist.*\{fsdp: 8\}"):
        getattr(Mesh({"fsdp": 8}), method)("tensor")


def test_axis_groups_refuse_an_axis_twice() -> None:
    with pytest.raises(ValueError, match="an axis is given twice in"):
        Mesh({"fsdp": 8}).axis_groups(("fsdp", "fsdp"))


def test_coordinates_of_a_device_elsewhere() -> None:
    with pytest.raises(ValueError, match=r"device 8 is not in Mesh\(fsdp=8\)"):
        Mesh({"fsdp": 8}).coordinates(8)
