"""The part of the seam to torch_xla that records a loop.

Like `_torch_xla`, written against torch_xla 2.9; nothing else may touch its internals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch_xla.experimental import scan as _scan

Tensors = list[torch.Tensor]


def loop(
    body: Callable[[Tensors, Tensors], tuple[Tensors, Tensors]],
    carry: Sequence[torch.Tensor],
    xs: Sequence[torch.Tensor],
    *,
    reverse: bool = False,
) -> tuple[Tensors, Tensors]:
    """Run one body for each entry of the leading dim, as a loop of the compiler.

    The body is recorded once, on traced values that hold no data: annotations inside it
    work. Gradients are not tracked.

    Args:
        body: Takes what is carried and a slice of `xs`; gives what is carried on, of
            the same shapes, and what is kept of each run.
        carry: What the first run starts from.
        xs: Tensors [runs, ...].
        reverse: From the last entry to the first.

    Returns:
        What the last run carried on, and what was kept, [runs, ...].
    """
    impl = _scan._scan_impl_flat
    with torch.no_grad():
        last, kept = impl(body, list(carry), list(xs), reverse=reverse)
    return list(last), list(kept)
