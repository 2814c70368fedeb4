"""`Adapted`: a layer that is computed so that it splits, before any model is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

from spmd._names.pattern import first_matching

if TYPE_CHECKING:
    from spmd._plans.rule import PlanPart

How: TypeAlias = Literal["unflatten", "repeat_heads", "pad_positions"]


@dataclass(frozen=True, slots=True)
class Adapted:
    """Modules that are computed in another way, with the same parameters and values.

    Attributes:
        pattern: Of the modules, such as ``model.layers.*.self_attn``.
        how: ``unflatten``: a layer keeps [batch, seq, embed] where it would flatten.
            ``repeat_heads``: attention repeats the weights of key and value heads.
            ``pad_positions``: an encoder pads its sequence.
        size: Key and value heads after repeating; what padded lengths are multiples of;
            0 for the other one.
    """

    pattern: str
    how: How
    size: int = 0

    def __post_init__(self) -> None:
        if self.how not in get_args(How):
            raise ValueError(
                f"plan: pattern {self.pattern!r} is adapted by {self.how!r}; one of "
                f"{', '.join(map(repr, get_args(How)))} is needed"
            )


def adapted_modules(
    parts: Sequence[PlanPart], modules: Sequence[str]
) -> dict[str, Adapted]:
    """Modules that a plan adapts.

    Args:
        parts: The plan's parts in order of precedence.
        modules: Names.

    Returns:
        By module name.
    """
    return first_matching((a for part in parts for a in part.adapted), modules)
