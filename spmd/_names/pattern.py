"""Patterns over dotted names: what they match, and what is near when nothing does.

``*`` stands for one component or a part of one, ``**`` for any number of components
(none included), everything else for itself. A trailing ``[0]`` picks one output of a
module that returns a tuple.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Protocol, TypeVar

from spmd._names.collapse import star_form

_INDEX = re.compile(r"(?P<name>.*)\[(?P<index>[^\[\]]*)\]")


@lru_cache(maxsize=4096)
def split_index(pattern: str) -> tuple[str, int | None]:
    """Take the index of an output off a pattern.

    Args:
        pattern: Such as ``layers.*`` or ``layers.*[0]``.

    Returns:
        The pattern of the name, and the index or None.

    Raises:
        ValueError: Brackets that hold no number.

    Example:
        >>> split_index("layers.*[0]")
        ('layers.*', 0)
    """
    match = _INDEX.fullmatch(pattern)
    if match is None:
        return pattern, None
    if not match["index"].isdecimal():
        raise ValueError(
            f"pattern {pattern!r}: [{match['index']}] picks an output of a module; a "
            f"number from 0 is needed, e.g. '{match['name']}[0]'"
        )
    return match["name"], int(match["index"])


@lru_cache(maxsize=4096)
def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Turn a pattern into a regular expression.

    Args:
        pattern: Without the index of an output.

    Returns:
        An expression over a name with a dot after every component.

    Raises:
        ValueError: An empty component, or ``**`` inside a component.
    """
    regex = ""
    for part in pattern.split(".") if pattern else ():
        if not part:
            raise ValueError(
                f"pattern {pattern!r} has an empty component; write single dots "
                f"between names"
            )
        if "**" in part and part != "**":
            raise ValueError(
                f"pattern {pattern!r}: ** stands for whole components, so it has to "
                f"stand alone between dots; use * inside {part!r}"
            )
        regex += {"**": r"(?:[^.]+\.)*", "*": r"[^.]+\."}.get(
            part, re.escape(part).replace(r"\*", "[^.]*") + r"\."
        )
    return re.compile(regex)


def matching(pattern: str, names: Sequence[str]) -> tuple[str, ...]:
    """Pick the names that a pattern matches.

    Args:
        pattern: Without the index of an output.
        names: Parameter or module names; the root module is ``""``.

    Returns:
        Those that match, in their order.

    Raises:
        ValueError: A malformed pattern.

    Example:
        >>> matching(
        ...     "layers.*.*_proj", ["layers.0", "layers.0.q_proj", "layers.0.norm"]
        ... )
        ('layers.0.q_proj',)
        >>> matching("**.weight", ["weight", "layers.0.q_proj.weight"])
        ('weight', 'layers.0.q_proj.weight')
    """
    regex = compile_pattern(pattern)
    if "*" not in pattern:
        return (pattern,) if pattern in names else ()
    return tuple(n for n in names if regex.fullmatch(f"{n}." if n else ""))


class _HasPattern(Protocol):
    @property
    def pattern(self) -> str: ...


P = TypeVar("P", bound=_HasPattern)


def first_matching(rules: Iterable[P], names: Sequence[str]) -> dict[str, P]:
    """The first rule whose pattern matches each name.

    Args:
        rules: In order of precedence, each with a ``pattern``.
        names: Parameter or module names.

    Returns:
        By name; without names that none matches.
    """
    found: dict[str, P] = {}
    for rule in rules:
        for name in matching(rule.pattern, names):
            found.setdefault(name, rule)
    return found


def nearest(pattern: str, names: Iterable[str], *, limit: int = 3) -> tuple[str, ...]:
    """Find patterns that would match and look like one that does not.

    Args:
        pattern: A pattern without a match.
        names: The names there are. Integers become ``*``, so that the 80 layers of a
            model make one suggestion.
        limit: How many to give at most.

    Returns:
        Those that only have a longer prefix, else the most similar ones.

    Example:
        >>> nearest(
        ...     "layers.*.up.weight", [f"layers.{i}.up_proj.weight" for i in (0, 1)]
        ... )
        ('layers.*.up_proj.weight',)
    """
    wanted = star_form(split_index(pattern)[0])
    forms = tuple(dict.fromkeys(star_form(n) for n in names if n))
    prefixed = [f for f in forms if wanted and f.endswith(f".{wanted}")]
    if prefixed:
        return tuple(prefixed[:limit])
    return tuple(difflib.get_close_matches(wanted, forms, n=limit, cutoff=0.5))
