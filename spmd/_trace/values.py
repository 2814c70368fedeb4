"""What the inputs and outputs of a recorded step are, as `Value`s."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch

from spmd._capture.record import Recorded, Source
from spmd._capture.state import StepState
from spmd._marking.mark import get_sharding
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec
from spmd._program.value import Role, Value

_ROLES: dict[str, Role] = {"extra": "buffer"}


def spec_by_name(state: StepState, mesh: Mesh) -> dict[str, Spec | None]:
    """How each tensor of the state is split now.

    Args:
        state: On the XLA device.
        mesh: The program's.

    Returns:
        None for those that nobody annotated.

    Raises:
        ValueError: One that is split on another mesh.
    """
    return {slot.name: spec_on(mesh, slot.read(), slot.name) for slot in state.slots()}


def spec_on(mesh: Mesh, tensor: torch.Tensor, name: str) -> Spec | None:
    """How a tensor is split.

    Args:
        mesh: The program's.
        tensor: Any tensor.
        name: What to call it.

    Returns:
        None if nobody annotated it.

    Raises:
        ValueError: It is split on another mesh.
    """
    annotation = get_sharding(tensor)
    if annotation is None:
        return None
    if annotation.mesh != mesh:
        raise ValueError(
            f"trace: {name} {list(tensor.shape)} is split on {annotation.mesh!r}, but "
            f"the program is for {mesh!r}; build and annotate the model for the mesh "
            f"you trace for (spmd.meta_parameters() needs no memory)"
        )
    return annotation.spec


def input_values(
    record: Recorded,
    batch: Sequence[Spec | None],
    specs: Mapping[str, Spec | None],
) -> tuple[list[Value], dict[str, np.ndarray]]:
    """What the graph reads.

    Args:
        record: The recorded step.
        batch: Specs of the tensors in its arguments.
        specs: From `spec_by_name`, before the step.

    Returns:
        One value per input in order, and the numbers written in the code, by name.
    """
    values, constants = [], {}
    for source, data in zip(record.sources, record.inputs.values, strict=True):
        values.append(_input(source, data, record, batch, specs))
        if source.kind == "constant":
            constants[source.name] = as_numpy(data)
    return values, constants


def _input(
    source: Source,
    data: torch.Tensor,
    record: Recorded,
    batch: Sequence[Spec | None],
    specs: Mapping[str, Spec | None],
) -> Value:
    spec: Spec | None = None
    donated_to: int | None = None
    role: Role = "learning_rate"
    if source.kind == "state":
        slot = record.slots[source.index]
        role = _ROLES.get(slot.role, slot.role)
        spec = specs[slot.name]
        donated_to = record.updated.get(source.index)
    elif source.kind == "batch":
        role, spec = "input", batch[source.index]
    elif source.kind != "learning_rate":
        role = "rng" if source.kind == "rng" else "constant"
    shape, dtype = tuple(data.shape), dtype_name(data)
    return Value(source.name, role, shape, dtype, spec, donated_to=donated_to)


def output_values(record: Recorded, inputs: Sequence[Value], mesh: Mesh) -> list[Value]:
    """What the graph leaves behind.

    Args:
        record: The recorded step.
        inputs: From `input_values`.
        mesh: The program's.

    Returns:
        One value per output in order.

    Raises:
        ValueError: There is none.
    """
    if not record.outputs:
        raise ValueError(
            "trace: the step neither returns a tensor that it computes nor changes any "
            "state"
        )
    index = {s.index: i for i, s in enumerate(record.sources) if s.kind == "state"}
    specs = {value.name: value.spec for value in inputs}
    found: dict[int, Value] = {}
    for slot_index, output in record.updated.items():
        slot = record.slots[slot_index]
        spec = specs.get(slot.name) or spec_on(mesh, slot.read(), slot.name)
        if spec is None and slot.role == "gradient":  # split as its parameter is
            spec = specs.get(slot.name.removeprefix("grad[").removesuffix("]"))
        found.setdefault(
            output,
            Value(
                slot.name,
                _ROLES.get(slot.role, slot.role),
                tuple(record.outputs[output].shape),
                dtype_name(record.outputs[output]),
                spec,
                updates=index.get(slot_index),
            ),
        )
    for output, label in record.results():
        tensor = record.outputs[output]
        value = Value(label, "output", tuple(tensor.shape), dtype_name(tensor))
        found.setdefault(output, value)
    return [found[i] for i in range(len(record.outputs))]


def dtype_name(tensor: torch.Tensor) -> str:
    """A tensor's dtype as `Value` writes it.

    Args:
        tensor: Any tensor.

    Returns:
        Such as ``bfloat16``.
    """
    return str(tensor.dtype).removeprefix("torch.")


def as_numpy(tensor: torch.Tensor) -> np.ndarray:
    """A tensor's values; bfloat16 and float8 as their bits.

    Args:
        tensor: With data, on any device.

    Returns:
        An array of the same shape.
    """
    host = tensor.detach().cpu().contiguous()
    bits = {torch.bfloat16: torch.uint16}
    for kind in ("float8_e4m3fn", "float8_e5m2"):
        bits[getattr(torch, kind)] = torch.uint8
    if host.dtype in bits:
        host = host.view(bits[host.dtype])
    return host.numpy()
