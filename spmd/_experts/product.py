"""Products with the weights of experts, which torch's function modes see.

A mode is given `product` and `plus` with the weights themselves, so that it can say
what their gradients are.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.overrides import handle_torch_function, has_torch_function

from spmd._preserve.dot import Dims, dot

Axes = tuple[str, ...]


def product(
    a: torch.Tensor,
    weights: Sequence[torch.Tensor],
    dims: Dims,
    *,
    axes: Axes | None = None,
) -> torch.Tensor:
    """A product with a weight, or with several as one.

    Args:
        a: [rows, ...].
        weights: [expert, ...]; several are of one shape, and stacked on dim 1.
        dims: Which dims of `a` and of the weight, or of the stack, are paired.
        axes: Axes that split the rows of `a`, and nothing else of it that is summed
            over for a weight's gradient; None where nobody says.

    Returns:
        Batch dims, other dims of `a`, other dims of the weight.

    Example:
        >>> x, gate, up = torch.ones(3, 2), torch.ones(4, 5, 2), torch.ones(4, 5, 2)
        >>> list(product(x, [gate, up], Dims((1,), (3,))).shape)
        [3, 4, 2, 5]
    """
    if has_torch_function((a, *weights)):
        return handle_torch_function(
            product, (a, *weights), a, weights, dims, axes=axes
        )
    b = stacked(weights)
    if a.dtype != b.dtype:
        wide = torch.promote_types(a.dtype, b.dtype)
        a, b = a.to(wide), b.to(wide)
    return dot(a, b, dims) if a.device.type == "xla" else _einsum(a, b, dims)


def plus(
    x: torch.Tensor, biases: Sequence[torch.Tensor], *, axes: Axes | None = None
) -> torch.Tensor:
    """A sum with a bias, or with several that stand side by side.

    Args:
        x: [rows, ..., expert, out], or with several [rows, ..., expert, biases, out].
        biases: [expert, out] each.
        axes: As in `product`.

    Returns:
        The shape of `x`.

    Example:
        >>> list(plus(torch.zeros(3, 4, 2, 5), [torch.ones(4, 5)] * 2).shape)
        [3, 4, 2, 5]
    """
    if has_torch_function((x, *biases)):
        return handle_torch_function(plus, (x, *biases), x, biases, axes=axes)
    return x + stacked(biases)


def stacked(weights: Sequence[torch.Tensor]) -> torch.Tensor:
    """Weights side by side, behind their experts.

    Args:
        weights: [expert, ...] each.

    Returns:
        The weight where there is one, else [expert, weights, ...].
    """
    return weights[0] if len(weights) == 1 else torch.stack(list(weights), 1)


def _einsum(a: torch.Tensor, b: torch.Tensor, dims: Dims) -> torch.Tensor:
    """Torch's product of the same, where there is no XLA device."""
    letters = iter("abcdefghij")
    of_b = [next(letters) for _ in range(b.ndim)]
    of_a = [next(letters) for _ in range(a.ndim)]
    for i, j in zip(
        (*dims.contract_a, *dims.batch_a),
        (*dims.contract_b, *dims.batch_b),
        strict=True,
    ):
        of_a[i] = of_b[j]
    out = [of_a[i] for i in (*dims.batch_a, *dims.free_a(a.ndim))]
    out += [of_b[i] for i in dims.free_b(b.ndim)]
    return torch.einsum(f"{''.join(of_a)},{''.join(of_b)}->{''.join(out)}", a, b)
