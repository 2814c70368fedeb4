from types import SimpleNamespace

import numpy as np
import pytest
import torch

from spmd import Mesh
from spmd._jax.device_array import DeviceArray
from spmd._jax.held import Held, hold
from spmd._marking.mark import Annotation


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool])
@pytest.mark.parametrize("spec", [("a", None), (None, ("b", "a")), ("b", "a")])
def test_any_piece_is_put_together_from_those_of_the_devices(spec, dtype):
    want = torch.arange(13 * 5).remainder(7).reshape(13, 5).to(dtype)
    asked = []

    def pieces(parts):
        asked.extend(parts)
        return [want[part].clone() for part in parts]

    tensor = torch.empty_like(want, device="meta")
    held = hold(tensor, Annotation(Mesh({"a": 4, "b": 2}), spec), pieces)
    assert len(asked) == len({str(part) for part in asked})  # copies share one
    assert torch.equal(held.array.torch(), want)
    for index in [(slice(0, 13), slice(0, 5)), (slice(3, 9), slice(1, 4))]:
        assert torch.equal(held(index), want[index])
    assert held((slice(13, 13), slice(0, 5))).shape == (0, 5)


def test_a_piece_of_other_processes_is_refused():
    device = SimpleNamespace(platform="cpu")
    half = SimpleNamespace(index=(slice(0, 2),), data=np.zeros(2), device=device)
    array = SimpleNamespace(addressable_shards=[half], dtype=np.dtype("float64"))
    value = DeviceArray(
        array,  # pyright: ignore[reportArgumentType] - a stand-in
        (4,),
        "float64",
    )
    assert Held(value)((slice(0, 2),)).tolist() == [0.0, 0.0]
    with pytest.raises(ValueError, match=r"\[\(0, 4\)\].*devices of other processes"):
        Held(value)((slice(0, 4),))
