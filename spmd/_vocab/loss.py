"""Cross entropy of logits that stay split: over batch, sequence and vocabulary.

No matrix [tokens, vocab] is made. The label's logit is picked by comparing a counter
with the label, so that each device looks at the part of the vocabulary that it has, and
what is added up over devices has one number per token.
"""

from __future__ import annotations

import math
from typing import Any

import torch

_FLATTENING = {"ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0"}
_MEAN, _SUM = 1, 2  # at::Reduction


def cross_entropy(
    logits: torch.Tensor,
    target: torch.Tensor,
    weight: torch.Tensor | None = None,
    reduction: int = _MEAN,
    ignore_index: int = -100,
    label_smoothing: float = 0.0,
) -> Any:
    """`torch.nn.functional.cross_entropy` for labels.

    Where logits [batch, seq, vocab] were flattened to [tokens, vocab] for it, that is
    undone. Computed in float32 at least.

    Args:
        logits: [tokens, vocab], or [vocab] of one token.
        target: Labels [tokens].
        weight: Per class.
        reduction: torch's number: 0 none, 1 mean, 2 sum.
        ignore_index: Label of tokens that do not count.
        label_smoothing: Between 0 and 1.

    Returns:
        A scalar, or [tokens] without reduction; `NotImplemented` for class weights,
        for probabilities instead of labels, and for logits of other dims.
    """
    if weight is not None or not 1 <= logits.ndim <= 2:
        return NotImplemented
    if target.is_floating_point() or logits.shape[:-1] != target.shape:
        return NotImplemented
    if not logits.is_floating_point() or not 0.0 <= label_smoothing <= 1.0:
        return NotImplemented
    lead = _shape_before(logits)[:-1]
    logits = logits.reshape(*lead, logits.shape[-1])
    labels = target.reshape(lead)
    both: Any = _CrossEntropy.apply(logits, labels, ignore_index, label_smoothing)
    losses, _ = both
    if reduction == _MEAN:
        # A sum of floats, like the losses: XLA joins the reductions of one dtype.
        counted = (labels != ignore_index).to(losses.dtype)
        losses = losses.sum() / counted.sum()
    elif reduction == _SUM:
        losses = losses.sum()
    else:
        losses = losses.reshape(target.shape)
    return losses.to(logits.dtype)


def _shape_before(logits: torch.Tensor) -> tuple[int, ...]:
    """Shape before the leading dims were flattened, if that is the last thing done."""
    node, shape = logits.grad_fn, tuple(logits.shape)
    while node is not None and node.name() == "ToCopyBackward0":  # as autocast does
        node = node.next_functions[0][0]
    if node is not None and node.name() in _FLATTENING:
        before = tuple(int(n) for n in getattr(node, "_saved_self_sym_sizes", ()))
    elif node is None and logits._base is not None:
        before = tuple(logits._base.shape)
    else:
        return shape
    fits = before[-1:] == shape[-1:] and math.prod(before) == math.prod(shape)
    return before if fits and len(before) > 2 else shape


class _CrossEntropy(torch.autograd.Function):
    """Loss per token in float32 or more, and the logarithm of its normaliser."""

    @staticmethod
    def forward(
        logits: torch.Tensor, labels: torch.Tensor, ignore: int, smoothing: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = _wide(logits)
        norm = _log_normaliser(wide)
        picked = torch.where(_is_label(logits, labels), wide, 0.0).sum(-1)
        losses = norm - (1.0 - smoothing) * picked
        if smoothing:
            losses = losses - smoothing * wide.mean(-1)
        return losses.masked_fill(labels == ignore, 0.0), norm

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        logits, labels, ctx.ignore, ctx.smoothing = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(logits, labels, output[1])

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        logits, labels, norm = ctx.saved_tensors
        wide = _wide(logits)
        if torch.is_grad_enabled():  # a second derivative goes through it
            norm = _log_normaliser(wide)
        share = ctx.smoothing / logits.shape[-1]
        wanted = _is_label(logits, labels).to(wide.dtype) * (1.0 - ctx.smoothing)
        grad = grads[0].masked_fill(labels == ctx.ignore, 0.0)
        change = (wide - norm.unsqueeze(-1)).exp() - wanted - share
        return (change * grad.unsqueeze(-1)).to(logits.dtype), None, None, None


def _wide(logits: torch.Tensor) -> torch.Tensor:
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _log_normaliser(logits: torch.Tensor) -> torch.Tensor:
    """`logsumexp`, without its care for rows of infinities."""
    top = logits.detach().amax(-1, keepdim=True)
    return (logits - top).exp().sum(-1).log() + top.squeeze(-1)


def _is_label(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    classes = torch.arange(logits.shape[-1], device=logits.device)
    return classes == labels.unsqueeze(-1)
