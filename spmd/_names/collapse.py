"""Write many similar things as one: ``0-7,16-23`` and ``layers.{0..31}.mlp``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_Indices = tuple[int, ...]


def ranges(values: Iterable[int], *, dash: str = "-") -> str:
    """Write integers as ranges.

    Args:
        values: Integers in any order.
        dash: What stands between the ends of a range of three or more.

    Returns:
        The sorted values.

    Example:
        >>> ranges([0, 1, 2, 3, 8, 9, 20])
        '0-3,8,9,20'
        >>> ranges(range(32), dash="..")
        '0..31'
    """
    runs: list[list[int]] = []
    for value in sorted(set(values)):
        if runs and value == runs[-1][-1] + 1:
            runs[-1].append(value)
        else:
            runs.append([value])
    return ",".join(
        f"{run[0]}{dash}{run[-1]}" if len(run) > 2 else ",".join(map(str, run))
        for run in runs
    )


def star_form(name: str) -> str:
    """Replace the integer components of a dotted name by ``*``.

    Args:
        name: A parameter's or module's name.

    Returns:
        The pattern that covers its siblings too.

    Example:
        >>> star_form("layers.3.mlp.w1")
        'layers.*.mlp.w1'
    """
    return ".".join("*" if part.isdecimal() else part for part in name.split("."))


def collapse(names: Sequence[str]) -> tuple[str, ...]:
    """Write names that differ in their integers only as one.

    Args:
        names: Dotted names.

    Returns:
        As few names with ``{...}`` as cover exactly these, in order of appearance.

    Example:
        >>> collapse(["layers.0.w", "layers.1.w", "layers.2.w", "norm.w"])
        ('layers.{0..2}.w', 'norm.w')
    """
    groups: dict[str, set[_Indices]] = {}
    for name in names:
        numbers = tuple(int(p) for p in name.split(".") if p.isdecimal())
        groups.setdefault(star_form(name), set()).add(numbers)
    return tuple(
        _filled(form, block)
        for form, found in groups.items()
        for block in _blocks(found)
    )


def _blocks(found: set[_Indices]) -> list[tuple[tuple[int, ...], ...]]:
    """Cover index tuples by products of sets.

    {(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)} is {0, 1} x {0, 1} and {2} x {0}.
    """
    if not all(found):
        return [()]
    tails: dict[int, set[_Indices]] = {}
    for head, *tail in sorted(found):
        tails.setdefault(head, set()).add(tuple(tail))
    heads: dict[frozenset[_Indices], list[int]] = {}
    for head, tail in tails.items():
        heads.setdefault(frozenset(tail), []).append(head)
    return [
        (tuple(firsts), *block)
        for rest, firsts in heads.items()
        for block in _blocks(set(rest))
    ]


def _filled(form: str, block: tuple[tuple[int, ...], ...]) -> str:
    values = iter(block)
    return ".".join(
        _braced(next(values)) if part == "*" else part for part in form.split(".")
    )


def _braced(values: tuple[int, ...]) -> str:
    text = ranges(values, dash="..")
    return text if len(values) == 1 else "{" + text + "}"
