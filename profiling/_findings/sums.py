"""What a group of collectives costs together, as the fields of a `Finding`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from profiling._collectives.collective import Collective


def cost_of(
    collectives: Sequence[Collective], *, module: str = "", source: str = ""
) -> dict[str, Any]:
    """Sum up collectives.

    Args:
        collectives: At least one.
        module: To be named first.
        source: To be named first.

    Returns:
        Keyword arguments of `Finding`.
    """
    largest = sorted(collectives, key=lambda c: -c.step_wire_bytes)
    exposed = [c.exposed_s for c in largest if c.exposed_s is not None]
    links = [c.link for c in sorted(largest, key=lambda c: not c.crosses_hosts)]
    return {
        "tensors": _each(c.moved[0].tensor or c.moved[0].shape for c in largest),
        "axes": _each(a for c in largest for a in c.axes),
        "link": next(iter(_each(links)), ""),
        "modules": _each([module, *(c.module for c in largest)]),
        "phases": _each(c.phase for c in largest),
        "sources": _each([source, *(c.source for c in largest)]),
        "collectives": tuple(c.name for c in largest),
        "wire_bytes": sum(c.step_wire_bytes for c in largest),
        "exposed_s": sum(exposed) if exposed else None,
    }


def _each(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(name for name in names if name))
