"""Gradients that have gradients of their own, as a penalty on gradients asks for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from fsdpv2._made import Made

Optional = torch.Tensor | None


def twice(
    call: Callable[..., Any],
    rows: Sequence[torch.Tensor],
    weights: Sequence[Made | None],
    grad: torch.Tensor,
) -> tuple[list[Optional], list[Optional]]:
    """Gradients as torch's own functions give them, with a history.

    Args:
        call: What was called in the forward pass, for rows and weights.
        rows: With their history.
        weights: What the weights are made of; None for one that is not there.
        grad: Of the result.

    Returns:
        Those of the rows, and those of the weights' masters.
    """
    values = [None if w is None else w.value for w in weights]
    # Views, so that none of them is made of another one.
    given = [None if t is None else t.view_as(t) for t in (*rows, *values)]
    found = _gradients(call(*given), given, grad)
    of_masters: list[Optional] = []
    for made, value, one in zip(weights, values, found[len(rows) :], strict=True):
        if made is None or made.is_master or one is None:
            num = 1 if made is None else len(made.masters)
            of_masters += [one] * num
        else:
            assert value is not None
            of_masters += _gradients(value, made.masters, one)
    return found[: len(rows)], of_masters


def _gradients(
    value: torch.Tensor, given: Sequence[Optional], grad: torch.Tensor
) -> list[Optional]:
    asked = [t for t in given if t is not None and t.requires_grad]
    if not asked:
        return [None] * len(given)
    options = {"create_graph": True, "allow_unused": True}
    found = iter(torch.autograd.grad(value, asked, grad, **options))
    return [next(found) if t is not None and t.requires_grad else None for t in given]
