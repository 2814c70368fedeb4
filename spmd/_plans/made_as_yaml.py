"""What `auto_plan` adds to the patterns of a plan, as YAML."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import yaml

from spmd._adapt.rule import Adapted
from spmd._fused.rule import Experts, Fused
from spmd._plans.rule import PlanPart

Made: TypeAlias = tuple[
    tuple[str, ...], tuple[Fused, ...], tuple[Experts, ...], tuple[Adapted, ...]
]
"""Notes, fused weights, experts and adapted modules."""

SECTIONS = ("fused", "experts", "adapted", "notes")


def plain(part: PlanPart) -> dict[str, Any]:
    """Sections for what a part has besides its rules.

    Args:
        part: A part of a plan.

    Returns:
        Values that YAML knows; empty for most plans.
    """
    found = {
        "fused": {
            f.pattern: {"dim": f.dim, "parts": dict(f.parts)} for f in part.fused
        },
        "experts": {
            e.pattern: {name: list(shape) for name, shape in e.held}
            for e in part.experts
        },
        "adapted": {a.pattern: {a.how: a.size} for a in part.adapted},
        "notes": list(part.notes),
    }
    return {section: value for section, value in found.items() if value}


def read_made(text: str, *, where: str) -> list[Made]:
    """Read those sections of each document.

    Args:
        text: YAML that is a plan.
        where: What to call the text in an error.

    Returns:
        Notes, fused weights, experts and adapted modules of each document.

    Raises:
        ValueError: A section of another form.
    """
    return [_read(document, where) for document in yaml.safe_load_all(text)]


def _read(document: Any, where: str) -> Any:
    """A flat mapping of patterns has no such sections; a list there is a spec."""
    if not any(isinstance(value, Mapping) for value in document.values()):
        return (), (), (), ()
    try:
        fused = tuple(
            Fused(
                str(pattern),
                tuple((str(n), int(s)) for n, s in one["parts"].items()),
                int(one["dim"]),
            )
            for pattern, one in (document.get("fused") or {}).items()
        )
        experts = tuple(
            Experts(
                str(pattern),
                tuple((str(n), tuple(map(int, s))) for n, s in one.items()),
            )
            for pattern, one in (document.get("experts") or {}).items()
        )
        adapted = tuple(
            Adapted(str(pattern), how, int(size))
            for pattern, one in (document.get("adapted") or {}).items()
            for how, size in one.items()
        )
        notes = tuple(map(str, document.get("notes") or ()))
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(
            f"{where}: section 'fused' is a mapping of pattern to 'dim' and 'parts' "
            f"(sizes by name), 'experts' one of pattern to shapes by name, 'adapted' "
            f"one of pattern to a way and a size, 'notes' a list of strings"
        ) from None
    return notes, fused, experts, adapted
