import pytest
import torch

import spmd
from fsdpv2 import FSDPv2
from fsdpv2._microbatches import microbatches, num_rows
from spmd import Mesh
from tests.fsdpv2.layers import (
    FLAT,
    check_close,
    device_ids,
    gradients,
    ids,
    loss_of,
    stack,
)

MESH = Mesh({"replica": 2, "fsdp": 4})
AXES = ("replica", "fsdp")


def test_each_device_splits_the_rows_it_has():
    rows = spmd.shard_batch(torch.arange(32).reshape(32, 1), MESH)
    batch = {"x": rows, "scale": torch.tensor(2.0), "note": "text"}
    first, second = microbatches(batch, 2, MESH, axes=AXES)
    wanted = torch.arange(32).reshape(8, 2, 2)
    assert first["x"].cpu().flatten().tolist() == wanted[:, 0].flatten().tolist()
    assert second["x"].cpu().flatten().tolist() == wanted[:, 1].flatten().tolist()
    assert first["note"] == "text" and first["scale"] is batch["scale"]
    assert spmd.get_sharding(first["x"]).spec == (AXES, None)


def test_accumulated_gradients_are_the_big_batchs():
    model = FSDPv2(stack(), FLAT, min_shard_elements=1)

    def accumulated(model, batch):
        losses = [loss_of(model, m) / 2 for m in model.microbatches(batch, 2)]
        return losses[0] + losses[1]

    got = gradients(model, device_ids(), accumulated)
    check_close(got, gradients(stack(), ids()))


def test_rows_that_do_not_divide():
    text = r"microbatches: batch\['x'\] \[8, 2\]: 8 rows, which 2 .*a multiple of 16"
    with pytest.raises(ValueError, match=text):
        microbatches({"x": torch.ones(8, 2)}, 2, MESH, axes=AXES)


def test_rows_are_those_of_the_first_tensor_that_has_any():
    batch = {"scale": torch.tensor(1.0), "note": "text", "x": torch.ones(8, 2)}
    assert num_rows(batch) == 8
    assert num_rows({"note": "text"}) == 0
