"""Read and write ``*.spmd`` files: a zip of the module, its description and constants.

Members: ``module.mlirbc``, ``program.json``, and ``constants/<i>.bin`` with the bits of
the i-th constant, little-endian. The same program gives the same bytes.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from spmd._meshes.mesh import Mesh
from spmd._program.program import Program, as_json
from spmd._program.value import STORED_AS, ModuleAnnotation, Value

FORMAT_VERSION = 1
"""Raised when an older library would misread a file; such files are refused."""

_MODULE, _JSON = "module.mlirbc", "program.json"
_TIME = (1980, 1, 1, 0, 0, 0)  # the earliest a zip can say
_PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
# What zipfile and zlib raise on damaged bytes, found by fuzzing.
_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    RuntimeError,
    OverflowError,
    IndexError,
    ValueError,
)
T = TypeVar("T")


def save(program: Program, path: Path) -> Path:
    """Write a program; the file appears whole or not at all.

    Args:
        program: The program.
        path: Where to.

    Returns:
        The path.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(to_bytes(program))
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def to_bytes(program: Program) -> bytes:
    """The content of the file.

    Args:
        program: The program.

    Returns:
        A zip; the same bytes for the same program.
    """
    described = {
        "format_version": FORMAT_VERSION,
        "name": program.name,
        "fingerprint": program.fingerprint,
        "versions": dict(program.versions),
        "module_sha256": hashlib.sha256(program.module).hexdigest(),
        **as_json(program),
    }
    text = json.dumps(described, indent=1, sort_keys=True, ensure_ascii=False)
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        _add(archive, _JSON, text.encode(), pack=True)
        _add(archive, _MODULE, program.module, pack=True)
        for i, array in enumerate(program.constants.values()):
            _add(archive, _constant(i), array.tobytes(), pack=False)
    return content.getvalue()


def _constant(index: int) -> str:
    return f"constants/{index}.bin"


def _add(archive: zipfile.ZipFile, name: str, data: bytes, *, pack: bool) -> None:
    info = zipfile.ZipInfo(name, _TIME)
    info.external_attr = 0o644 << 16
    info.compress_type = zipfile.ZIP_DEFLATED if pack else zipfile.ZIP_STORED
    archive.writestr(info, data, compresslevel=1)


