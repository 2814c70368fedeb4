"""The fix that says how outputs of matmuls, and their gradients, are split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from profiling._collectives.splits import Split
from profiling._findings.case import Case
from profiling._findings.finding import Change, Fix
from profiling._findings.why import assigned_name, pattern_of, plan_spec, spec_code
from profiling._step.ops import StepOp
from spmd._meshes.spec import Spec, entry_axes


@dataclass(frozen=True, slots=True)
class Root:
    """A matmul after which rows are not split as the batch is.

    Attributes:
        op: The matmul.
        weight: Name of its weight.
        split: How the partitioner split it.
    """

    op: StepOp
    weight: str
    split: Split


def outputs_fix(case: Case, pattern: str, group: Sequence[Root]) -> Fix:
    """Annotate the outputs of some matmuls as the batch is split.

    Args:
        case: The step.
        pattern: What to call their modules.
        group: The matmuls.

    Returns:
        The fix: a line after the call where the source shows one, else a plan's.
    """
    values: list[tuple[int, Spec]] = []
    outputs: dict[str, Spec] = {}
    for root in group:
        output = output_of(case, root.op)
        spec = _spec(case, root, output)
        values.append((output.number, spec))
        gradient = gradient_of(case, root.op)
        if gradient is not None and gradient.shape in (output.shape, root.op.shape):
            values.append((gradient.number, _padded(spec, len(gradient.shape))))
        if _is_output(case, output):
            outputs[root.op.scope.module] = spec
    first, spec = group[0], values[0][1]
    name, line = assigned_name(first.op)
    if name and len(group) == 1:
        code = f"spmd.mark_sharding({name}, mesh, {spec_code(spec)})"
        place = f"after {first.op.source}: {line}"
    elif not outputs:  # functions called in a larger module, or the model itself
        code = f"spmd.mark_sharding(output, mesh, {spec_code(spec)})"
        place = f"on what comes out of {pattern}" + (
            f", at {first.op.source}" if first.op.source else ""
        )
    else:
        patterns = {pattern_of(m): s for m, s in outputs.items()}
        said = ", ".join(f'"{p}": {spec_code(s)}' for p, s in patterns.items())
        code = f"plan = plan | spmd.Plan({{}}, outputs={{{said}}})"
        place = "before spmd.shard_module(model, mesh, plan)"
    return Fix(
        text=f"say that the output of {pattern} is split as the batch is",
        code=code,
        place=place,
        change=Change(values=tuple(values)),
        outputs=outputs,
    )


def _is_output(case: Case, op: StepOp) -> bool:
    """Whether a value leaves its module: nothing inside reads it."""
    module = op.scope.module
    return bool(module) and not any(
        u.scope.phase == op.scope.phase
        and (u.scope.module == module or u.scope.module.startswith(f"{module}."))
        for u in case.ops.users(op)
    )


def output_of(case: Case, op: StepOp) -> StepOp:
    """What the module of a matmul gives: after its bias and reshapes.

    Args:
        case: The step.
        op: A matmul of the forward pass.

    Returns:
        The last operation of the module that follows from it.
    """
    while True:
        inside = [
            u
            for u in case.ops.users(op)
            if u.scope.module == op.scope.module and u.scope.phase == op.scope.phase
        ]
        if (
            len(inside) != 1
            or inside[0].shape[:1] != op.shape[:1]
            or (inside[0].name in ("dot", "dot_general", "reduce"))
        ):
            return op
        op = inside[0]


def gradient_of(case: Case, op: StepOp) -> StepOp | None:
    """The gradient of a matmul's result: what its weight's gradient is made of.

    Args:
        case: The step.
        op: A matmul of the forward pass with a weight.

    Returns:
        The value; None where the trace has no backward pass that shows it.
    """
    given = case.ops.behind(case.activation_of(op))
    for other in case.ops.ops[op.number :]:
        if not other.is_dot or other.scope.phase != "backward":
            continue
        if other.scope.module != op.scope.module:
            continue
        behind = [case.ops.behind(o) for o in other.operands]
        if given in behind and behind[0] is not behind[1]:
            return behind[1 if behind[0] is given else 0]
    return None


def _spec(case: Case, root: Root, output: StepOp) -> Spec:
    """Rows as the batch; features as the weight says without the batch's axes."""
    spec: list[str | tuple[str, ...] | None] = [None] * len(output.shape)
    axes = case.data_axes
    spec[0] = axes[0] if len(axes) == 1 else axes
    kept = _kept(case, root)
    if kept and len(spec) > 1:
        spec[-1] = kept[0] if len(kept) == 1 else kept
    return tuple(spec)


def _kept(case: Case, root: Root) -> tuple[str, ...]:
    """Axes of the weight's output features that do not split the batch."""
    on_left = bool(case.ops.input_behind(root.op.operands[0], ("parameter",)))
    operand = root.op.operands[0 if on_left else 1]
    summed = root.op.contracted[0 if on_left else 1]
    weight = case.values[root.weight]
    spec = plan_spec(weight.name, weight.spec or ())
    if len(spec) != 2 or len(operand.shape) != 2:
        return ()
    free = next(d for d in range(2) if d not in summed)
    turned = operand.shape != weight.shape[-2:] or operand.name == "transpose"
    entry = spec[1 - free if turned else free]
    return tuple(a for a in entry_axes(entry) if a not in case.data_axes)


def _padded(spec: Spec, ndim: int) -> Spec:
    return (spec[0], *[None] * (ndim - len(spec)), *spec[1:])[:ndim]
