"""Stacks go into jax's devices row by row."""

import numpy as np
import pytest
import torch

from spmd import Mesh
from spmd._jax.device_array import as_torch, put_parts
from spmd._marking.mark import Annotation
from spmd._meshes.sharding import to_hlo
from spmd._pjrt import client as pjrt
from spmd._program.value import Value
from spmd.checkpoint._rows import hold_rows, put_rows, row_of

MESH = Mesh({"a": 4, "b": 2})
SPECS = [(None, "a", None), (None, None, ("a", "b")), (None, "b", "a"), (None,) * 3]


def sharding(spec):
    return pjrt.placement(pjrt.devices(MESH), to_hlo(MESH, spec))


def rows(dtype):
    return torch.arange(3 * 13 * 5).reshape(3, 13, 5).to(dtype)


def asked(want, log):
    def pieces(parts):
        log.append([tuple((s.start, s.stop) for s in part) for part in parts])
        return [want[part] for part in parts]

    return pieces


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64])
@pytest.mark.parametrize("spec", SPECS, ids=str)
def test_rows(spec, dtype):
    """13 and 5 divide by nothing: the arrays are padded."""
    want, log = rows(dtype), []
    name = str(dtype).removeprefix("torch.")
    target = Value("stack", "buffer", (3, 13, 5), name)
    found = put_rows(target, sharding(spec), asked(want, log))
    assert found.array.sharding.is_equivalent_to(sharding(spec), 3)
    assert torch.equal(found.torch(), want)
    assert [parts[0][0] for parts in log] == [(0, 1), (1, 2), (2, 3)]
    once = put_parts(target, sharding(spec), lambda parts: [want[p] for p in parts])
    assert found.array.shape == once.array.shape
    for row in range(3):
        assert torch.equal(row_of(found, row).torch(), want[row])
        for _, _, part, data in row_of(found, row).local_shards():
            assert torch.equal(as_torch(np.array(data), name), want[row][part])


def test_rows_that_are_split_are_asked_for_at_once():
    want, log = rows(torch.float32), []
    target = Value("stack", "buffer", (3, 13, 5), "float32")
    found = put_rows(target, sharding(("b", None, None)), asked(want, log))
    assert torch.equal(found.torch(), want)
    assert len(log) == 1


def test_what_is_promised():
    want = rows(torch.float32)
    split = Annotation(MESH, (None, "a", None))
    held = hold_rows(want.to("meta"), split, asked(want, []))
    index = (slice(1, 3), slice(2, 9), slice(0, 5))
    assert torch.equal(held(index), want[index])
