"""`sharding_preserving`: torch's operations without flattening, so that splits survive.

A tensor [batch, seq, embed] that is split on batch and sequence cannot be said as
[batch * seq, embed]: where an operation flattens it, the compiler gathers. Inside this
context, and inside `compile_step` and `trace`, the operations in `PRESERVED` keep their
dims on the XLA device. The kernels are torch's own mechanism, and are taken away again
at the end, so that nothing else ever sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import MappingProxyType
from typing import Any

import torch

from spmd._ops.host_sums import Rows, hosts_last
from spmd._preserve.hf import transformers_layers
from spmd._preserve.norm import layer_norm
from spmd._preserve.products import linear, matmul
from spmd._preserve.topk import topk
from spmd._vocab.embedding import embedding
from spmd._vocab.loss import cross_entropy

_KERNELS: dict[str, Callable[..., Any]] = {
    "cross_entropy_loss": cross_entropy,
    "embedding": embedding,
    "layer_norm": layer_norm,
    "linear": linear,
    "matmul": matmul,
    "topk": topk,
}

_WITHOUT_A_DECOMPOSITION = {"embedding", "topk"}

PRESERVED: Mapping[str, str] = MappingProxyType(
    {
        "torch.nn.functional.linear": "three dims or more, as in nn.Linear",
        "torch.matmul": "unless both have at most two dims, or both three",
        "torch.nn.functional.scaled_dot_product_attention": "its two products",
        "torch.nn.functional.layer_norm": "with a leading dim",
        "torch.nn.functional.embedding": "ids of any shape",
        "torch.nn.functional.cross_entropy": "labels [tokens] without class weights",
        "torch.topk": "32 floats at most",
        "transformers.pytorch_utils.Conv1D": "GPT-2's linear layer",
        "transformers.models.falcon.FalconAttention": "its split into heads",
    }
)
"""What `sharding_preserving` replaces, and for which arguments.

Operations that are made of these (``@``, `torch.nn.Linear`, Hugging Face's attention)
are replaced with them.
"""

# Module variables rather than context variables: autograd's threads recompute layers.
_chosen: bool | None = None  # what the user asked for
_installed: ExitStack | None = None  # takes the kernels away


@contextmanager
def sharding_preserving(on: bool = True) -> Iterator[None]:
    """Keep the dims of linear layers, products, attention, norms and losses.

    Values and gradients are torch's, up to rounding. `compile_step` and `trace` do it
    by themselves; ``sharding_preserving(False)`` around them, or inside the step,
    leaves torch's own operations in place. Steps that run lazily need it around
    the forward, and around the backward where that recomputes layers. The innermost
    one decides, for the whole process.

    Args:
        on: Whether to replace what is in `PRESERVED`.

    Yields:
        Nothing.

    Example::

        with spmd.sharding_preserving():
            loss = model(batch).loss
            loss.backward()
    """
    global _chosen
    before = _chosen
    _chosen = on
    try:
        with _kernels(on):
            yield
    finally:
        _chosen = before


@contextmanager
def preserving_in_trace(rows: Rows | None = None) -> Iterator[None]:
    """What a trace enters: on, unless the user said otherwise around it.

    Args:
        rows: How the step's rows are split, for gradients that are added up inside a
            host first.

    Yields:
        Nothing.
    """
    on = _chosen is not False
    with _kernels(on), hosts_last(rows if on else None):
        yield


@contextmanager
def _kernels(on: bool) -> Iterator[None]:
    """Put the kernels in place or take them away, and undo that at the end."""
    before = _installed is not None
    _switch(on)
    try:
        yield
    finally:
        _switch(before)


def _switch(on: bool) -> None:
    global _installed
    if on and _installed is None:
        with ExitStack() as stack:
            library = torch.library.Library("aten", "IMPL")
            stack.callback(library._destroy)
            for name, function in _KERNELS.items():
                library.impl(name, _kernel(name, function), "AutogradXLA")
            stack.enter_context(transformers_layers())
            _installed = stack.pop_all()
        _forget()
    elif not on and _installed is not None:
        _installed.close()
        _installed = None
        _forget()


def _forget() -> None:
    """Have torch's tracers, as under scanned layers, look for kernels again."""
    for name in _KERNELS:
        getattr(torch.ops.aten, name).default._dispatch_cache.clear()


def _kernel(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """A kernel that leaves to torch's decomposition what `function` leaves alone.

    Under `torch.func` it leaves everything: gradients of ours are unknown there.
    """
    operation: Any = getattr(torch.ops.aten, name).default
    composite = torch._C.DispatchKey.CompositeImplicitAutograd

    def kernel(*args: Any, **kwargs: Any) -> Any:
        if name not in _WITHOUT_A_DECOMPOSITION and _in_transform():
            return operation._op_dk(composite, *args, **kwargs)
        result = function(*args, **kwargs)
        if result is NotImplemented:
            return operation._op_dk(composite, *args, **kwargs)
        return result

    return kernel


def _in_transform() -> bool:
    return torch._C._are_functorch_transforms_active()
