"""Finish a traced HLO module: source sites, shardings, and one name.

torch_xla writes neither the user's source line nor shardings of inputs without data;
both are put in here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spmd._meshes.mesh import Mesh
from spmd._meshes.sharding import HloSharding, from_hlo, to_hlo
from spmd._program.hlo_proto import OTHER, REPLICATED, HloModuleProto, entry_computation
from spmd._program.value import Value
from spmd._trace.scopes import SCOPE, Sites


def finish_module(
    proto: bytes,
    *,
    name: str,
    sites: Sites,
    inputs: Sequence[Value],
    mesh: Mesh | None,
) -> bytes:
    """Write sites, names and input shardings into a traced module.

    ``op_name`` becomes ``PHASE/MODULE.PATH/operation``, and of a parameter its name.
    Shardings are written in the compact form, which stays small on thousands of
    devices.

    Args:
        proto: Serialised `HloModuleProto` from torch_xla.
        name: New name of the module.
        sites: What was seen while the step ran.
        inputs: One per parameter of the entry.
        mesh: Mesh of their specs.

    Returns:
        The serialised module.
    """
    module = HloModuleProto.FromString(proto)
    module.name = name
    module.ClearField("stack_frame_index")  # whole stacks, most of them libraries
    entry = entry_computation(module)
    origins = _Origins(sites)
    compact: dict[bytes, Any] = {}
    for computation in module.computations:
        for instruction in computation.instructions:
            if instruction.opcode == "parameter":  # the body of a loop has some
                instruction.metadata.ClearField("stack_frame_id")
            else:
                origins.write(instruction.metadata)
            if mesh is not None and instruction.HasField("sharding"):
                _compact(instruction.sharding, mesh, compact)
    for instruction in entry.instructions:
        if instruction.opcode == "parameter":
            value = inputs[instruction.parameter_number]
            instruction.metadata.Clear()
            instruction.metadata.op_name = value.name
            if mesh is not None and value.spec is not None:
                write_sharding(instruction.sharding, to_hlo(mesh, value.spec))
    _renumber(module, entry)
    return module.SerializeToString(deterministic=True)


def _renumber(module: Any, entry: Any) -> None:
    """Give the many small computations (of reductions) the small ids.

    XLA keeps a table for each as long as its largest id: with torch_xla's ids the 970
    computations of a 70B step take 1.3 GB while they are converted.
    """
    number = 0
    others = [c for c in module.computations if c.id != entry.id]
    for computation in (*others, entry):
        new: dict[int, int] = {}
        for instruction in computation.instructions:
            number += 1
            new[instruction.id] = number
            instruction.id = number
            operands = [new[old] for old in instruction.operand_ids]
            instruction.operand_ids[:] = operands
        computation.root_id = new[computation.root_id]


class _Origins:
    """Turns what torch_xla says of an operation into where it comes from.

    There are few different ones, so each is made once and copied.
    """

    def __init__(self, sites: Sites) -> None:
        self._sites = sites.sites
        self._unnamed = sites.unnamed
        self._made: dict[tuple[str, str], Any] = {}

    def write(self, metadata: Any) -> None:
        """Replace an ``OpMetadata`` message."""
        scope, operation = metadata.op_name, metadata.op_type
        if not operation:
            return  # inside a reduction
        start = scope.rfind(SCOPE)
        number = ""
        if start >= 0:  # "spmd-site-12.345/aten__mm": torch_xla counts scopes too
            number = scope[start + len(SCOPE) :].partition(".")[0]
        elif metadata.stack_frame_id:
            number = "?"
        key = (number, operation)
        if key not in self._made:
            self._made[key] = self._make(type(metadata), number, operation)
        metadata.CopyFrom(self._made[key])

    def _make(self, message: Any, number: str, operation: str) -> Any:
        site = self._sites[int(number)] if number.isdigit() else None
        site = self._unnamed if not number else site
        operation = operation.removeprefix("aten__").removeprefix("xla__")
        made = message(op_type=operation, op_name=operation)
        if site is not None:
            parts = (site.phase, site.module, operation)
            made.op_name = "/".join(part for part in parts if part)
            made.source_file, made.source_line = site.file, site.line
        return made


def _compact(sharding: Any, mesh: Mesh, made: dict[bytes, Any]) -> None:
    """Replace a list of devices by the compact form where a spec gives it.

    `made` keeps what was made of others: they are few, and on a pod they are long.
    """
    key = sharding.SerializeToString()
    if key not in made:
        made[key] = type(sharding)()
        made[key].CopyFrom(sharding)
        _make_compact(made[key], mesh)
    sharding.CopyFrom(made[key])


def _make_compact(sharding: Any, mesh: Mesh) -> None:
    if sharding.type != OTHER or not sharding.tile_assignment_devices:
        return
    listed = HloSharding(
        tile_shape=tuple(sharding.tile_assignment_dimensions),
        devices=tuple(sharding.tile_assignment_devices),
        replicate_last=sharding.replicate_on_last_tile_dim,
    )
    if listed.num_devices == mesh.size:
        try:
            spec = from_hlo(listed, mesh)
        except ValueError:  # of another mesh over as many devices
            return
        write_sharding(sharding, to_hlo(mesh, spec))


def write_sharding(target: Any, sharding: HloSharding) -> None:
    """Write a sharding into an ``OpSharding`` message.

    Args:
        target: The message; what it held is dropped.
        sharding: What to write.
    """
    target.Clear()
    target.type = REPLICATED if sharding.is_replicated else OTHER
    target.tile_assignment_dimensions.extend(sharding.tile_shape)
    target.tile_assignment_devices.extend(sharding.devices)
    target.iota_reshape_dims.extend(sharding.reshape_dims)
    perm = sharding.transpose_perm or tuple(range(len(sharding.reshape_dims)))
    target.iota_transpose_perm.extend(perm if sharding.reshape_dims else ())
    target.replicate_on_last_tile_dim = sharding.replicate_last
