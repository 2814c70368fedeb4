"""The protobuf of a profile, `XSpace`, with its big lists left as bytes.

Field numbers are those of XLA's public `xplane.proto`. A space's planes and a plane's
lines are kept as bytes, so that a large profile is taken apart one line at a time.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_Field = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "string": _Field.TYPE_STRING,
    "int64": _Field.TYPE_INT64,
    "uint64": _Field.TYPE_UINT64,
    "double": _Field.TYPE_DOUBLE,
    "bytes": _Field.TYPE_BYTES,
}
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "XStat": {
        "metadata_id": (1, "int64"),
        "double_value": (2, "double"),
        "uint64_value": (3, "uint64"),
        "int64_value": (4, "int64"),
        "str_value": (5, "string"),
        "bytes_value": (6, "bytes"),
        "ref_value": (7, "uint64"),
    },
    "XEvent": {
        "metadata_id": (1, "int64"),
        "offset_ps": (2, "int64"),
        "duration_ps": (3, "int64"),
        "stats": (4, "XStat*"),
        "num_occurrences": (5, "int64"),
    },
    "XLine": {
        "id": (1, "int64"),
        "name": (2, "string"),
        "timestamp_ns": (3, "int64"),
        "events": (4, "XEvent*"),
        "duration_ps": (9, "int64"),
        "display_name": (11, "string"),
    },
    "XEventMetadata": {
        "id": (1, "int64"),
        "name": (2, "string"),
        "display_name": (4, "string"),
        "stats": (5, "XStat*"),
    },
    "XStatMetadata": {"id": (1, "int64"), "name": (2, "string")},
    "EventMetadataEntry": {"key": (1, "int64"), "value": (2, "XEventMetadata")},
    "StatMetadataEntry": {"key": (1, "int64"), "value": (2, "XStatMetadata")},
    "PlaneParts": {
        "id": (1, "int64"),
        "name": (2, "string"),
        "lines": (3, "bytes*"),
        "event_metadata": (4, "EventMetadataEntry*"),
        "stat_metadata": (5, "StatMetadataEntry*"),
        "stats": (6, "XStat*"),
    },
    "SpaceParts": {
        "planes": (1, "bytes*"),
        "errors": (2, "string*"),
        "warnings": (3, "string*"),
        "hostnames": (4, "string*"),
    },
}
_ONE_OF = {"XStat": "value"}  # of all its fields but the first


def _pool() -> descriptor_pool.DescriptorPool:
    file = descriptor_pb2.FileDescriptorProto(
        name="spmd/xplane_subset.proto", package="spmd_xplane", syntax="proto3"
    )
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        if name in _ONE_OF:
            message.oneof_decl.add(name=_ONE_OF[name])
        for field, (number, kind) in fields.items():
            base = kind.removesuffix("*")
            repeated = kind.endswith("*")
            made = message.field.add(
                name=field,
                number=number,
                label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL,
                type=_KINDS.get(base, _Field.TYPE_MESSAGE),
                type_name=None if base in _KINDS else f".spmd_xplane.{base}",
            )
            if name in _ONE_OF and number > 1:
                made.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return pool


_POOL = _pool()


def _message_class(name: str) -> Any:
    return message_factory.GetMessageClass(_POOL.FindMessageTypeByName(name))


SpaceParts = _message_class("spmd_xplane.SpaceParts")
"""`XSpace` whose planes are bytes, each a `PlaneParts`."""
PlaneParts = _message_class("spmd_xplane.PlaneParts")
"""`XPlane` whose lines are bytes, each an `XLine`."""
XLine = _message_class("spmd_xplane.XLine")
"""One line of a plane with its events."""
