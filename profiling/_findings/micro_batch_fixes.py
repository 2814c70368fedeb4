"""Fixes that have the gradients of micro-batches added up before they are reduced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

from profiling._findings.case import Case
from profiling._findings.finding import Change, Fix
from profiling._findings.gradient_parts import Part
from profiling._findings.why import over, parameter_code, several, spec_code
from spmd._meshes.spec import Spec, entry_axes, spec_axes, uneven_dims

Parts: TypeAlias = Mapping[str, tuple[Part, ...]]
"""The gradients that are added up, by parameter."""


def micro_batch_fixes(case: Case, parts: Parts) -> list[Fix]:
    """Split gradients where they are made, in the dtype of their sum.

    Args:
        case: The step.
        parts: The gradients that are added up, by parameter.

    Returns:
        A fix as the weights are split; where the batch has further axes, one over
        these too. None where no weight is split.
    """
    specs = {n: case.values[n].spec for n in parts}
    split = {n: s for n, s in specs.items() if s is not None and spec_axes(s)}
    if not split:
        return []
    widened = tuple(
        cast.number
        for found in parts.values()
        for part in found
        for cast in part.casts[:1]
        if part.made.is_dot and len(part.casts) == 1
    )
    found = [_fix(case, parts, split, widened, further=False)]
    if any(_with_rest(case, n, s) != s for n, s in split.items()):
        found.append(_fix(case, parts, split, widened, further=True))
    return found


def _fix(
    case: Case,
    parts: Parts,
    split: dict[str, Spec],
    widened: tuple[int, ...],
    *,
    further: bool,
) -> Fix:
    values: list[tuple[int, Spec]] = []
    annotations: dict[int, Spec] = {}
    looped = False
    for name, spec in split.items():
        made = _with_rest(case, name, spec) if further else spec
        for part in parts[name]:
            if part.loop is None:
                annotations |= {op.number: made for op in part.annotations}
                if not part.annotations:
                    values.append((part.ready.number, made))
                continue
            looped, whole = True, (None,) * len(spec)
            ends = dict.fromkeys((spec, made, whole))  # the last one comes first
            values += [(part.loop.left.number, end) for end in ends]
            values += [(part.loop.added.number, whole)]
            values += [(part.loop.entered.number, whole)]
            (start,) = part.loop.entered.operands
            if start.sharding:
                annotations[start.number] = whole
    rest = over([a for a in case.data_axes if a not in case.weight_axes])
    text = f"split the gradient of {several(split)} where it is made"
    if looped:
        text = f"add up each device's own gradients of {several(split)} in the loop"
    if further:
        text += f", over {rest} too"
    if widened:
        dtype = case.ops.ops[widened[0]].dtype
        text += f", and make it in {dtype}, in which it is kept"
    code, place = _code(case, split, looped, bool(widened), further)
    change = Change(
        values=tuple(values), annotations=tuple(annotations.items()), widened=widened
    )
    return Fix(text, code, place, change)


def _code(
    case: Case, split: dict[str, Spec], looped: bool, widens: bool, further: bool
) -> tuple[str, str]:
    """The line to paste, and where."""
    name, spec = next(iter(split.items()))
    wider = _with_rest(case, name, spec) if further else spec
    if looped:
        whole = spec_code((None,) * len(spec))
        code = (
            f"spmd.mark_sharding(total, mesh, {whole})  # at every turn\n"
            f"total = spmd.mark_sharding(total * 1, mesh, {spec_code(wider)})"
        )
        return code, (
            "the first on the sum wherever it is: as it starts, as a run is given it, "
            "with a run's gradient, and after the loop; the second after that"
        )
    lines = []
    place = "after spmd.shard_module(model, mesh, plan)"
    if widens:
        lines.append("model = FSDPv2(model, mesh, mixed_precision=MixedPrecision())")
        place = (
            "where the model is wrapped: reduce=torch.float32 is its default; without "
            "FSDPv2, have the matmul of the weight's gradient give float32"
        )
    if len(split) == 1 and (further or not widens):
        lines.append(
            f"spmd.mark_sharding({parameter_code(name)}, mesh, {spec_code(spec)}, "
            f"grad={spec_code(wider)})"
        )
    elif further or not widens:
        grad = "s"
        if further:
            old, new = next((a, b) for a, b in zip(spec, wider, strict=True) if a != b)
            pair = spec_code((new, old))[1:-1].rpartition(", ")
            grad = f"tuple({pair[0]} if e == {pair[2]} else e for e in s)"
        lines.append(
            "for p in model.parameters(): s = spmd.get_sharding(p).spec; "
            f"spmd.mark_sharding(p, mesh, s, grad={grad})"
        )
    return "\n".join(lines), place


def _with_rest(case: Case, name: str, spec: Spec) -> Spec:
    """A weight's spec with the batch's other axes on its split dim, where they fit."""
    rest = tuple(a for a in case.data_axes if a not in spec_axes(spec))
    dims = [d for d, e in enumerate(spec) if set(entry_axes(e)) & set(case.data_axes)]
    if not rest or not dims:
        return spec
    found = list(spec)
    found[dims[0]] = (*entry_axes(spec[dims[0]]), *rest)
    shape = case.values[name].shape
    return spec if uneven_dims(shape, case.mesh, tuple(found)) else tuple(found)
