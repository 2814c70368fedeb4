"""Tensor and sequence parallelism compute what the unsharded decoder does."""

from __future__ import annotations

import functools

import pytest
import torch

import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh
from tests.fsdpv2 import test_parity as parity
from tests.fsdpv2.decoder import megatron_plan
from tests.fsdpv2.layers import check_close, gradients

TWO = Mesh({"fsdp": 4, "tensor": 2})
HYBRID = Mesh.hybrid(ici={"fsdp": 2, "tensor": 2}, dcn={"replica": 2})
COPIES = Mesh.hybrid(ici={"tensor": 4}, dcn={"replica": 2})


def loss_of(model: torch.nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch, batch)[0]


@functools.cache
def unsharded() -> dict[str, torch.Tensor]:
    return gradients(parity.build("decoder"), parity.batches()[0], loss_of)


@pytest.mark.parametrize("sequence", [False, True], ids=["whole", "sequence"])
@pytest.mark.parametrize("mesh", [TWO, HYBRID, COPIES], ids=repr)
def test_loss_and_gradients_are_the_unsharded_models(mesh, sequence):
    model = spmd.to_device(parity.build("decoder"))
    spmd.shard_module(model, mesh, megatron_plan(mesh, sequence=sequence))
    if "fsdp" in mesh.sizes:
        model = FSDPv2(model, mesh, auto_wrap_policy={"Block"})
    batch = spmd.shard_batch(parity.batches()[0], mesh, spec=(mesh.data_axes, None))
    with spmd.sharding_preserving():
        found = gradients(model, batch, loss_of)
    check_close(found, unsharded(), rtol=2e-5)
