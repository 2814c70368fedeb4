"""Layers of transformers that flatten, or index by lists, by themselves."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch


def _conv1d(self: Any, x: torch.Tensor) -> torch.Tensor:
    """GPT-2's linear layer: [..., in] times a weight [in, out], plus a bias [out]."""
    return torch.matmul(x, self.weight) + self.bias


def _split_heads(original: Callable[..., Any]) -> Callable[..., Any]:
    """Falcon's groups of heads, without the index tensor that ``[[-2]]`` becomes."""

    def split(self: Any, fused_qkv: torch.Tensor) -> Any:
        batch, seq, _ = fused_qkv.shape
        if not self.new_decoder_architecture:
            if not self.multi_query:
                return original(self, fused_qkv)
            # [batch, seq, queries and one key and one value, head_dim]
            heads = fused_qkv.view(batch, seq, self.num_heads + 2, self.head_dim)
            return heads.split([self.num_heads, 1, 1], dim=2)
        per_group = self.num_heads // self.num_kv_heads
        # [batch, seq, groups, queries and one key and one value, head_dim]
        groups = fused_qkv.view(batch, seq, -1, per_group + 2, self.head_dim)
        query, key, value = groups.split([per_group, 1, 1], dim=3)
        spread = (t.expand(query.shape) for t in (query, key, value))
        return tuple(t.flatten(2, 3) for t in spread)

    return split


_LAYERS: dict[tuple[str, str, str], Callable[..., Any]] = {
    ("pytorch_utils", "Conv1D", "forward"): lambda _: _conv1d,
    (
        "models.falcon.modeling_falcon",
        "FalconAttention",
        "_split_heads",
    ): _split_heads,
}


@contextmanager
def transformers_layers() -> Iterator[None]:
    """Replace methods of those layers whose modules are loaded, and put them back.

    Yields:
        Nothing.
    """
    with ExitStack() as stack:
        for (module, kind, method), make in _LAYERS.items():
            layer = getattr(sys.modules.get(f"transformers.{module}"), kind, None)
            if layer is not None:
                original = getattr(layer, method)
                setattr(layer, method, make(original))
                stack.callback(setattr, layer, method, original)
        yield
