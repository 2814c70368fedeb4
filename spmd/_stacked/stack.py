"""Stack the tensors of equal layers: [layers, ...] instead of one for each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from spmd._marking.annotation import Annotation, hook_of, remember
from spmd._marking.attributes import copy_attributes
from spmd._marking.mark import get_sharding
from spmd._marking.promise import promised
from spmd._marking.replaced import replaced
from spmd._program.value import STACKED
from spmd._stacked.layers import Stacked, join, refill
from spmd._trace.stand_in import exchange

Tensors = list[torch.Tensor]


def stack_layers(
    layers: nn.Module,
    *,
    name: str,
    others: Mapping[int, str] | None = None,
    kind: type[Stacked] = Stacked,
) -> None:
    """Hold the tensors of equal layers stacked, in place.

    An optimizer has to be made after this: one that holds what is no parameter any more
    refuses to step.

    Args:
        layers: A list of layers of equal structure; it gets a class of its own.
        name: What it is called, for messages.
        others: Names of the parameters outside the list, by their identity.
        kind: What the list becomes, besides what it is.

    Raises:
        ValueError: A tensor that is promised, that has hooks, or that is tied to one of
            another layer or outside the list.
    """
    children: list[Any] = list(layers._modules.values())
    names = tuple(layers._modules)
    owners = [dict(child.named_modules()) for child in children]
    _check_free(owners, names, name, dict(others or {}))
    done: dict[int, torch.Tensor] = {}
    for path, first in owners[0].items():
        for table in ("_parameters", "_buffers"):
            tables = [getattr(own[path], table) for own in owners]
            for key in getattr(first, table):
                label = join(path, key)
                called = [f"{name}.{n}.{label}" for n in names]
                _stack_entry(tables, key, done, called, f"{name}.{STACKED}.{label}")
    refill(layers._modules, {STACKED: children[0]})
    layers.__dict__.update(_spmd_layers=names, _shells=children)
    own = type(layers)
    stacked: Any = type(f"{kind.__name__}{own.__name__}", (kind, own), {})
    layers.__class__ = stacked


def _check_free(
    owners: Sequence[dict[str, nn.Module]],
    names: Sequence[str],
    where: str,
    seen: dict[int, str],
) -> None:
    """Refuse what would be another thing once it is stacked."""
    for own, name in zip(owners, names, strict=True):
        for label, tensor in _entries(own):
            full = f"{where}.{name}.{label}"
            first = seen.setdefault(id(tensor), full)
            if not isinstance(tensor, nn.Parameter) or first == full:
                continue
            if not first.startswith(f"{where}.{name}."):
                raise ValueError(
                    f"{full} {list(tensor.shape)} is tied to {first}; stacked, the "
                    f"two would be trained apart. Untie them, or leave scan_layers out"
                )
    for own, name in zip(owners, names, strict=True):
        for label, tensor in _entries(own):
            full = f"{where}.{name}.{label} {list(tensor.shape)}"
            if promised(tensor) is not None:
                raise ValueError(
                    f"{full} waits for values that were promised to it; wrap the "
                    f"model first, then materialize or load"
                )
            if _is_hooked(tensor):
                raise ValueError(
                    f"{full} has hooks of its own, which its stack would not have; "
                    f"register them after the model is wrapped, on the stacked "
                    f"parameter, or leave scan_layers out"
                )


def _entries(owners: dict[str, nn.Module]) -> Iterator[tuple[str, torch.Tensor]]:
    for path, module in owners.items():
        for table in (module._parameters, module._buffers):
            for key, tensor in table.items():
                if tensor is not None:
                    yield join(path, key), tensor


def _is_hooked(tensor: torch.Tensor) -> bool:
    ours = 0 if hook_of(tensor) is None else 1
    own = len(tensor._backward_hooks or ()) - ours
    return own > 0 or bool(getattr(tensor, "_post_accumulate_grad_hooks", None))


def _stack_entry(
    tables: Sequence[dict[str, Any]],
    key: str,
    done: dict[int, torch.Tensor],
    names: Sequence[str],
    now: str,
) -> None:
    """Put the stack of one entry of all layers in the first layer's place."""
    parts = [table[key] for table in tables]
    if parts[0] is None:
        return
    first = id(parts[0])
    if first not in done:  # tied inside a layer, it comes twice
        done[first] = _stack(parts)
        for old, name in zip(parts, names, strict=True):
            if isinstance(old, nn.Parameter):
                replaced(old, name=name, by=now)
    tables[0][key] = done[first]
    for table in tables[1:]:
        table[key] = None


def _stack(parts: Tensors) -> torch.Tensor:
    first = parts[0]
    made = _joined(parts, get_sharding(first))
    if isinstance(first, nn.Parameter):
        made = _parameter(made, first.requires_grad)
        gradients = [p.grad for p in parts]
        if any(g is not None for g in gradients):
            filled = [
                torch.zeros_like(p) if g is None else g
                for p, g in zip(parts, gradients, strict=True)
            ]
            made.grad = _joined(filled, get_sharding(first))
    known = get_sharding(first)
    made = copy_attributes(first, made)
    return made if known is None else remember(made, known.mesh, (None, *known.spec))


def _parameter(value: torch.Tensor, requires_grad: bool) -> nn.Parameter:
    """A parameter that is no view: torch_xla keeps the annotation of a view's base."""
    made = nn.Parameter(torch.empty(0, dtype=value.dtype), requires_grad)
    exchange(made, value.requires_grad_(requires_grad))
    return made


def _joined(parts: Tensors, known: Annotation | None) -> torch.Tensor:
    """The stack as data: what a graph would compute anew in each step is no state."""
    value = torch.stack([p.detach() for p in parts])
    if value.device.type == "xla":
        from spmd._torch_xla import graph as torch_xla_graph
        from spmd._torch_xla import seam

        if known is not None:
            seam.mark(value, known.mesh, (None, *known.spec))
        torch_xla_graph.execute([value])
    return value
