"""Read the flags out of a library's file, without loading the library.

Every XLA library holds the serialised descriptors of its protocol buffers. Those of
`xla.DebugOptions` (all libraries) and `xla.jellyfish.TpuCompilationEnvironment`
(libtpu) have one field for each flag.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
)
from google.protobuf.message import DecodeError

from flags._flag import Flag

XLA_PROTO = "xla/xla.proto"
TPU_PROTO = "tpu_compilation_environment.proto"
MESSAGES = {XLA_PROTO: "DebugOptions", TPU_PROTO: "TpuCompilationEnvironment"}
"""The message whose fields are flags, by the end of its file's name."""

_CHUNK = 1 << 24
_LONGEST_NAME = 127  # one byte of length, and no path of a .proto is longer
_FIELDS = range(1, 16)  # of FileDescriptorProto
_VARINT, _BYTES = 0, 2

_Type = FieldDescriptorProto
_TYPES = {
    _Type.TYPE_BOOL: "bool",
    _Type.TYPE_INT32: "int32",
    _Type.TYPE_INT64: "int64",
    _Type.TYPE_UINT32: "uint32",
    _Type.TYPE_UINT64: "uint64",
    _Type.TYPE_FLOAT: "float",
    _Type.TYPE_DOUBLE: "float",
    _Type.TYPE_STRING: "string",
    _Type.TYPE_ENUM: "enum",
    _Type.TYPE_MESSAGE: "message",
}


def read_flags(path: Path, protos: Sequence[str] = (XLA_PROTO,)) -> tuple[Flag, ...]:
    """Find the flags that a library's compile options have.

    Args:
        path: The library, a shared object.
        protos: Which of `MESSAGES` it has.

    Returns:
        By name, each once; all of channel ``options``.

    Raises:
        OSError: The file cannot be read.
        ValueError: A file without such a descriptor.
    """
    found: dict[str, Flag] = {}
    with (
        open(path, "rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        for proto in protos:
            message = MESSAGES[proto]
            for description in _files(data, proto):
                flags = _flags(description, message)
                if flags:
                    found = {flag.name: flag for flag in flags} | found
                    break
            else:
                raise ValueError(
                    f"{path}: holds no description of {message} ({proto}); it is no "
                    f"XLA library, or one of a form that is not known here"
                )
    return tuple(found[name] for name in sorted(found))


def _files(data: mmap.mmap, proto: str) -> Iterator[FileDescriptorProto]:
    """Descriptors of files whose name ends so."""
    for end in _occurrences(data, proto.encode()):
        # Field 1, its length, the name: b"\x0a\x0dxla/xla.proto".
        for length in range(len(proto), _LONGEST_NAME + 1):
            start = end - length - 2
            if start < 0:
                break
            if data[start] == 0x0A and data[start + 1] == length:
                yield from _parsed(data[start : _end(data, start)])


def _parsed(data: bytes) -> Iterator[FileDescriptorProto]:
    try:
        yield FileDescriptorProto.FromString(data)
    except DecodeError:
        return


def _occurrences(data: mmap.mmap, word: bytes) -> Iterator[int]:
    """Where a word ends in the data. `mmap.find` is many times slower than this."""
    overlap = len(word) - 1
    for start in range(0, len(data), _CHUNK):
        part = data[start : start + _CHUNK + overlap]
        at = part.find(word)
        while at >= 0:
            yield start + at + len(word)
            at = part.find(word, at + 1)


def _end(data: mmap.mmap, at: int) -> int:
    """Where a FileDescriptorProto ends: its fields come in ascending order."""
    last = 0
    while True:
        start = at
        try:
            tag, at = _varint(data, at)
            number, kind = tag >> 3, tag & 7
            first_again = number == 1 and last == 1
            if number not in _FIELDS or number < last or first_again:
                return start
            if kind == _BYTES:
                length, at = _varint(data, at)
                at += length
            elif kind == _VARINT:
                _, at = _varint(data, at)
            else:
                return start
        except IndexError:
            return start
        if at > len(data):
            return start
        last = number


def _varint(data: mmap.mmap, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _flags(description: FileDescriptorProto, message: str) -> list[Flag]:
    for candidate in description.message_type:
        if candidate.name == message:
            enums = _enums(description)
            nested = {
                inner.name for inner in candidate.nested_type if inner.options.map_entry
            }
            return [_flag(field, enums, nested) for field in candidate.field]
    return []


def _enums(description: FileDescriptorProto) -> dict[str, tuple[str, ...]]:
    """Values of each enum of a file, by its full name."""
    found: dict[str, tuple[str, ...]] = {}

    def visit(prefix: str, message: DescriptorProto) -> None:
        inside = f"{prefix}.{message.name}"
        for enum in message.enum_type:
            found[f"{inside}.{enum.name}"] = tuple(v.name for v in enum.value)
        for inner in message.nested_type:
            visit(inside, inner)

    package = f".{description.package}"
    for enum in description.enum_type:
        found[f"{package}.{enum.name}"] = tuple(v.name for v in enum.value)
    for message in description.message_type:
        visit(package, message)
    return found


def _flag(
    field: FieldDescriptorProto,
    enums: dict[str, tuple[str, ...]],
    maps: set[str],
) -> Flag:
    kind = _TYPES.get(field.type, "unknown")
    choices: tuple[str, ...] = ()
    last = field.type_name.rpartition(".")[2]
    if kind == "enum":
        choices = enums.get(field.type_name, ())
        if ".TristateProto." in field.type_name:
            kind = "tristate"
    elif kind == "message" and last in maps:
        kind = "map"
    elif kind == "message" and last == "AutoProto":
        kind = "auto"
    return Flag(
        field.name,
        kind,
        ("options",),
        choices=choices,
        repeated=field.label == _Type.LABEL_REPEATED and kind != "map",
        deprecated=field.options.deprecated,
    )
