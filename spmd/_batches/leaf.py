"""One tensor of a batch: taken in, padded by rows, and cut into pieces for devices."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from spmd._batches.rows import Placement

_CHANGED = {"uint16": "int32", "uint32": "int64", "uint64": "int64"}
"""torch_xla 2.9 turns these into signed ones of the same width: 65535 becomes -1."""


def as_tensor(value: Any, path: str) -> torch.Tensor | None:
    """The tensor of a leaf.

    Args:
        value: A leaf of the batch.
        path: Its path, for an error.

    Returns:
        The tensor, a tensor over the array's memory for a NumPy array, or `None` for a
        leaf that is none (a number, a string, ...).

    Raises:
        TypeError: An array of objects or dates, or an object with tensors inside.
        ValueError: A tensor that cannot be split: sparse, of a dtype the device would
            change, on another device, or with a history of gradients.
    """
    if isinstance(value, np.ndarray):
        if value.dtype.kind in "US":
            return None
        value = _from_numpy(value, path)
    if isinstance(value, torch.Tensor):
        _check_tensor(value, f"{path} {list(value.shape)}")
        return value
    held = [
        k for k, v in _attributes(value) if isinstance(v, torch.Tensor | np.ndarray)
    ]
    if held:
        raise TypeError(
            f"{path} is a {type(value).__name__} that holds a tensor ({held[0]!r}), "
            f"but only mappings, lists, tuples and dataclasses are searched; make it "
            f"one of these"
        )
    return None


def _attributes(value: Any) -> Iterable[tuple[str, Any]]:
    return getattr(value, "__dict__", {}).items() if not callable(value) else ()


def _from_numpy(array: np.ndarray, path: str) -> torch.Tensor:
    name = array.dtype.name
    if name in _CHANGED or array.dtype.kind not in "biufc":
        cast = _CHANGED.get(name, "a number or bool dtype, or pass a list")
        raise TypeError(
            f"{path} {list(array.shape)} is an array of {array.dtype}, which the "
            f"device cannot hold; cast it to {cast}"
        )
    native = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("="))
    if native.ndim != array.ndim:  # ascontiguousarray makes a scalar 1-D
        native = native.reshape(array.shape)
    return torch.from_numpy(native if native.flags.writeable else native.copy())


def _check_tensor(tensor: torch.Tensor, where: str) -> None:
    dtype = str(tensor.dtype).removeprefix("torch.")
    if tensor.layout != torch.strided or tensor.is_nested or tensor.is_quantized:
        raise ValueError(
            f"{where} is sparse, nested or quantized ({tensor.layout}, {dtype}); only "
            f"dense tensors can be split, e.g. tensor.to_dense()"
        )
    if dtype in _CHANGED:
        raise ValueError(
            f"{where} is {dtype}, which torch_xla turns into a signed dtype of the "
            f"same width; cast it: tensor.to(torch.{_CHANGED[dtype]})"
        )
    if tensor.device.type not in ("cpu", "xla", "meta"):
        raise ValueError(
            f"{where} is on {tensor.device}; a batch is on the CPU, the XLA device or "
            f"meta"
        )
    if tensor.requires_grad and not tensor.is_leaf and tensor.device.type == "cpu":
        raise ValueError(
            f"{where} was computed on the CPU from tensors that require grad, and the "
            f"gradient cannot flow back to them; use tensor.detach()"
        )


def pad_rows(
    tensor: torch.Tensor, rows: int, *, value: float | None = None
) -> torch.Tensor:
    """Add rows at the end.

    Args:
        tensor: ``[n, ...]`` with at least one row.
        rows: Rows to end up with, `n` or more.
        value: What to fill the new rows with. Default: the last row again.

    Returns:
        ``[rows, ...]``; the same tensor where nothing is missing.

    Example:
        >>> pad_rows(torch.tensor([[1, 2], [3, 4]]), 3).tolist()
        [[1, 2], [3, 4], [3, 4]]
        >>> pad_rows(torch.tensor([7]), 3, value=-100).tolist()
        [7, -100, -100]
    """
    missing = (rows - tensor.shape[0], *tensor.shape[1:])
    if missing[0] == 0:
        return tensor
    if value is None:
        return torch.cat([tensor, tensor[-1:].expand(missing)])
    return torch.cat([tensor, tensor.new_full(missing, value)])


def cut(tensor: torch.Tensor, placement: Placement) -> list[torch.Tensor]:
    """Cut a host's tensor into one piece for each of its devices.

    Args:
        tensor: What the host passes, on the CPU.
        placement: Which part each device gets.

    Returns:
        Pieces of `placement.piece_shape`, filled up with zeros at the end; XLA never
        reads those.
    """
    pieces = []
    for part in placement.pieces:
        piece = tensor[part] if part else tensor
        if tuple(piece.shape) != placement.piece_shape:
            whole = piece.new_zeros(placement.piece_shape)
            whole[tuple(slice(0, n) for n in piece.shape)] = piece
            piece = whole
        pieces.append(piece)
    return pieces
