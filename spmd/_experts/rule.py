"""How the weights of experts are held and split, said from their shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec

Shape = tuple[int, ...]

GATED, UP, DOWN = "gate_up_proj", "up_proj", "down_proj"
HALVES = ("gate_proj", "up_proj")
"""What `GATED` is held as: the products whose values are multiplied."""


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """What the parameters of one module of experts become.

    Attributes:
        shapes: By name in the module, gate and up apart.
        parameters: Spec by name.
        notes: What is not split, and why.
    """

    shapes: Mapping[str, Shape]
    parameters: Mapping[str, Spec]
    notes: tuple[str, ...] = ()


def is_experts(shapes: Mapping[str, Shape]) -> bool:
    """Whether parameters are those of experts in the form of transformers 5.

    Args:
        shapes: By name in their module.

    Example:
        >>> is_experts({"gate_up_proj": (8, 64, 16), "down_proj": (8, 16, 32)})
        True
    """
    up = shapes.get(GATED, shapes.get(UP, ()))
    return len(up) == 3 and len(shapes.get(DOWN, ())) == 3


def is_transposed(shapes: Mapping[str, Shape]) -> bool:
    """Whether weights are [expert, in, out], as in GPT-OSS.

    Where the shapes fit both ways, which takes as many hidden as intermediate features,
    they are taken for [expert, out, in].

    Args:
        shapes: By name in their module.
    """
    up, down = shapes.get(GATED, shapes.get(UP, ())), shapes[DOWN]
    factor = 2 if GATED in shapes else 1
    as_linear = up[2] == down[1] and up[1] == factor * down[2]
    return not as_linear and up[1] == down[2] and up[2] == factor * down[1]


def expert_rows(
    shapes: Mapping[str, Shape],
    mesh: Mesh,
    *,
    fsdp: str | None = "fsdp",
    tensor: str | None = "tensor",
    expert: str | None = "expert",
    transposed: bool | None = None,
    interleaved: bool = False,
) -> ExpertRows:
    """Split experts over one axis and what is inside of each over another.

    Args:
        shapes: By name in the module, such as ``gate_up_proj`` [experts, 2 *
            intermediate, hidden].
        mesh: The mesh. Axes that it does not have are left out.
        fsdp: Axis for the hidden features, gathered where they are used.
        tensor: Axis for the intermediate features.
        expert: Axis for the experts.
        transposed: Whether weights are [expert, in, out]; None to see by the shapes.
        interleaved: Whether gate and up alternate in ``gate_up_proj``, which then stays
            one.

    Returns:
        Shapes, specs and notes.

    Raises:
        ValueError: No experts, or a number of them that does not divide.

    Example:
        >>> shapes = {"gate_up_proj": (8, 64, 16), "down_proj": (8, 16, 32)}
        >>> rows = expert_rows(shapes, Mesh({"fsdp": 2, "expert": 4}))
        >>> rows.parameters["up_proj"], rows.parameters["down_proj"]
        (('expert', None, 'fsdp'), ('expert', 'fsdp', None))
    """
    if not is_experts(shapes):
        raise ValueError(
            f"no experts: {GATED} or {UP}, and {DOWN}, of three dims are needed, got "
            f"{dict(shapes)}"
        )
    fsdp, tensor, expert = (
        axis if axis in mesh.axis_names and mesh.axis_size(axis) > 1 else None
        for axis in (fsdp, tensor, expert)
    )
    num = shapes[DOWN][0]
    if expert is not None and num % mesh.axis_size(expert):
        sizes = [n for n in range(1, num + 1) if num % n == 0]
        raise ValueError(
            f"{num} experts do not divide over {expert!r} of size "
            f"{mesh.axis_size(expert)}; sizes that work: {sizes}"
        )
    if transposed is None:
        transposed = is_transposed(shapes)
    inside = shapes[DOWN][1 if transposed else 2]
    notes = []
    if tensor is not None and inside % mesh.axis_size(tensor):
        notes.append(
            f"{inside} intermediate features do not divide over {tensor!r} of size "
            f"{mesh.axis_size(tensor)}: experts stay whole over it"
        )
        tensor = None
    if tensor is not None and interleaved:
        notes.append(f"{GATED} alternates gate and up: it stays whole over {tensor!r}")
    held = dict(shapes)
    if GATED in held and not interleaved:
        for key in (GATED, f"{GATED}_bias"):
            whole = held.pop(key, None)
            if whole is not None:
                dim = 1 if len(whole) == 2 or not transposed else 2
                half = (*whole[:dim], whole[dim] // 2, *whole[dim + 1 :])
                suffix = key.removeprefix(GATED)
                held.update({name + suffix: half for name in HALVES})
    specs: dict[str, Spec] = {}
    for key, shape in held.items():
        out = None if key.startswith(GATED) else tensor
        if key.startswith(DOWN):
            spec = (expert, tensor, fsdp) if transposed else (expert, fsdp, tensor)
            spec = spec if len(shape) == 3 else (expert, fsdp)
        elif len(shape) == 3:
            spec = (expert, fsdp, out) if transposed else (expert, out, fsdp)
        else:
            spec = (expert, out, None)[: len(shape)]
        specs[key] = spec if len(shape) in (2, 3) else (None,) * len(shape)
    order = (*(f"{n}{s}" for n in (*HALVES, GATED, DOWN) for s in ("", "_bias")),)
    keys = sorted(held, key=lambda k: order.index(k) if k in order else len(order))
    return ExpertRows(
        {k: held[k] for k in keys}, {k: specs[k] for k in keys}, tuple(notes)
    )
