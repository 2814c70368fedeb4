"""`Fused`: a weight that holds several, said before any model is known.

GPT-2's ``c_attn`` is query, key and value behind one another. Split into as many pieces
as an axis has devices, a piece holds parts of several; taken apart first, each part is
split by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from spmd._names.pattern import first_matching, matching

if TYPE_CHECKING:
    from spmd._plans.rule import PlanPart, Rule

Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class Fused:
    """Modules whose weight and bias are several parts in one.

    Attributes:
        pattern: Of the modules, such as ``transformer.h.*.attn.c_attn``.
        parts: Name and output features of each part, in the order of the weight.
        dim: The weight's dim of output features: 0 in `torch.nn.Linear`, 1 in GPT-2's
            Conv1D.
    """

    pattern: str
    parts: tuple[tuple[str, int], ...]
    dim: int = 0

    @property
    def num_features(self) -> int:
        """Output features of all parts."""
        return sum(size for _, size in self.parts)

    def shapes(self, key: str, shape: tuple[int, ...]) -> Shapes:
        """Shape of each part of a tensor.

        Args:
            key: ``weight`` or ``bias``.
            shape: Of the whole.

        Returns:
            By names such as ``q.weight``.

        Example:
            >>> Fused("attn", (("q", 8), ("kv", 4)), dim=1).shapes("weight", (6, 12))
            {'q.weight': (6, 8), 'kv.weight': (6, 4)}
        """
        dim = self.dim if len(shape) > 1 else 0
        return {
            f"{name}.{key}": (*shape[:dim], size, *shape[dim + 1 :])
            for name, size in self.parts
        }


@dataclass(frozen=True, slots=True)
class Experts:
    """Modules of experts that are computed so that they split.

    Attributes:
        pattern: Of the modules, such as ``model.layers.*.mlp.experts``.
        held: Name and shape of each parameter that they then have.
    """

    pattern: str
    held: tuple[tuple[str, tuple[int, ...]], ...]


def expert_modules(
    parts: Sequence[PlanPart], modules: Sequence[str]
) -> dict[str, Experts]:
    """Modules of experts that a plan replaces.

    Args:
        parts: The plan's parts in order of precedence.
        modules: Names.

    Returns:
        By module name.
    """
    return first_matching((e for part in parts for e in part.experts), modules)


def fused_modules(
    parts: Sequence[PlanPart], parameters: Iterable[str], modules: Sequence[str]
) -> dict[str, Fused]:
    """Modules that a plan takes apart.

    Args:
        parts: The plan's parts in order of precedence.
        parameters: Names.
        modules: Names.

    Returns:
        By module name; without those that are in parts already, and those for whose
        weight or bias an earlier plan has a pattern, which stay whole.
    """
    names, found = frozenset(parameters), {}
    earlier: list[str] = []
    for part in parts:
        for fused in part.fused:
            for module in matching(fused.pattern, modules):
                own = [f"{module}.{k}" for k in ("weight", "bias")]
                own = [name for name in own if name in names]
                if own and not any(matching(p, own) for p in earlier):
                    found.setdefault(module, fused)
        earlier += [r.name_pattern for r in part.rules if not _at_modules(r)]
    return found


def _at_modules(rule: Rule) -> bool:
    return rule.outputs_only or rule.inputs_only


def taken_apart(
    fused: Mapping[str, Fused],
    parameters: Shapes,
    modules: Sequence[str],
    experts: Mapping[str, Experts] | None = None,
) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
    """Names and shapes after modules are taken apart.

    Args:
        fused: By module name.
        parameters: Shapes before.
        modules: Names before.
        experts: By module name.

    Returns:
        Shapes and module names.

    Example:
        >>> fused = {"qk": Fused("qk", (("q", 8), ("k", 4)))}
        >>> taken_apart(fused, {"qk.weight": (12, 6)}, ["", "qk"])
        ({'qk.q.weight': (8, 6), 'qk.k.weight': (4, 6)}, ('', 'qk', 'qk.q', 'qk.k'))
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for name, shape in parameters.items():
        module, _, key = name.rpartition(".")
        if module in fused:
            inner = fused[module].shapes(key, tuple(shape))
            shapes.update({f"{module}.{n}": s for n, s in inner.items()})
        elif experts and module in experts:
            shapes.update({f"{module}.{n}": s for n, s in experts[module].held})
        else:
            shapes[name] = tuple(shape)
    names: list[str] = []
    for module in modules:
        names.append(module)
        if module in fused:
            names += [f"{module}.{part}" for part, _ in fused[module].parts]
    return shapes, tuple(names)
