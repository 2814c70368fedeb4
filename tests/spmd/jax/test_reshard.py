import jax
import numpy as np
import pytest

from spmd import Mesh
from spmd._jax.device_array import DeviceArray, put
from spmd._jax.reshard import _mover, resharded
from spmd._meshes.sharding import to_hlo
from spmd._pjrt import client as pjrt
from spmd._program.value import Value

MESH = Mesh({"a": 2, "b": 4})
SPECS = [("a", None), (None, "b"), (("a", "b"), None), (None, None), ("b", "a")]


def sharding(spec):
    return pjrt.placement(pjrt.devices(MESH, "cpu"), to_hlo(MESH, spec))


def value(shape, spec, dtype="float32") -> DeviceArray:
    numbers = np.arange(np.prod(shape)).reshape(shape).astype(dtype)
    target = Value("v", "buffer", tuple(shape), dtype)
    return DeviceArray(put(numbers, target, sharding(spec)), tuple(shape), dtype)


def check(old: DeviceArray, spec) -> jax.Array:
    array = resharded(old, sharding(spec))
    assert array.sharding == sharding(spec)
    assert array.shape == pjrt.padded(old.shape, sharding(spec))
    new = DeviceArray(array, old.shape, old.dtype)
    assert new.numpy().dtype == old.numpy().dtype
    np.testing.assert_array_equal(new.numpy(), old.numpy())
    return array


@pytest.mark.parametrize("to", SPECS, ids=str)
@pytest.mark.parametrize("shape", [(8, 8), (6, 10), (3, 1)], ids=str)
def test_values_stay(shape, to):
    """Also where the pieces need padding, before or after."""
    for spec in SPECS:
        check(value(shape, spec), to)


def test_what_is_split_so_is_handed_back():
    old = value((8, 8), ("a", None))
    assert resharded(old, sharding(("a", None))) is old.array


@pytest.mark.parametrize("dtype", ["int64", "float64", "bool", "int32"])
@pytest.mark.parametrize("shape", [(8, 8), (6, 10)], ids=str)
def test_types_stay(dtype, shape):
    check(value(shape, ("a", None), dtype), (None, "b"))


def test_a_split_is_compiled_once():
    old = value((5, 10), (None, "b"))
    before = _mover.cache_info().misses
    for _ in range(3):
        check(old, (("a", "b"), None))
    assert _mover.cache_info().misses == before + 1
