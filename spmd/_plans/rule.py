"""`Rule` and `PlanPart`: the rows of a plan, before any model is known."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from typing import Any, TypeAlias

from spmd._adapt.rule import Adapted
from spmd._fused.rule import Experts, Fused
from spmd._names.pattern import compile_pattern, split_index

RawEntry: TypeAlias = str | int | tuple[str | int, ...] | None
RawSpec: TypeAlias = tuple[RawEntry, ...]


@dataclass(frozen=True, slots=True, init=False)
class Rule:
    """One row of a plan: what `pattern` matches is split by `spec`.

    Args:
        pattern: A dotted name with ``*`` and ``**``, and ``[0]`` behind it for one
            output of a module that returns a tuple.
        spec: One entry per dim: axis name, its index, a tuple of these, or None. The
            axes are not checked before there is a mesh.
        outputs_only: Match modules only, even where a parameter has the name.
        inputs_only: Match modules, for what they are given.

    Raises:
        TypeError: A pattern that is no string, or a spec of another form.
        ValueError: A malformed pattern.

    Example:
        >>> Rule("layers.*[0]", [["replica", "fsdp"], None])  # doctest: +ELLIPSIS
        Rule(pattern='layers.*[0]', spec=(('replica', 'fsdp'), None), ...)
    """

    pattern: str
    spec: RawSpec
    outputs_only: bool
    inputs_only: bool

    def __init__(
        self,
        pattern: str,
        spec: Iterable[Any],
        *,
        outputs_only: bool = False,
        inputs_only: bool = False,
    ) -> None:
        if not isinstance(pattern, str):
            raise TypeError(
                f"plan: a pattern is a string such as 'layers.*.weight', got "
                f"{pattern!r}"
            )
        compile_pattern(split_index(pattern)[0])
        object.__setattr__(self, "pattern", pattern)
        object.__setattr__(self, "spec", _freeze(spec, pattern))
        object.__setattr__(self, "outputs_only", outputs_only)
        object.__setattr__(self, "inputs_only", inputs_only)

    @property
    def name_pattern(self) -> str:
        """The pattern without the index of an output."""
        return split_index(self.pattern)[0]

    @property
    def index(self) -> int | None:
        """Which output of a module that returns a tuple; None for all of them.

        Of inputs, which positional argument.
        """
        return split_index(self.pattern)[1]


@dataclass(frozen=True, slots=True)
class PlanPart:
    """Rules that came from one place.

    Attributes:
        name: Where from, e.g. ``user`` or a file's name.
        rules: In order of precedence.
        notes: What is to be said of them, a sentence each.
        fused: Modules to take apart first; rules are about what they become.
        experts: Modules of experts to replace first, likewise.
        adapted: Modules to compute in another way.
    """

    name: str
    rules: tuple[Rule, ...]
    notes: tuple[str, ...] = ()
    fused: tuple[Fused, ...] = ()
    experts: tuple[Experts, ...] = ()
    adapted: tuple[Adapted, ...] = ()


def _freeze(spec: Any, pattern: str) -> RawSpec:
    if isinstance(spec, str | Mapping | Set) or not isinstance(spec, Iterable):
        raise TypeError(
            f"pattern {pattern!r}: a spec is a tuple with one entry per dim, e.g. "
            f"('fsdp', None), got {spec!r}"
        )
    return tuple(_freeze_entry(e, pattern) for e in spec)


def _freeze_entry(entry: Any, pattern: str) -> RawEntry:
    if entry is None or _is_axis(entry):
        return entry
    if isinstance(entry, list | tuple) and all(_is_axis(e) for e in entry):
        return tuple(entry)
    raise TypeError(
        f"pattern {pattern!r}: spec entry {entry!r} is no axis name, no tuple of names "
        f"and not None"
    )


def _is_axis(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)