def load(path: Path) -> Program:
    """Read a program.

    Args:
        path: Where from.

    Returns:
        The program that was saved.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A file that is damaged, from a newer version or something else.
    """
    data = path.read_bytes()
    try:
        return from_bytes(data)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def from_bytes(data: bytes) -> Program:
    """The program that a file's content describes.

    Args:
        data: What `to_bytes` gave.

    Returns:
        The program.

    Raises:
        ValueError: Other bytes, with what is wrong about them.
    """
    members = _members(data)
    described = _parse(_member(members, _JSON))
    _check_version(described)
    mesh = _mesh(_field(described, "mesh", dict, "", optional=True))
    inputs = tuple(_value(v, f"inputs[{i}]") for i, v in _listed(described, "inputs"))
    outputs = tuple(
        _value(v, f"outputs[{i}]") for i, v in _listed(described, "outputs")
    )
    notes = tuple(
        _note(v, f"annotations[{i}]") for i, v in _listed(described, "annotations")
    )
    by_name = {value.name: value for value in inputs}
    constants = {}
    for i, name in _listed(described, "constants"):
        if not isinstance(name, str) or name not in by_name:
            raise ValueError(f"{_JSON}: constants[{i}] is {name!r}, which is no input")
        constants[name] = _array(_member(members, _constant(i)), by_name[name])
    try:
        program = Program(
            _module(described, members),
            mesh,
            inputs,
            outputs,
            constants=constants,
            annotations=notes,
            versions=_versions(described),
            name=_field(described, "name", str, ""),
            module_digest=_field(described, "module_digest", str, ""),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(f"inconsistent program: {error}") from error
    said = _field(described, "fingerprint", str, "")
    if said != program.fingerprint:
        raise ValueError(
            f"damaged or edited: it says fingerprint {said[:16]!r}, its content has "
            f"{program.fingerprint[:16]!r}; write it again with spmd.trace"
        )
    return program


def _members(data: bytes) -> Mapping[str, bytes]:
    if not data.startswith(b"PK"):
        raise ValueError(
            f"not a program: it starts with {data[:8]!r}, a *.spmd file is a zip"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            if any(info.compress_type not in _PACKINGS for info in archive.infolist()):
                raise ValueError("packed in a way that this format does not use")
            return {name: archive.read(name) for name in archive.namelist()}
    except _ZIP_ERRORS as error:
        raise ValueError(
            f"damaged or cut short ({len(data)} bytes): "
            f"{error or type(error).__name__}; copy or write it again"
        ) from error


def _member(members: Mapping[str, bytes], name: str) -> bytes:
    if name not in members:
        raise ValueError(
            f"not a program, or damaged: no {name!r} in it, only {sorted(members)[:8]}"
        )
    return members[name]


def _module(described: Mapping[str, Any], members: Mapping[str, bytes]) -> bytes:
    module = _member(members, _MODULE)
    said = _field(described, "module_sha256", str, "")
    if said != hashlib.sha256(module).hexdigest():
        raise ValueError(
            f"damaged or edited: {_MODULE} is not the one that {_JSON} describes; "
            f"write it again with spmd.trace"
        )
    return module


def _parse(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data.decode())
    except json.JSONDecodeError as error:
        line = error.doc.splitlines()[error.lineno - 1] if error.doc.strip() else ""
        start = max(0, error.colno - 40)
        raise ValueError(
            f"{_JSON}: no JSON at line {error.lineno}, column {error.colno} "
            f"({error.msg}):\n  {line[start : error.colno + 39]}\n  "
            f"{' ' * (error.colno - 1 - start)}^"
        ) from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{_JSON}: {error}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{_JSON}: an object is needed, got {_kind(found)}")
    return found


def _check_version(described: Mapping[str, Any]) -> None:
    version = _field(described, "format_version", int, "")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"written by a newer spmd: format {version}, this one reads up to "
            f"{FORMAT_VERSION}; upgrade: pip install -U xla-spmd"
        )
    if version < 1:
        raise ValueError(f"{_JSON}: format_version is {version}; 1 is the first")


def _mesh(found: Mapping[str, Any] | None) -> Mesh | None:
    if found is None:
        return None
    sizes = tuple(_of(s, int, f"mesh.shape[{i}]") for i, s in _listed(found, "shape"))
    names = tuple(_names(found, "axis_names"))
    ids: Any = range(_total(sizes))
    if found.get("device_ids") is not None:
        where = "mesh.device_ids"
        ids = [_of(d, int, f"{where}[{i}]") for i, d in _listed(found, "device_ids")]
    try:
        return Mesh(
            np.asarray(ids, np.int64), sizes, names, dcn_axes=_names(found, "dcn_axes")
        )
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{_JSON}: mesh: {error}") from error


def _total(sizes: tuple[int, ...]) -> int:
    total = 1
    for size in sizes:
        total *= size
        if not 0 < total < 2**24:
            raise ValueError(f"{_JSON}: mesh.shape is {list(sizes)}")
    return total


def _names(found: Mapping[str, Any], key: str) -> list[str]:
    return [_of(name, str, f"mesh.{key}[{i}]") for i, name in _listed(found, key)]


def _value(found: Any, where: str) -> Value:
    found = _of(found, dict, where)
    try:
        return Value(
            _field(found, "name", str, where),
            _field(found, "role", str, where),
            _shape(found, where),
            _field(found, "dtype", str, where),
            _spec(found, where),
            donated_to=_field(found, "donated_to", int, where, optional=True),
            updates=_field(found, "updates", int, where, optional=True),
        )
    except (TypeError, ValueError) as error:
        raise ValueError(_in_json(where, error)) from error


def _note(found: Any, where: str) -> ModuleAnnotation:
    found = _of(found, dict, where)
    try:
        spec = _spec(found, where)
        return ModuleAnnotation(
            _field(found, "module", str, where), _shape(found, where), spec or ()
        )
    except (TypeError, ValueError) as error:
        raise ValueError(_in_json(where, error)) from error


def _in_json(where: str, error: Exception) -> str:
    text = str(error)
    return text if text.startswith(_JSON) else f"{_JSON}: {where}: {text}"


def _shape(found: Mapping[str, Any], where: str) -> tuple[int, ...]:
    return tuple(
        _of(size, int, f"{where}.shape[{i}]") for i, size in _listed(found, "shape")
    )


def _spec(found: Mapping[str, Any], where: str) -> Any:
    if found.get("spec") is None:
        return None
    entries: list[Any] = []
    for i, entry in _listed(found, "spec"):
        if isinstance(entry, list):
            entry = tuple(_of(a, str, f"{where}.spec[{i}]") for a in entry)
        elif entry is not None:
            entry = _of(entry, str, f"{where}.spec[{i}]")
        entries.append(entry)
    return tuple(entries)


def _array(data: bytes, value: Value) -> np.ndarray:
    stored = np.dtype(STORED_AS[value.dtype]).newbyteorder("<")
    if len(data) != value.size_bytes:
        raise ValueError(
            f"constant {value.name!r} has {len(data)} bytes, {value!r} has "
            f"{value.size_bytes}"
        )
    return np.frombuffer(data, stored).reshape(value.shape)


def _versions(described: Mapping[str, Any]) -> dict[str, str]:
    found = _field(described, "versions", dict, "")
    return {name: _of(text, str, f"versions.{name}") for name, text in found.items()}


def _listed(found: Mapping[str, Any], key: str) -> enumerate[Any]:
    return enumerate(_field(found, key, list, ""))


def _field(
    found: Mapping[str, Any],
    key: str,
    kind: type[T],
    where: str,
    *,
    optional: bool = False,
) -> Any:
    if optional and found.get(key) is None:
        return None
    where = f"{where}.{key}" if where else key
    if key not in found:
        raise ValueError(f"{_JSON}: {where} is missing")
    return _of(found[key], kind, where)


def _of(found: Any, kind: type[T], where: str) -> T:
    if not isinstance(found, kind) or isinstance(found, bool):
        raise ValueError(
            f"{_JSON}: {where} is {_kind(found)}; {kind.__name__} is needed"
        )
    return found


def _kind(found: Any) -> str:
    return f"{type(found).__name__} {str(found)[:40]!r}"
