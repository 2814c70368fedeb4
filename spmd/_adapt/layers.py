"""Layers of transformers that flatten [batch, seq, embed], which they need not do.

What is split on batch and sequence cannot be said as [batch * seq, embed]: the compiler
gathers.
"""

from __future__ import annotations

from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.nn.functional import dropout

FLATTENING = ("OPTDecoderLayer",)
"""Classes of layers that `unflatten` knows."""


def unflatten(layer: nn.Module, *, name: str) -> None:
    """Have a layer give its MLP [batch, seq, embed], in place.

    Args:
        layer: One of a class in `FLATTENING`.
        name: What to call it in messages.

    Raises:
        ValueError: A layer of another class.
    """
    if type(layer).__name__ not in FLATTENING:
        raise ValueError(
            f"{name}: {type(layer).__name__} is not known to flatten; layers that do: "
            f"{', '.join(FLATTENING)}"
        )
    layer.forward = MethodType(_opt_layer, layer)


def _opt_layer(
    self: Any,
    hidden_states: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    **kwargs: Any,
) -> torch.Tensor:
    """OPT's layer: attention and MLP, each behind or before its norm.

    Args:
        self: The layer.
        hidden_states: [batch, seq, embed].
        attention_mask: For its attention.
        kwargs: For its attention; ``use_cache`` is the model's affair.

    Returns:
        [batch, seq, embed].
    """
    kwargs.pop("use_cache", None)

    def attention(x: torch.Tensor) -> torch.Tensor:
        return self.self_attn(hidden_states=x, attention_mask=attention_mask, **kwargs)[
            0
        ]

    def mlp(x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.activation_fn(self.fc1(x)))

    norms = self.self_attn_layer_norm, self.final_layer_norm
    for norm, part in zip(norms, (attention, mlp), strict=True):
        before = self.do_layer_norm_before  # not so in OPT 350M
        made = part(norm(hidden_states) if before else hidden_states)
        made = dropout(made, p=self.dropout, training=self.training)
        hidden_states = hidden_states + made
        hidden_states = hidden_states if before else norm(hidden_states)
    return hidden_states
