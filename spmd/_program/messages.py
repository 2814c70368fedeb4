"""Protobuf messages made from a table of their fields, without generated code."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

Table: TypeAlias = Mapping[str, Mapping[str, tuple[int, str]]]
"""By message and field, its number and kind; a kind with ``*`` is a list.

A kind is a word such as ``int64``, or the name of a message of the table.
"""

_Field = descriptor_pb2.FieldDescriptorProto
_KINDS = {
    "string": _Field.TYPE_STRING,
    "bytes": _Field.TYPE_BYTES,
    "bool": _Field.TYPE_BOOL,
    "double": _Field.TYPE_DOUBLE,
    "int32": _Field.TYPE_INT32,
    "int64": _Field.TYPE_INT64,
    "uint32": _Field.TYPE_UINT32,
    "uint64": _Field.TYPE_UINT64,
}


def message_classes(
    package: str, table: Table, *, one_of: Mapping[str, str] | None = None
) -> Callable[[str], Any]:
    r"""Make the classes of some messages.

    Args:
        package: Their protobuf package; no two tables may have the same.
        table: Their fields. Fields that it does not name are kept as they are when a
            message is written again. Enums are declared int32, which has the same form.
        one_of: By message, the name of a oneof that has all of its fields but the
            first.

    Returns:
        Gives the class of a message by its name.

    Example:
        >>> made = message_classes("doc", {"Point": {"x": (1, "int64")}})
        >>> made("Point")(x=3).SerializeToString()
        b'\x08\x03'
    """
    one_of = one_of or {}
    file = descriptor_pb2.FileDescriptorProto(
        name=f"spmd/{package}.proto", package=package, syntax="proto3"
    )
    for name, fields in table.items():
        message = file.message_type.add(name=name)
        if name in one_of:
            message.oneof_decl.add(name=one_of[name])
        for place, (field, (number, kind)) in enumerate(fields.items()):
            base = kind.removesuffix("*")
            repeated = kind.endswith("*")
            made = message.field.add(
                name=field,
                number=number,
                label=_Field.LABEL_REPEATED if repeated else _Field.LABEL_OPTIONAL,
                type=_KINDS.get(base, _Field.TYPE_MESSAGE),
                type_name=None if base in _KINDS else f".{package}.{base}",
            )
            if name in one_of and place:
                made.oneof_index = 0
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)

    def message_class(name: str) -> Any:
        return message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{package}.{name}")
        )

    return message_class
