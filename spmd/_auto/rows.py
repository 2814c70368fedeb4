"""From what was decided name by name to as few patterns as say it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from spmd._adapt.rule import Adapted
from spmd._fused.rule import Experts, Fused
from spmd._names.collapse import star_form
from spmd._names.pattern import matching
from spmd._plans.rule import PlanPart, RawSpec, Rule

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Said(Generic[T]):
    """Something that was decided.

    Attributes:
        what: A spec, say.
        source: Who decided it.
    """

    what: T
    source: str


@dataclass(slots=True)
class Rows:
    """What is decided about a model, by name.

    Attributes:
        parameters: Specs of parameters and buffers, as after taking apart.
        outputs: Specs of what modules give.
        inputs: Specs of what modules are given.
        fused: Modules to take apart; without a pattern.
        experts: Modules of experts to replace, likewise.
        adapted: Modules to compute in another way, likewise.
        notes: What is to be said, by source.
    """

    parameters: dict[str, Said[RawSpec]] = field(default_factory=dict)
    outputs: dict[str, Said[RawSpec]] = field(default_factory=dict)
    inputs: dict[str, Said[RawSpec]] = field(default_factory=dict)
    fused: dict[str, Said[Fused]] = field(default_factory=dict)
    experts: dict[str, Said[Experts]] = field(default_factory=dict)
    adapted: dict[str, Said[Adapted]] = field(default_factory=dict)
    notes: list[Said[str]] = field(default_factory=list)


def plan_parts(
    rows: Rows, parameters: Iterable[str], modules: Iterable[str]
) -> tuple[PlanPart, ...]:
    """Write what was decided as rules, one part for each source.

    Args:
        rows: What was decided.
        parameters: Names of all parameters and buffers, as after taking apart.
        modules: Names of all modules, likewise.

    Returns:
        The parts, in the order in which their sources come up.
    """
    tensors, names = tuple(parameters), tuple(modules)
    rules: dict[str, list[Rule]] = {}
    for pattern, said in _patterns(rows.parameters, tensors):
        rules.setdefault(said.source, []).append(Rule(pattern, said.what))
    for pattern, said in _patterns(rows.outputs, names):
        rule = Rule(pattern, said.what, outputs_only=True)
        rules.setdefault(said.source, []).append(rule)
    for pattern, said in _patterns(rows.inputs, names):
        rule = Rule(pattern, said.what, inputs_only=True)
        rules.setdefault(said.source, []).append(rule)
    fused: dict[str, list[Fused]] = {}
    for pattern, said in _patterns(rows.fused, names):
        one = Fused(pattern, said.what.parts, said.what.dim)
        fused.setdefault(said.source, []).append(one)
    experts: dict[str, list[Experts]] = {}
    for pattern, said in _patterns(rows.experts, names):
        one = Experts(pattern, said.what.held)
        experts.setdefault(said.source, []).append(one)
    adapted: dict[str, list[Adapted]] = {}
    for pattern, said in _patterns(rows.adapted, names):
        one = Adapted(pattern, said.what.how, said.what.size)
        adapted.setdefault(said.source, []).append(one)
    notes: dict[str, list[str]] = {}
    for said in rows.notes:
        notes.setdefault(said.source, []).append(said.what)
    return tuple(
        PlanPart(
            source,
            tuple(rules.get(source, ())),
            tuple(dict.fromkeys(notes.get(source, ()))),
            tuple(fused.get(source, ())),
            tuple(experts.get(source, ())),
            tuple(adapted.get(source, ())),
        )
        for source in dict.fromkeys([*rules, *fused, *experts, *adapted, *notes])
    )


def _patterns(
    said: Mapping[str, Said[T]], names: Sequence[str]
) -> list[tuple[str, Said[T]]]:
    """A pattern for all layers where it matches nothing else, else the very names."""
    forms: dict[str, list[str]] = {}
    for name in said:
        forms.setdefault(star_form(name), []).append(name)
    found: list[tuple[str, Said[T]]] = []
    done: set[str] = set()
    for form, own in forms.items():
        first = said[own[0]]
        matched = matching(form, names)
        if all(said.get(name) == first for name in matched):
            if not done.issuperset(matched):
                found.append((form, first))
            done.update(matched)
        else:
            found += [(name, said[name]) for name in own if name not in done]
            done.update(own)
    return found
