"""torch's topk of few values, in operations that split on every other dim.

torch sorts, and scatters the gradient of each value to where it came from by an index
of every dim. Compilers do not always see that a row only looks into itself, and gather
the rows, which a router of experts has one of per token.
"""

from __future__ import annotations

import torch

_FEW = 32


def topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> tuple[torch.Tensor, torch.Tensor]:
    """`torch.topk`.

    Of equal values the first one is first; NaN is larger than all, as for torch.

    Args:
        x: A tensor on the XLA device.
        k: How many.
        dim: Along which dim.
        largest: The largest, or the smallest.
        sorted: In order.

    Returns:
        Values and indices.
    """
    fits = -x.ndim <= dim < x.ndim and 0 < k <= min(_FEW, x.shape[dim])
    if not fits or not x.is_floating_point():
        with torch._C._AutoDispatchBelowAutograd():
            _, indices = torch.topk(x.detach(), k, dim, largest, sorted)
        return x.gather(dim, indices), indices
    rows = x.movedim(dim, -1)
    places = _places(rows.detach() if largest else -rows.detach(), k)
    counter = torch.arange(rows.shape[-1], device=x.device)
    is_here = places.unsqueeze(-1) == counter
    values = torch.where(is_here, rows.unsqueeze(-2), 0.0).sum(-1)
    # Not views: their rows may be normalised in place.
    return values.movedim(-1, dim).clone(), places.movedim(-1, dim).clone()


def _places(rows: torch.Tensor, k: int) -> torch.Tensor:
    """Where the largest of each row are: one maximum after the other."""
    lowest = torch.finfo(rows.dtype).min  # torch_xla's maximum of infinities below zero
    rows = torch.where(rows < lowest, lowest, rows)
    counter = torch.arange(rows.shape[-1], device=rows.device)
    taken = torch.zeros_like(rows, dtype=torch.bool)
    found = []
    for _ in range(k):
        left = rows.masked_fill(taken, lowest)
        top = left.amax(-1, keepdim=True)
        is_top = ((left == top) | left.isnan()) & ~taken
        found.append(torch.where(is_top, counter, len(counter)).amin(-1, keepdim=True))
        taken = taken | (counter == found[-1])
    return torch.cat(found, -1)
