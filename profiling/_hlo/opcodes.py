"""Names of HLO opcodes, so that a damaged one is noticed.

An opcode XLA may add tomorrow is let through; one that is a letter or two away from a
known one is damage, and would hide a collective. Source: XLA's `hlo_opcode.h`.
"""

from __future__ import annotations

import difflib
import functools

from profiling._hlo.damage import TextFault

COLLECTIVES = (
    "all-gather",
    "all-reduce",
    "all-to-all",
    "collective-broadcast",
    "collective-permute",
    "ragged-all-to-all",
    "reduce-scatter",
)
"""Opcodes that move data between devices, without ``-start`` and ``-done``."""

OPCODES = frozenset(
    """
    abs acos acosh add add-dependency after-all and asin asinh atan2 atanh
    batch-norm-grad batch-norm-inference batch-norm-training bitcast bitcast-convert
    broadcast call cbrt ceil cholesky clamp compare complex concatenate conditional
    constant convert convolution copy copy-done copy-start cosh cosine
    count-leading-zeros custom-call divide domain dot dynamic-reshape dynamic-slice
    dynamic-update-slice erf exponential exponential-minus-one fft floor fusion gather
    get-dimension-size get-tuple-element imag infeed iota is-finite log log-plus-one
    logistic map maximum minimum mulhi multiply negate not opt-barrier or outfeed pad
    parameter partition-id popcnt power ragged-dot real recv recv-done reduce
    reduce-precision reduce-window remainder replica-id reshape reverse rng
    rng-bit-generator rng-get-and-update-state round-nearest-afz round-nearest-even
    rsqrt scaled-dot scan scatter select select-and-scatter send send-done
    set-dimension-size shift-left shift-right-arithmetic shift-right-logical sign sine
    sinh slice sort sqrt stochastic-convert subtract tan tanh topk transpose
    triangular-solve tuple while xor
    """.split()
) | {
    name + suffix
    for name in ("async", *COLLECTIVES)
    for suffix in ("", "-start", "-update", "-done")
}
"""All that are known."""

_NEAR = 0.85


@functools.lru_cache(maxsize=1024)
def nearest(opcode: str) -> str:
    """The known opcode that this one is a misspelling of.

    Args:
        opcode: As read.

    Returns:
        The other; empty for a known opcode, or one that resembles none.

    Example:
        >>> nearest("all-redoce"), nearest("all-reduce"), nearest("quantize")
        ('all-reduce', '', '')
    """
    base = opcode
    for suffix in ("-start", "-update", "-done"):
        base = base.removesuffix(suffix)
    if opcode in OPCODES or base in OPCODES:
        return ""
    found = difflib.get_close_matches(opcode, OPCODES, n=1, cutoff=_NEAR)
    return found[0] if found else ""


def check_opcode(opcode: str, at: int) -> None:
    """Refuse an opcode that is a misspelling.

    Args:
        opcode: As read.
        at: Its column.

    Raises:
        TextFault: It is one.
    """
    if opcode not in OPCODES and (other := nearest(opcode)):
        raise TextFault(f"no opcode {opcode!r}; {other!r} is meant?", at)
