"""The least that one device sends in a training step, in closed form.

Of the axes replica, fsdp and tensor any may be left out. Collectives cost what ring
algorithms send, which none undercuts (Patarasuk and Yuan, "Bandwidth optimal all-reduce
algorithms for clusters of workstations", 2009): with n devices (n-1)/n of the whole to
gather it, to reduce and scatter it, or to exchange it all to all, and twice that to
reduce it for all. What has to move:

- fsdp: a weight is gathered, and its gradient reduced and scattered (Rajbhandari et
  al., "ZeRO", 2020, section 7). Gathered once where it is kept for the backward pass,
  twice where a layer is computed again.
- replica: each device's part of a gradient is reduced for all (data parallelism).
- tensor: two reductions of [batch, seq, hidden] in a layer's forward and two in its
  backward (Shoeybi et al., "Megatron-LM", 2019, section 3), one of what is looked up
  and one of the head's gradient. With the sequence split in between, each is a gather
  and a scatter (Korthikanti et al., "Reducing Activation Recomputation", 2022, section
  4.2), which is the same.
- Logits stay split: three numbers per token are reduced, in float32.
- Rows of the embedding are exchanged over fsdp by those who have columns of them, or
  the table is gathered as any weight and its gradient scattered: whatever is less.

Gradients are dense, and in the dtype of their weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

AXES = ("replica", "fsdp", "tensor")
PARTS = ("weight gather", "gradient reduction", "activation")


@dataclass(frozen=True, slots=True)
class Work:
    """What a step of a transformer works on.

    Attributes:
        layers: Number of layers.
        layer_bytes: Matrices of one layer.
        norm_bytes: All norms' weights, whole on every device.
        table_bytes: The embedding.
        head_bytes: The matrix that gives logits.
        tokens: Tokens of one device of the data axes.
        token_bytes: Of one token between layers.
    """

    layers: int
    layer_bytes: int
    norm_bytes: int
    table_bytes: int
    head_bytes: int
    tokens: int
    token_bytes: int


def minimum(
    work: Work, axes: Mapping[str, int], *, sequence: bool = False, again: bool = False
) -> dict[str, Fraction]:
    """Bytes that one device sends.

    Args:
        work: What the step works on.
        axes: Sizes of the axes ``replica``, ``fsdp`` and ``tensor``.
        sequence: The sequence is split over tensor between layers.
        again: Layers are computed again in the backward pass.

    Returns:
        Bytes by what they are for, each of `PARTS`.

    Raises:
        ValueError: Another axis.

    Example:
        >>> work = Work(1, 800, 0, 0, 0, 1, 8)
        >>> found = minimum(work, {"fsdp": 4})
        >>> {part: int(size) for part, size in found.items()}
        {'weight gather': 600, 'gradient reduction': 600, 'activation': 0}
    """
    for axis in axes:
        if axis not in AXES:
            raise ValueError(f"no formula for the axis {axis!r}; there are {AXES}")
    replica, fsdp, tensor = (axes.get(axis, 1) for axis in AXES)
    layers = Fraction(work.layers * work.layer_bytes, tensor)
    head, table = (Fraction(n, tensor) for n in (work.head_bytes, work.table_bytes))
    between = work.tokens * work.token_bytes
    is_gathered = table < between
    once = share(fsdp) * (layers + head + (table if is_gathered else 0))
    reductions = (4 * work.layers + 2) * 2 * share(tensor) * between
    numbers = 3 * 2 * share(tensor) * work.tokens * 4
    copies = replica * fsdp * (tensor if sequence else 1)
    return {
        "weight gather": once + (share(fsdp) * layers if again else 0),
        "gradient reduction": once
        + 2 * share(replica) * (layers + head + table) / fsdp
        + 2 * share(copies) * work.norm_bytes,
        "activation": reductions
        + numbers
        + (0 if is_gathered else 2 * share(fsdp) * between),
    }


def share(num_devices: int) -> Fraction:
    """What is not on a device itself, of something that n devices split."""
    return Fraction(num_devices - 1, num_devices)
