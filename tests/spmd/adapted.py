"""What an adapted model gives on the CPU, beside what it gave before."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from torch import nn

import spmd
from spmd._adapt.adapt import adapt
from spmd._adapt.rule import Adapted

TOLERANCE = 5e-8  # in float64, but for norms that round to float32


def loss_and_gradients(model: nn.Module, batch: Mapping[str, Any]) -> dict[str, Any]:
    """The loss under ``""``, and each parameter's gradient under its name."""
    spmd.init()  # which a backward on the CPU must not come before
    model.zero_grad()
    loss = model(**batch).loss
    loss.backward()
    found = {name: p.grad for name, p in model.named_parameters()}
    return {"": loss.detach(), **found}


def check_adapted(
    model: nn.Module, batch: Mapping[str, Any], found: Mapping[str, Adapted]
) -> nn.Module:
    """Loss, gradients and state are those of the model; gives what was adapted."""
    wide = {k: v.double() if v.is_floating_point() else v for k, v in batch.items()}
    model = model.double()
    own = copy.deepcopy(model)
    adapt(own, found)
    assert list(own.state_dict()) == list(model.state_dict())
    wanted, got = loss_and_gradients(model, wide), loss_and_gradients(own, wide)
    for name, value in wanted.items():
        gap = (got[name] - value).abs().max()
        assert gap <= TOLERANCE * max(1.0, float(value.abs().max())), f"{name}: {gap}"
    return own
