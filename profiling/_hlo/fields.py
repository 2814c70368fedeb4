"""Shape, metadata and attributes of one serialised instruction."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from profiling._hlo.attributes import MAX_LITERAL, PLAIN_STEP
from profiling._hlo.damage import TextFault
from profiling._hlo.device_groups import DeviceGroups, from_mesh, iota
from profiling._hlo.module import (
    NO_ATTRIBUTES,
    NO_METADATA,
    Attributes,
    Frame,
    Instruction,
    Metadata,
    interned,
)
from profiling._hlo.shape import ENUM, Shape
from profiling._hlo.sharding_text import sharding_text

_TUPLE = 13
_DEEPEST = 64


class FieldReader:
    """Reads messages; equal shapes, metadata and attributes are one object.

    Args:
        frames: Call stack entries of the module.
        payloads: Backend configs that instructions share.
    """

    def __init__(self, frames: Sequence[Frame], payloads: Sequence[bytes]) -> None:
        self.num_devices = 1  # the most that any groups or sharding speak of
        self._frames = frames
        self._payloads = payloads
        self._shapes: dict[bytes, Shape] = {}
        self._metadata: dict[Metadata, Metadata] = {}
        self._attributes: dict[Attributes, Attributes] = {}

    def shape(self, message: Any) -> Shape:
        """Its result's shape.

        Args:
            message: `HloInstructionProto`.

        Returns:
            The shape.

        Raises:
            TextFault: A dtype XLA does not have.
        """
        key = message.shape.SerializeToString()
        found = self._shapes.get(key)
        if found is None:
            found = self._shapes[key] = _shape(message.shape, 0)
        return found

    def metadata(self, message: Any) -> Metadata:
        """Where it comes from.

        Args:
            message: `HloInstructionProto`.

        Returns:
            Its metadata.
        """
        if not message.HasField("metadata"):
            return NO_METADATA
        given = message.metadata
        frame = given.stack_frame_id - 1
        if not 0 <= frame < len(self._frames):
            frame = -1
        file, line = given.source_file, given.source_line
        if frame >= 0 and not file:
            file, line = self._frames[frame].file, self._frames[frame].line
        found = Metadata(given.op_name, interned(file), line, frame, given.op_type)
        return self._metadata.setdefault(found, found)

    def attributes(self, message: Any, known: Mapping[int, Instruction]) -> Attributes:
        """What else it says.

        Args:
            message: `HloInstructionProto`.
            known: Instructions before it, by id.

        Returns:
            Its attributes.

        Raises:
            KeyError: A control predecessor that does not come before it.
            TextFault: Device groups whose sizes do not fit.
        """
        given: dict[str, Any] = {}
        for descriptor, value in message.ListFields():
            name = descriptor.name
            if name in _READERS:
                given.update(_READERS[name](value, message))
            elif name in _GROUP_FIELDS and (groups := self._groups(message)):
                given["groups"] = groups
        if message.control_predecessor_ids:
            given["after"] = tuple(
                known[i].name for i in message.control_predecessor_ids
            )
        if message.opcode == "parameter":
            given["parameter"] = message.parameter_number
        elif message.opcode == "get-tuple-element":
            given["tuple_index"] = message.tuple_index
        if "sharding" in given:
            spread = math.prod(message.sharding.tile_assignment_dimensions)
            self.num_devices = max(self.num_devices, spread)
        if message.HasField("backend_config_payload"):
            given["backend_config"] = self._payload(message.backend_config_payload)
        if not given:
            return NO_ATTRIBUTES
        found = Attributes(**given)
        return self._attributes.setdefault(found, found)

    def _payload(self, payload: Any) -> str:
        shared = payload.id
        if not payload.value and 0 <= shared < len(self._payloads):
            return self._payloads[shared].decode(errors="replace")
        return payload.value.decode(errors="replace")

    def _groups(self, message: Any) -> DeviceGroups | None:
        try:
            found = _groups(message)
        except ValueError as error:
            raise TextFault(str(error), 0) from None
        if found is None or found.is_all:
            return None
        self.num_devices = max(self.num_devices, found.num_devices)
        return found


def _shape(message: Any, depth: int) -> Shape:
    if message.element_type == _TUPLE:
        if depth > _DEEPEST:
            raise TextFault(f"tuples nested more than {_DEEPEST} deep", 0)
        inner = tuple(_shape(m, depth + 1) for m in message.tuple_shapes)
        return Shape("tuple", (), inner)
    if message.element_type not in ENUM:
        raise TextFault(f"no dtype has the number {message.element_type}", 0)
    if any(d < 0 for d in message.dimensions):
        raise TextFault(f"a shape of {list(message.dimensions)}", 0)
    layout = message.layout
    return Shape(
        ENUM[message.element_type],
        tuple(message.dimensions),
        (),
        tuple(layout.minor_to_major),
        layout.element_size_in_bits,
        layout.memory_space,
    )


def _groups(message: Any) -> DeviceGroups | None:
    """In any of the five places where versions of XLA put them."""
    if message.HasField("mesh_axes_replica_group_list"):
        given = message.mesh_axes_replica_group_list
        mesh = given.mesh
        return from_mesh(
            [(axis.name, axis.size) for axis in mesh.axes],
            [
                (a.mesh_axis_index, a.sub_axis_info.pre_size, a.sub_axis_info.size)
                for a in given.axes
            ],
            device_ids=list(mesh.device_ids),
            reshape_dims=list(mesh.iota_transform.reshape_dims),
            transpose_perm=list(mesh.iota_transform.transpose_perm),
        )
    listed = message.replica_groups
    for holder in (message.iota_collective_device_list, message.collective_device_list):
        compact = getattr(holder, "iota_replica_group_list", holder)
        if getattr(compact, "iota_reshape_dims", None):
            return iota(
                (compact.num_replica_groups, compact.num_devices_per_group),
                tuple(compact.iota_reshape_dims),
                tuple(compact.iota_transpose_perm),
            )
        listed = getattr(holder, "replica_groups", None) or listed
    return DeviceGroups(tuple(tuple(g.replica_ids) for g in listed)) if listed else None


def _literal(value: Any, message: Any) -> dict[str, Any]:
    shape = message.shape
    kind = ENUM.get(shape.element_type, "")
    if kind not in _PACKED and kind not in _LISTED:
        return {}
    count = math.prod(shape.dimensions)
    if count > MAX_LITERAL or count < 1:
        return {}
    if kind in _PACKED:
        field, code = _PACKED[kind]
        data = getattr(value, field)
        size = struct.calcsize(code)
        if len(data) != size * count:
            return {}
        return {"literal": struct.unpack(f"<{count}{code[1]}", data)}
    found = tuple(map(int, getattr(value, _LISTED[kind])))
    return {"literal": found} if len(found) == count else {}


_PACKED = {
    "s8": ("s8s", "<b"),
    "u8": ("u8s", "<B"),
    "s16": ("s16s", "<h"),
    "u16": ("u16s", "<H"),
}
_LISTED = {
    "pred": "preds",
    "s32": "s32s",
    "s64": "s64s",
    "u32": "u32s",
    "u64": "u64s",
}


def _ints(name: str) -> Any:
    return lambda value, _: {name: tuple(value)}


def _plain(name: str) -> Any:
    return lambda value, _: {name: value}


def _dot(value: Any, _: Any) -> dict[str, Any]:
    return {
        "lhs_contracting": tuple(value.lhs_contracting_dimensions),
        "rhs_contracting": tuple(value.rhs_contracting_dimensions),
        "lhs_batch": tuple(value.lhs_batch_dimensions),
        "rhs_batch": tuple(value.rhs_batch_dimensions),
    }


def _frontend(value: Any, _: Any) -> dict[str, Any]:
    found = tuple(sorted((e.key, e.value) for e in value.map))
    return {"frontend_attributes": found} if found else {}


def _window(value: Any, _: Any) -> dict[str, Any]:
    sizes = tuple(d.size for d in value.dimensions)
    steps = tuple(
        (
            d.stride or 1,
            d.padding_low,
            d.padding_high,
            d.base_dilation or 1,
            d.window_dilation or 1,
        )
        for d in value.dimensions
    )
    plain = all(step == PLAIN_STEP for step in steps)
    return {"window": sizes, "window_steps": () if plain else steps}


def _slices(value: Any, _: Any) -> dict[str, Any]:
    return {"slices": tuple((s.start, s.limit, s.stride) for s in value)}


def _kernel(value: Any, message: Any) -> dict[str, Any]:
    if message.opcode != "convolution":
        return {}
    pairs = zip(
        value.input_spatial_dimensions, value.output_spatial_dimensions, strict=False
    )
    return {
        "kernel_output_dim": value.kernel_output_feature_dimension,
        "spatial": tuple(pairs),
    }


def _fft_length(value: Any, message: Any) -> dict[str, Any]:
    kinds = ("FFT", "IFFT", "RFFT", "IRFFT")
    kind = kinds[message.fft_type] if 0 <= message.fft_type < len(kinds) else ""
    return {"fft_length": tuple(value), "fft_kind": kind}


def _feature_groups(value: int, message: Any) -> dict[str, Any]:
    return {"feature_groups": value} if message.opcode == "convolution" else {}


def _backend_config(value: bytes, _: Any) -> dict[str, Any]:
    return {"backend_config": value.decode(errors="replace")}


def _sharding(value: Any, _: Any) -> dict[str, Any]:
    return {"sharding": interned(sharding_text(value))}


def _pairs(value: Any, _: Any) -> dict[str, Any]:
    return {"pairs": tuple((p.source, p.target) for p in value)}


def _channel(value: int, _: Any) -> dict[str, Any]:
    return {"channel": value} if value > 0 else {}


_GROUP_FIELDS = frozenset(
    (
        "collective_device_list",
        "iota_collective_device_list",
        "mesh_axes_replica_group_list",
        "replica_groups",
    )
)
_READERS: dict[str, Any] = {
    "literal": _literal,
    "dimensions": _ints("dimensions"),
    "slice_dimensions": _slices,
    "dynamic_slice_sizes": _ints("slice_sizes"),
    "comparison_direction": _plain("direction"),
    "dot_dimension_numbers": _dot,
    "window": _window,
    "convolution_dimension_numbers": _kernel,
    "feature_group_count": _feature_groups,
    "fft_length": _fft_length,
    "fusion_kind": _plain("fusion_kind"),
    "custom_call_target": _plain("custom_call_target"),
    "backend_config": _backend_config,
    "frontend_attributes": _frontend,
    "sharding": _sharding,
    "channel_id": _channel,
    "use_global_device_ids": _plain("global_ids"),
    "source_target_pairs": _pairs,
    "async_execution_thread": _plain("thread"),
}
