"""Parameters that are no longer a model's: an optimizer that holds one must not step.

Taking a weight apart, or stacking those of equal layers, makes other parameters. An
optimizer that was made before would go on updating the old ones, to no effect.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook
from torch.utils.weak import WeakTensorKeyDictionary

_replaced: Any = WeakTensorKeyDictionary()  # what it was called, and what there is now
_watching = False


def replaced(parameter: torch.Tensor, *, name: str, by: str) -> None:
    """Have optimizers refuse to update what is no parameter any more.

    Args:
        parameter: What was replaced.
        name: What it was called.
        by: What the model has now: ``c_attn.q.weight, c_attn.k.weight``.
    """
    global _watching
    _replaced[parameter] = (name, by)
    if not _watching:
        _watching = True
        register_optimizer_step_pre_hook(_refuse)


def _refuse(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found = _replaced.get(parameter)
            if found is not None:
                name, by = found
                raise ValueError(
                    f"{type(optimizer).__name__} holds {name} "
                    f"{list(parameter.shape)}, which was replaced after it was made: "
                    f"the model now has {by}. Make the optimizer after the model is "
                    f"sharded"
                )
