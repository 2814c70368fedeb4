"""`adapt`: compute layers of transformers so that what is split stays split."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from spmd._adapt.heads import repeat_heads
from spmd._adapt.layers import unflatten
from spmd._adapt.positions import pad_positions
from spmd._adapt.rule import Adapted

_DONE = "_spmd_adapted"


def adapt(module: nn.Module, found: Mapping[str, Adapted]) -> None:
    """Have modules computed in another way, in place.

    Parameters, their names and the values that a model gives stay as they are.

    Args:
        module: The root; its fused weights are taken apart already.
        found: By name. Modules that are adapted already are passed over.

    Raises:
        ValueError: A module that cannot be adapted so, or was in another way.
    """
    for name, adapted in found.items():
        child = module.get_submodule(name)
        done = child.__dict__.get(_DONE)
        if done == (adapted.how, adapted.size):
            continue
        if done is not None:
            raise ValueError(
                f"{name} is adapted by {done[0]!r} of {done[1]} already, and cannot be "
                f"by {adapted.how!r} of {adapted.size}; build the model anew"
            )
        if adapted.how == "unflatten":
            unflatten(child, name=name)
        elif adapted.how == "repeat_heads":
            repeat_heads(child, adapted.size, name=name)
        else:
            pad_positions(child, adapted.size, name=name)
        child.__dict__[_DONE] = adapted.how, adapted.size
