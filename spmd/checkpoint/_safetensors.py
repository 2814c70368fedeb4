"""Folders of safetensors files: plan and write them piece by piece, and read slices.

The format is at https://github.com/huggingface/safetensors: eight bytes with the length
of a JSON header, the header, and the data of the tensors one after the other.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from spmd.checkpoint._dcp import Region
from spmd.checkpoint._error import CheckpointError
from spmd.checkpoint._folder import Folder, LocalFolder
from spmd.checkpoint._read import Advance
from spmd.checkpoint._source import Kind, Source

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
MAX_FILE_BYTES = 5 * 10**9
_READ_BYTES = 16 * 2**20

DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "U16": "uint16",
    "U32": "uint32",
    "U64": "uint64",
    "BOOL": "bool",
    "C64": "complex64",
}
_CODES = {dtype: code for code, dtype in DTYPES.items()}


@dataclass(frozen=True, slots=True)
class File:
    """One file that is to be written.

    Attributes:
        name: Its name.
        tensors: Names, in order.
        header: Its first bytes.
    """

    name: str
    tensors: tuple[str, ...]
    header: bytes


def plan_files(
    kinds: Mapping[str, Kind], *, max_bytes: int = MAX_FILE_BYTES
) -> tuple[list[File], bytes | None]:
    """Distribute tensors over files, in order.

    Args:
        kinds: Dtype and shape of each.
        max_bytes: Largest size of a file, unless one tensor is larger.

    Returns:
        The files, and what the index has to hold if there are several.

    Raises:
        ValueError: A dtype that the format does not have.
    """
    groups: list[list[str]] = [[]]
    room = max_bytes
    for name, kind in kinds.items():
        size = num_bytes(kind)
        if groups[-1] and size > room:
            groups.append([])
            room = max_bytes
        groups[-1].append(name)
        room -= size
    total = len(groups)
    files = [
        File(
            SINGLE if total == 1 else f"model-{i:05}-of-{total:05}.safetensors",
            tuple(names),
            _header(names, kinds),
        )
        for i, names in enumerate(groups, start=1)
    ]
    return files, _index(files, kinds) if total > 1 else None


def write_files(
    folder: Folder,
    files: Sequence[File],
    tensor: Callable[[str], torch.Tensor],
    *,
    advance: Advance,
) -> None:
    """Write files; one tensor is on the host at a time.

    Args:
        folder: Where to.
        files: From `plan_files`.
        tensor: Gives each tensor on the CPU; called once, in order.
        advance: Called with the number of bytes after each tensor.
    """
    for file in files:
        with folder.create(file.name) as stream:
            stream.write(file.header)
            for name in file.tensors:
                data = tensor(name).contiguous()
                raw: Any = data.reshape(-1).view(torch.uint8).numpy()
                stream.write(raw)
                advance(data.nbytes)
                del data


@final
class SafetensorsSource(Source):
    """Tensors in a folder of safetensors files, under their names there.

    Args:
        folder: The folder.

    Raises:
        CheckpointError: No such file in it, one that is missing, or a damaged header.
    """

    def __init__(self, folder: Folder) -> None:
        self.url = folder.url
        self._folder = folder
        self._where: dict[str, tuple[str, int]] = {}
        kinds = {}
        for file in _files(folder):
            header, start = _read_header(folder, file)
            for name, entry in header.items():
                if name != "__metadata__":
                    kinds[name] = DTYPES[entry["dtype"]], tuple(entry["shape"])
                    self._where[name] = file, start + entry["data_offsets"][0]
        self.kinds = kinds

    def fill(
        self,
        key: str,
        regions: Sequence[tuple[Region, torch.Tensor]],
        *,
        advance: Advance,
    ) -> None:
        """See `Source`: of each region the rows are read, and no more."""
        for (offset, shape), target in regions:
            if isinstance(self._folder, LocalFolder):
                self._fill_mapped(key, offset, shape, target)
            else:
                self._fill_read(key, offset, shape, target)
            advance(target.nbytes)

    def _fill_mapped(
        self, key: str, offset: Sequence[int], shape: Sequence[int], target: Any
    ) -> None:
        from safetensors import safe_open

        assert isinstance(self._folder, LocalFolder)
        path = self._folder.root / self._where[key][0]
        with safe_open(path, framework="pt") as file:
            if target.ndim == 0:
                target.copy_(file.get_tensor(key))
                return
            box = _box(offset, shape)
            target.copy_(file.get_slice(key)[box])

    def _fill_read(
        self, key: str, offset: Sequence[int], shape: Sequence[int], target: Any
    ) -> None:
        dtype, whole = self.kinds[key]
        file, start = self._where[key]
        kind = getattr(torch, dtype)
        if target.numel() == 0:
            return
        row = math.prod(whole[1:]) * kind.itemsize
        rows = target.reshape(1, *target.shape) if target.ndim == 0 else target
        first = offset[0] if whole else 0
        step = max(1, _READ_BYTES // row)
        for at in range(0, len(rows), step):
            num = min(step, len(rows) - at)
            data = self._folder.read(
                file, at=start + (first + at) * row, size=num * row
            )
            if len(data) != num * row:
                raise CheckpointError(f"{self.url}: {file} is cut off within {key}")
            block = torch.frombuffer(bytearray(data), dtype=kind)
            block = block.reshape(num, *whole[1:])
            inner = (slice(None), *_box(offset[1:], shape[1:]))
            rows[at : at + num].copy_(block[inner])

    def object(self, key: str) -> Any:
        """See `Source`."""
        return None

    def objects(self) -> Iterable[str]:
        """See `Source`."""
        return ()


def num_bytes(kind: Kind) -> int:
    """Bytes of a tensor.

    Args:
        kind: Its dtype and shape.
    """
    return getattr(torch, kind[0]).itemsize * math.prod(kind[1])


def _header(names: Iterable[str], kinds: Mapping[str, Kind]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name in names:
        dtype, shape = kinds[name]
        if dtype not in _CODES:
            raise ValueError(
                f"{name} is {dtype}, which safetensors does not have; it has "
                f"{', '.join(_CODES)}"
            )
        end = at + num_bytes(kinds[name])
        header[name] = {
            "dtype": _CODES[dtype],
            "shape": list(shape),
            "data_offsets": [at, end],
        }
        at = end
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _index(files: Sequence[File], kinds: Mapping[str, Kind]) -> bytes:
    metadata = {
        "total_parameters": sum(math.prod(shape) for _, shape in kinds.values()),
        "total_size": sum(map(num_bytes, kinds.values())),
    }
    weight_map = {name: file.name for file in files for name in file.tensors}
    return json.dumps(
        {"metadata": metadata, "weight_map": weight_map}, indent=2
    ).encode()


def _files(folder: Folder) -> list[str]:
    names = folder.names()
    if INDEX in names:
        try:
            weight_map = json.loads(folder.read(INDEX))["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise CheckpointError(f"{folder.url}/{INDEX} is damaged: {error}") from None
        wanted = sorted(set(weight_map.values()))
        missing = [name for name in wanted if name not in names]
        if missing:
            raise CheckpointError(
                f"{folder.url}: {', '.join(missing)} is in {INDEX} but is missing"
            )
        return wanted
    found = [name for name in names if name.endswith(".safetensors")]
    if not found:
        there = ", ".join(names[:4]) or "nothing"
        raise CheckpointError(f"{folder.url} has no safetensors file; it has {there}")
    return found


def _read_header(folder: Folder, file: str) -> tuple[dict[str, Any], int]:
    size = int.from_bytes(folder.read(file, at=0, size=8), "little")
    try:
        if size > folder.size(file):
            raise ValueError(f"a header of {size} bytes")
        header = json.loads(folder.read(file, at=8, size=size))
    except ValueError as error:
        raise CheckpointError(f"{folder.url}/{file} is damaged: {error}") from None
    end = max(
        (e["data_offsets"][1] for n, e in header.items() if n[0] != "_"), default=0
    )
    if folder.size(file) < 8 + size + end:
        raise CheckpointError(
            f"{folder.url}/{file} is cut off: it has {folder.size(file)} bytes of "
            f"{8 + size + end}"
        )
    return header, 8 + size


def _box(offset: Sequence[int], shape: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(o, o + n) for o, n in zip(offset, shape, strict=True))
