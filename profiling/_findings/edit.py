"""`changed`: a traced program with other annotations, specs or mesh."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from profiling._collectives.step_values import owner
from profiling._findings.finding import Change
from profiling._findings.why import plan_spec
from profiling._hlo.op_name import parse_op_name
from profiling._step.ops import StepOps, read_location
from profiling._step.walk import walk
from spmd._meshes.mesh import Mesh
from spmd._meshes.sharding import HloSharding, from_hlo, to_hlo
from spmd._meshes.spec import Spec, uneven_dims
from spmd._program.program import Program
from spmd._program.value import STATE_ROLES, ModuleAnnotation, Value, is_stacked

_SHARDING = "mhlo.sharding"


def changed(program: Program, change: Change) -> Program:
    """Apply a change to a traced program.

    Args:
        program: The program.
        change: What to do; its flags are not the program's affair.

    Returns:
        A new program; the same one where nothing changes.

    Raises:
        ValueError: A program without a mesh, an operation or input that it does not
            have, an annotation or a cast that is none, a spec that does not fit, or a
            mesh of other sizes over which something does not divide any more.
    """
    old = program.mesh
    if old is None:
        raise ValueError(f"program {program.name!r} has no mesh to split over")
    specs = _with_state(program, dict(change.inputs))
    mesh = change.mesh or old
    if not dataclasses.replace(change, flags=()):
        return program
    module = _edited(program, change, specs, old, mesh)
    inputs = tuple(_with_spec(v, specs.get(v.name)) for v in program.inputs)
    return dataclasses.replace(
        program,
        module=module,
        module_digest="",
        mesh=mesh,
        inputs=inputs,
        outputs=tuple(
            v
            if v.updates is None or program.inputs[v.updates].name not in specs
            else _with_spec(v, specs[program.inputs[v.updates].name])
            for v in program.outputs
        ),
    )


def _with_spec(value: Value, spec: Spec | None) -> Value:
    return value if spec is None else dataclasses.replace(value, spec=spec)


def _with_state(program: Program, specs: dict[str, Spec]) -> dict[str, Spec]:
    """Give the optimizer's state of a parameter the parameter's new spec."""
    by_name = {v.name: v for v in program.inputs}
    for name in specs:
        if name not in by_name:
            raise ValueError(f"program {program.name!r} has no input {name!r}")
    found = dict(specs)
    for value in program.inputs:
        mine = owner(value.name)
        if value.role in ("optimizer", "gradient") and mine in specs:
            if mine in by_name and value.shape == by_name[mine].shape:
                found.setdefault(value.name, specs[mine])
    return found


def _edited(
    program: Program, change: Change, specs: Mapping[str, Spec], old: Mesh, mesh: Mesh
) -> bytes:
    from spmd._program.stablehlo import edited

    def edit(main: Any) -> None:
        place = _Place(program, main)
        for index, value in enumerate(program.outputs):
            spec = specs.get(
                "" if value.updates is None else program.inputs[value.updates].name
            )
            placed = _placed(place.results[index].owner)
            if spec is not None and placed is not None:
                _say(placed, to_hlo(old, spec))
        for number, spec in _of_layers(program, specs):
            _say(place.operation(number), to_hlo(old, spec))
        for number, spec in change.annotations:
            operation = _placed(place.operation(number))
            if operation is None:
                raise ValueError(f"operation {number} of the step is no annotation")
            _say(operation, to_hlo(old, spec))
        for number, spec in change.before:
            _insert_before(place.operation(number), to_hlo(old, spec))
        for number, spec in change.values:
            _insert(place, number, to_hlo(old, spec))
        for number in change.widened:
            _widen(place.operation(number))
        if mesh != old:
            for operation in place.operations:
                _turn(operation, old, mesh)

    return edited(program.module, edit)


def _of_layers(
    program: Program, specs: Mapping[str, Spec]
) -> Iterator[tuple[int, Spec]]:
    """Annotations inside a loop that say again how an input is split, of one layer."""
    stacked = {n: s for n, s in specs.items() if is_stacked(n)}
    mesh = program.mesh
    if not stacked or mesh is None:
        return
    steps = StepOps(program)
    before = {v.name: v.spec for v in program.inputs if v.name in stacked}
    for op in steps.ops:
        if not (op.in_loop and op.sharding):
            continue
        name = steps.input_behind(op, STATE_ROLES)
        known = before.get(name)
        if known and op.sharding == str(to_hlo(mesh, plan_spec(name, known))):
            yield op.number, plan_spec(name, stacked[name])


class _Place:
    """Finds what `StepOp.number` counts."""

    def __init__(self, program: Program, main: Any) -> None:
        self._program = program
        self._walked = walk(main)
        operations = main.regions[0].blocks[0].operations
        self.first = operations[0].operation
        self.results = list(operations[len(operations) - 1].operation.operands)
        self.operations = list(
            dict.fromkeys(w.operation for w in self._walked if w.operation is not None)
        )

    def operation(self, number: int) -> Any:
        found = self._walked[number] if 0 <= number < len(self._walked) else None
        if found is None or found.operation is None:
            number_of = len(self._program.inputs)
            raise ValueError(
                f"program {self._program.name!r} has no operation {number}, it has "
                f"{number_of} to {len(self._walked) - 1}"
            )
        return found.operation

    def is_input(self, number: int) -> bool:
        return number < len(self._program.inputs)

    def value(self, number: int) -> tuple[Any, Any, Any]:
        """A value, what makes it, and the operation that it is annotated before.

        What a loop is given or gives is made by none of the operations that are
        counted: the first by none at all, the other by the loop.
        """
        from jax.extend.mlir import ir

        if self.is_input(number):
            return self._walked[number].value, None, self.first
        found = self._walked[number] if number < len(self._walked) else None
        if found is None or found.operation is not None or found.value is None:
            operation = self.operation(number)
            return operation.results[0], operation, operation
        owner = found.value.owner
        if isinstance(owner, ir.Block):
            return found.value, None, owner.operations[0].operation
        return found.value, owner, owner


def _placed(operation: Any) -> Any | None:
    operation = getattr(operation, "operation", operation)
    attributes = getattr(operation, "attributes", {})
    return operation if _SHARDING in attributes else None


def _say(operation: Any, sharding: HloSharding) -> None:
    from jax.extend.mlir import ir

    operation.attributes[_SHARDING] = ir.StringAttr.get(str(sharding))


def _insert(place: _Place, number: int, sharding: HloSharding) -> None:
    """Annotate a value for all its readers; of an input not for the update."""
    value, after, before = place.value(number)
    made = _annotation(value, sharding, before)
    readers = [use.owner for use in value.uses]
    if after is not None:
        made.move_after(after)
    kept = [made]
    if place.is_input(number):
        kept = [made, *(r for r in map(_operation, readers) if _updates(r))]
    value.replace_all_uses_except(made.results[0], kept)


def _insert_before(annotation: Any, sharding: HloSharding) -> None:
    """Annotate what an annotation is given, for it alone."""
    made = _annotation(annotation.operands[0], sharding, annotation)
    annotation.operands[0] = made.results[0]


_BETWEEN = ("stablehlo.transpose", "stablehlo.reshape", "stablehlo.custom_call")
_DOTS = ("stablehlo.dot", "stablehlo.dot_general")


def _widen(cast: Any) -> None:
    """Have the matmul before a cast give what the cast gives; the cast is then idle."""
    from jax.extend.mlir import ir

    if cast.name != "stablehlo.convert":
        raise ValueError(f"operation {cast.name} is no cast")
    kind = ir.RankedTensorType(cast.results[0].type).element_type
    at = cast.operands[0].owner
    between = []
    while at.name in _BETWEEN and len(list(at.results[0].uses)) == 1:
        between.append(at)
        at = at.operands[0].owner
    if at.name not in _DOTS or len(list(at.results[0].uses)) != 1:
        raise ValueError(f"a cast of what {at.name} gives: only a matmul can widen it")
    for operation in (at, *between):
        value = operation.results[0]
        value.set_type(ir.RankedTensorType.get(value.type.shape, kind))


def _annotation(value: Any, sharding: HloSharding, before: Any) -> Any:
    from jax.extend.mlir import ir

    return ir.Operation.create(
        "stablehlo.custom_call",
        results=[value.type],
        operands=[value],
        attributes={
            "call_target_name": ir.StringAttr.get("Sharding"),
            _SHARDING: ir.StringAttr.get(str(sharding)),
        },
        loc=before.location,
        ip=ir.InsertionPoint(before),
    )


def _operation(op: Any) -> Any:
    return getattr(op, "operation", op)


def _updates(operation: Any) -> bool:
    op_name, _, _ = read_location(str(operation.location))
    return parse_op_name(op_name).phase == "update" or operation.name == "func.return"


def _turn(operation: Any, old: Mesh, mesh: Mesh) -> None:
    """Write an annotation for the same axes in another order, or of other sizes."""
    placed = _placed(operation)
    if placed is None or not len(placed.results):
        return
    shape = tuple(placed.results[0].type.shape)
    sharding = HloSharding.parse(placed.attributes[_SHARDING].value)
    if sharding.is_replicated:
        return
    spec = from_hlo(sharding, old, ndim=len(shape))
    if uneven_dims(shape, mesh, spec) and not uneven_dims(shape, old, spec):
        raise ValueError(
            f"an annotation splits {list(shape)} {spec}, which {mesh} does not divide"
        )
    _say(placed, to_hlo(mesh, spec))


def noted(
    program: Program, outputs: Mapping[str, Spec], shapes: Mapping[str, Any]
) -> tuple[ModuleAnnotation, ...]:
    """Annotations of module outputs that a program has, with further ones.

    Args:
        program: The program.
        outputs: Spec by module.
        shapes: Shape by module.

    Returns:
        All of them; a new one takes the place of one of the same module.
    """
    kept = [a for a in program.annotations if a.module not in outputs]
    new = [ModuleAnnotation(m, tuple(shapes[m]), s) for m, s in outputs.items()]
    return (*kept, *new)
