"""`Held`: what two steps hold otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from profiling._findings.why import pattern_of
from profiling._memory.use import HeldTensor

Specs: TypeAlias = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """Inputs that are split otherwise, or take more or less of a device.

    Attributes:
        role: What they are to the step.
        pattern: Their name, with ``*`` for numbers of layers.
        before: How they are split in A; empty where A has none.
        after: How they are split in B; empty where B has none.
        before_bytes: On one device, all of them, in A.
        after_bytes: The same in B.
    """

    role: str
    pattern: str
    before: Specs
    after: Specs
    before_bytes: int
    after_bytes: int


def held(before: Sequence[HeldTensor], after: Sequence[HeldTensor]) -> tuple[Held, ...]:
    """Compare the inputs of two steps.

    Args:
        before: Of the first.
        after: Of the second.

    Returns:
        Those that are split otherwise or take more or less, largest difference first.
    """
    found = _held(before, after)
    return tuple(
        sorted(found, key=lambda h: (-abs(h.after_bytes - h.before_bytes), h.pattern))
    )


def _held(before: Sequence[HeldTensor], after: Sequence[HeldTensor]) -> Iterator[Held]:
    old, new = _splits(before), _splits(after)
    nothing: tuple[Specs, int] = ((), 0)
    for key in dict.fromkeys((*old, *new)):
        (a, a_bytes), (b, b_bytes) = old.get(key, nothing), new.get(key, nothing)
        if (a, a_bytes) != (b, b_bytes):
            yield Held(*key, a, b, a_bytes, b_bytes)


def _splits(
    tensors: Sequence[HeldTensor],
) -> Mapping[tuple[str, str], tuple[Specs, int]]:
    found: dict[tuple[str, str], tuple[Specs, int]] = {}
    for tensor in tensors:
        key = tensor.role, pattern_of(tensor.name)
        specs, size = found.get(key, ((), 0))
        specs = tuple(sorted({*specs, _spec_text(tensor)}))
        found[key] = specs, size + tensor.device_bytes
    return found


def _spec_text(tensor: HeldTensor) -> str:
    if tensor.spec is None or not any(tensor.spec):
        return "whole"
    parts = [
        " x ".join((entry,) if isinstance(entry, str) else entry) if entry else "-"
        for entry in tensor.spec
    ]
    return f"({', '.join(parts)})"
