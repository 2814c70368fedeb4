"""The part of the seam to torch_xla that traces without data, and takes HLO out.

Like `seam`, written against torch_xla 2.9; nothing else may touch its internals.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch_xla
import torch_xla.core.xla_builder as xla_builder

_XLAC: Any = torch_xla._XLAC  # pyright: ignore[reportPrivateImportUsage] # the seam


def placeholder(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of this shape that holds no data; reading it is an error.

    Args:
        shape: Its shape.
        dtype: Its dtype.

    Returns:
        A tensor on the XLA device.
    """
    return xla_builder.create_placeholder_tensor(tuple(shape), dtype)


def scope(name: str) -> Any:
    """Name the operations recorded until the returned object is deleted.

    Args:
        name: Becomes a part of their ``op_name``.

    Returns:
        An object to hold on to.
    """
    return _XLAC.profiler.scope_pusher(name)


@contextmanager
def operation_names(on: bool = True) -> Iterator[None]:
    """Record scopes and source lines with every operation.

    Args:
        on: False: do not.

    Yields:
        Nothing.
    """
    before = _XLAC._get_ir_debug()
    _XLAC._set_ir_debug(on)
    try:
        yield
    finally:
        _XLAC._set_ir_debug(before)


def hlo_proto(outputs: Sequence[torch.Tensor]) -> bytes:
    """The graph that ends in these tensors, before any compilation.

    Args:
        outputs: Traced values.

    Returns:
        A serialised ``HloModuleProto``; its parameters are in the order of
        `traced_inputs`, its results in that of `outputs`.
    """
    with operation_names():  # they are written while the graph is lowered
        return _XLAC._get_xla_tensors_hlo_proto(list(outputs))


def hlo_text(outputs: Sequence[torch.Tensor]) -> str:
    """The graph that ends in these tensors as text; see `hlo_proto`.

    Args:
        outputs: Traced values.

    Returns:
        HLO before any compilation.
    """
    return _XLAC._get_xla_tensors_hlo(list(outputs))
