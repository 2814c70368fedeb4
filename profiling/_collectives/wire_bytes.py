"""How many bytes a collective puts on the wire.

Bytes that one device sends (and receives) in the ring algorithms, which are optimal in
bandwidth: "Performance reported by NCCL tests" in NVIDIA's nccl-tests
(doc/PERFORMANCE.md, bus bandwidth) and Thakur, Rabenseifner and Gropp, "Optimization of
Collective Communication Operations in MPICH", 2005.
"""

from __future__ import annotations

from fractions import Fraction


def wire_bytes(
    kind: str, num_devices: int, *, operand_bytes: int, output_bytes: int
) -> int:
    """Bytes per device of one execution, rounded up.

    With n devices in a group: all-gather (n-1)/n of the gathered output,
    reduce-scatter (n-1)/n of the operand, all-reduce 2(n-1)/n of it, all-to-all
    (n-1)/n of it (of a ragged one that is the most it can be), permute and broadcast
    the operand once.

    Args:
        kind: Opcode without ``-start``.
        num_devices: Devices in a group.
        operand_bytes: All operands on one device.
        output_bytes: All results on one device.

    Returns:
        Bytes.

    Raises:
        ValueError: A kind that is no collective.

    Example:
        >>> wire_bytes("all-gather", 4, operand_bytes=256, output_bytes=1024)
        768
        >>> wire_bytes("all-reduce", 4, operand_bytes=1024, output_bytes=1024)
        1536
    """
    if kind not in _SHARE:
        raise ValueError(f"no collective {kind!r}; there are {', '.join(_SHARE)}")
    if num_devices < 2:
        return 0
    whole = output_bytes if kind == "all-gather" else operand_bytes
    passes, is_split = _SHARE[kind]
    share = Fraction(num_devices - 1, num_devices) if is_split else Fraction(1)
    sent = passes * share * whole
    return -(-sent.numerator // sent.denominator)


_SHARE: dict[str, tuple[int, bool]] = {
    "all-gather": (1, True),
    "all-reduce": (2, True),
    "all-to-all": (1, True),
    "collective-broadcast": (1, False),
    "collective-permute": (1, False),
    "ragged-all-to-all": (1, True),
    "reduce-scatter": (1, True),
}
