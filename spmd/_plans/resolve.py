"""What a plan comes to on one mesh and one model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias

from spmd._fused.rule import expert_modules, fused_modules, taken_apart
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec, normalize_spec, shard_shape, uneven_dims
from spmd._names.collapse import collapse
from spmd._names.pattern import matching, nearest
from spmd._plans.rule import PlanPart, Rule
from spmd._program.value import layer_dims

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

Place: TypeAlias = Literal["parameter", "output", "input"]
"""What a rule decides; a parameter is a parameter or a buffer."""


@dataclass(frozen=True, slots=True)
class Row:
    """What one parameter or buffer gets.

    Attributes:
        name: Its dotted name.
        shape: Its whole shape.
        spec: Normalised; all None where no pattern matches.
        shard_shape: Shape of the piece on each device, padding included.
        pattern: The pattern that decided; None where none matches.
        source: Name of the plan the pattern came from.
        itemsize: Bytes per element, where known.
    """

    name: str
    shape: tuple[int, ...]
    spec: Spec
    shard_shape: tuple[int, ...]
    pattern: str | None = None
    source: str | None = None
    itemsize: int | None = None

    @property
    def num_elements(self) -> int:
        """Elements of the whole tensor."""
        return math.prod(self.shape)

    @property
    def num_shard_elements(self) -> int:
        """Elements on each device, padding included."""
        return math.prod(self.shard_shape)


@dataclass(frozen=True, slots=True)
class OutputRow:
    """How one module's output is split.

    Attributes:
        name: The module's dotted name; ``""`` is the root.
        index: Which output, for a module that returns a tuple. None is the output as a
            whole, less those that have a row of their own.
        spec: Normalised, but the number of dims is not checked: the shape of an output
            is known only when the model runs.
        pattern: The pattern that decided.
        source: Name of the plan the pattern came from.
    """

    name: str
    index: int | None
    spec: Spec
    pattern: str
    source: str


@dataclass(frozen=True, slots=True)
class InputRow:
    """How what one module is given is split.

    Attributes:
        name: The module's dotted name; ``""`` is the root.
        index: Which positional argument. None is all tensors among the arguments, less
            those that have a row of their own.
        spec: Normalised; the number of dims is checked when the model runs.
        pattern: The pattern that decided.
        source: Name of the plan the pattern came from.
    """

    name: str
    index: int | None
    spec: Spec
    pattern: str
    source: str


@dataclass(frozen=True, slots=True, repr=False)
class ResolvedPlan:
    """A plan applied to a mesh and the names of a model; prints as a table.

    Attributes:
        mesh: The mesh.
        parameters: A row for every parameter, in the model's order.
        outputs: A row for every module output that has a spec.
        inputs: A row for every module input that has a spec.
        notes: What those who made the plan have to say of it.
    """

    mesh: Mesh
    parameters: tuple[Row, ...]
    outputs: tuple[OutputRow, ...]
    inputs: tuple[InputRow, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def uncovered(self) -> tuple[str, ...]:
        """Names of the parameters no pattern matches; they are replicated."""
        return tuple(row.name for row in self.parameters if row.pattern is None)

    def explain(self, console: Console | None = None) -> None:
        """Print what each tensor gets and which pattern decided it.

        Args:
            console: Where to print; default is stdout.
        """
        from rich.console import Console

        (console or Console()).print(self)

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        from spmd._plans.table import render

        yield from render(self, width=options.max_width)

    def __repr__(self) -> str:
        inputs = f", {len(self.inputs)} inputs" if self.inputs else ""
        return (
            f"ResolvedPlan({self.mesh!r}, {len(self.parameters)} parameters, "
            f"{len(self.uncovered)} uncovered, {len(self.outputs)} outputs{inputs})"
        )


class _Target(NamedTuple):
    """What a rule can decide: a parameter, or part of what a module takes or gives."""

    place: Place
    name: str
    which: int | None


class _Claim(NamedTuple):
    part: int
    rule: Rule


def resolve(
    parts: Sequence[PlanPart],
    mesh: Mesh,
    *,
    parameters: Mapping[str, tuple[int, ...]],
    modules: Iterable[str],
    strict: bool,
    itemsize: Mapping[str, int],
) -> ResolvedPlan:
    """Decide every parameter and output; see `Plan.resolve`.

    Args:
        parts: The plan's parts in order of precedence.
        mesh: The mesh.
        parameters: Shape by name.
        modules: Module names.
        strict: Raise where a dim does not divide.
        itemsize: Bytes per element by parameter name.

    Returns:
        The rows.

    Raises:
        ValueError: See `Plan.resolve`.
    """
    module_names = tuple(modules)
    fused = fused_modules(parts, parameters, module_names)
    experts = expert_modules(parts, module_names)
    parameters, module_names = taken_apart(fused, parameters, module_names, experts)
    names = tuple(parameters)
    claims: dict[_Target, _Claim] = {}
    for i, part in enumerate(parts):
        for rule in part.rules:
            targets = _targets(rule, part, names, module_names)
            _claim(targets, _Claim(i, rule), claims, parts)
    rows = [
        _row(name, tuple(shape), mesh, parts, claims, strict=strict, itemsize=itemsize)
        for name, shape in parameters.items()
    ]
    order = {name: i for i, name in enumerate(module_names)}
    at_modules = sorted(
        ((t, c) for t, c in claims.items() if t.place != "parameter"),
        key=lambda item: order[item[0].name],
    )
    outputs = [
        OutputRow(t.name, t.which, *_at_module(t, c, mesh, parts))
        for t, c in at_modules
        if t.place == "output"
    ]
    inputs = [
        InputRow(t.name, t.which, *_at_module(t, c, mesh, parts))
        for t, c in at_modules
        if t.place == "input"
    ]
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    return ResolvedPlan(mesh, tuple(rows), tuple(outputs), tuple(inputs), notes)


def _targets(
    rule: Rule, part: PlanPart, parameters: Sequence[str], modules: Sequence[str]
) -> list[_Target]:
    """What a rule matches: parameters if there are any, else modules."""
    only_modules = rule.outputs_only or rule.inputs_only or rule.index is not None
    if not only_modules:
        found = matching(rule.name_pattern, parameters)
        if found:
            return [_Target("parameter", name, None) for name in found]
    found = matching(rule.name_pattern, modules)
    if found:
        place: Place = "input" if rule.inputs_only else "output"
        return [_Target(place, name, rule.index) for name in found]
    if any(rule.name_pattern.startswith(f"{f.pattern}.") for f in part.fused):
        return []  # of a part of what stays whole
    where = f"plan {part.name!r}: pattern {rule.pattern!r}"
    taken = matching(rule.name_pattern, parameters)
    if taken:
        option = "inputs=" if rule.inputs_only else "outputs="
        raise ValueError(
            f"{where} matches the parameter {taken[0]!r}, but "
            f"{'[...]' if rule.index is not None else option} picks module "
            f"{'inputs' if rule.inputs_only else 'outputs'} only; write it among the "
            f"other patterns, without an index"
        )
    among = tuple(modules) if only_modules else (*parameters, *modules)
    raise ValueError(
        f"{where} matches no {'module' if only_modules else 'parameter or module'}"
        f"{_hint(rule.pattern, among)}"
    )


def _hint(pattern: str, names: Sequence[str]) -> str:
    if not any(names):
        return "; no names were given to match"
    near = nearest(pattern, names)
    if near:
        return f"; nearest: {', '.join(map(repr, near))}. Correct or remove it"
    some = collapse([n for n in names if n])[:5]
    return f"; nothing is near. Names begin: {', '.join(some)}. Correct or remove it"


def _claim(
    targets: Sequence[_Target],
    claim: _Claim,
    claims: dict[_Target, _Claim],
    parts: Sequence[PlanPart],
) -> None:
    """Give a rule what is still free.

    A rule that gets nothing is a mistake where its own plan took everything first.
    Where a plan of higher precedence took it, it is overruled as intended.
    """
    takers = [_taker(t, claims) for t in targets]
    earlier = [c for c in takers if c is not None and c.part == claim.part]
    if earlier and len(earlier) == len(targets):
        first = earlier[0].rule.pattern
        raise ValueError(
            f"plan {parts[claim.part].name!r}: pattern {claim.rule.pattern!r} decides "
            f"nothing: {first!r}, which comes earlier, already matches "
            f"{targets[0].name!r}{_rest(len(targets) - 1)}. Put the narrower pattern "
            f"first, or remove it"
        )
    for target, taker in zip(targets, takers, strict=True):
        if taker is None:
            claims[target] = claim


def _rest(count: int) -> str:
    return f" (and earlier patterns its other {count} matches)" if count else ""


def _taker(target: _Target, claims: Mapping[_Target, _Claim]) -> _Claim | None:
    """The earlier claim: on the same target, or on all a module takes or gives."""
    return claims.get(target) or claims.get(target._replace(which=None))


def _row(
    name: str,
    shape: tuple[int, ...],
    mesh: Mesh,
    parts: Sequence[PlanPart],
    claims: Mapping[_Target, _Claim],
    *,
    strict: bool,
    itemsize: Mapping[str, int],
) -> Row:
    claim = claims.get(_Target("parameter", name, None))
    size = itemsize.get(name)
    if claim is None:
        return Row(name, shape, (None,) * len(shape), shape, itemsize=size)
    source, pattern = parts[claim.part].name, claim.rule.pattern
    where = f"plan {source!r}, pattern {pattern!r}: parameter {name!r}"
    dims = layer_dims(name, shape)  # a plan speaks of one layer
    own = tuple(shape[d] for d in dims)
    spec = normalize_spec(claim.rule.spec, mesh, shape=own, name=where)
    spec = (*(None for _ in shape[len(dims) :]), *spec)
    uneven = uneven_dims(shape, mesh, spec)
    if strict and uneven:
        dim, ways = uneven[0]
        raise ValueError(
            f"{where} {list(shape)}: dim {dim} of size {shape[dim]} does not divide "
            f"over {spec[dim]!r} ({ways} shards). Use a size or an axis that divides, "
            f"or strict=False to let XLA pad"
        )
    piece = shard_shape(shape, mesh, spec)
    return Row(name, shape, spec, piece, pattern, source, size)


def _at_module(
    target: _Target, claim: _Claim, mesh: Mesh, parts: Sequence[PlanPart]
) -> tuple[Spec, str, str]:
    """Spec, pattern and source of what a module takes or gives."""
    pattern, source = claim.rule.pattern, parts[claim.part].name
    where = (
        f"plan {source!r}, pattern {pattern!r}: {target.place} of module "
        f"{target.name!r}"
    )
    spec = normalize_spec(claim.rule.spec, mesh, shape=None, name=where)
    return spec, pattern, source
