"""Pad the sequence of an encoder of images, whose number of positions is its own.

16 patches and one for the class are 17 positions, which no axis divides. XLA pads what
is split unevenly, but reduces it whole: a sum over devices is scattered only where
pieces are equal.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional


def num_positions(encoder: nn.Module) -> int | None:
    """Positions of an encoder that `pad_positions` knows.

    Args:
        encoder: Any module.

    Returns:
        As in ViT: that many embeddings of positions [1, positions, embed] beside layers
        and a last norm. None for other modules.
    """
    children = encoder._modules
    embeddings = children.get("embeddings")
    table = getattr(embeddings, "position_embeddings", None)
    if not isinstance(table, nn.Parameter) or table.ndim != 3 or table.shape[0] != 1:
        return None
    fits = isinstance(children.get("layers"), nn.ModuleList)
    fits = fits and children.get("layernorm") is not None
    return table.shape[1] if fits else None


def pad_positions(encoder: Any, multiple: int, *, name: str) -> None:
    """Have an encoder pad what its layers are given, in place.

    No position attends to those that are added, and none of them comes out of the last
    norm.

    Args:
        encoder: As in ViT.
        multiple: What the padded length is a multiple of.
        name: What to call it in messages.

    Raises:
        ValueError: Another encoder.
    """
    if num_positions(encoder) is None:
        raise ValueError(
            f"{name}: {type(encoder).__name__} has no embeddings of positions, layers "
            f"and a last norm, between which its sequence could be padded"
        )
    added = 0

    def pad(_module: nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:
        nonlocal added
        added = -output.shape[1] % multiple
        return functional.pad(output, (0, 0, 0, added))

    def mask(
        _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        hidden, *rest = args
        given = rest[0] if rest else kwargs.get("attention_mask")
        if added == 0:
            return args, kwargs
        if given is not None:
            raise ValueError(
                f"{name}: its sequence is padded for sequence parallelism, and takes "
                f"no attention_mask; use auto_plan(..., sequence_parallel=False)"
            )
        kwargs = {**kwargs, "attention_mask": _mask(hidden, added)}
        return (hidden, *rest[1:]), kwargs

    def unpad(_module: nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:
        return output[:, : output.shape[1] - added]

    encoder.embeddings.register_forward_hook(pad)
    for layer in encoder.layers:
        layer.register_forward_pre_hook(mask, with_kwargs=True)
    encoder.layernorm.register_forward_hook(unpad)


def _mask(hidden: torch.Tensor, added: int) -> torch.Tensor:
    """What is added to scores [batch, heads, seq, seq]."""
    length = hidden.shape[1]
    is_added = torch.arange(length, device=hidden.device) >= length - added
    lowest = torch.finfo(hidden.dtype).min
    mask = hidden.new_zeros(length).masked_fill(is_added, lowest)
    return mask.reshape(1, 1, 1, length)
