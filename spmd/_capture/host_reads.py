"""Refuse reads of device values in the middle of a traced step, with file and line."""

from __future__ import annotations

import contextlib
import functools
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_ITEM = ".item(), print, or a Python if or while over a tensor"
_MASK = (
    "nonzero or a boolean mask, whose size depends on the values; torch.where and "
    "masked_fill need no read"
)
_COPY = ".cpu() or .to('cpu')"
_INDEXING = {
    torch.ops.aten.index.Tensor,
    torch.ops.aten.index_put.default,
    torch.ops.aten.index_put_.default,
    torch.ops.aten._index_put_impl_.default,
}
_REAL = (torch.Tensor, torch.nn.Parameter)
_COPYING = {torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default}
_LIBRARY = ("/torch/", "/torch_xla/", "/spmd/_")


class HostReadError(RuntimeError):
    """A step reads a device value on the host while it is traced."""


def _refusal(what: str) -> HostReadError:
    return HostReadError(
        f"the step reads a device value on the host ({what}) at {where()}. The read "
        f"would execute half a step and be baked into the compiled one: return the "
        f"value from the step and read it afterwards"
    )


class _RefuseReads(TorchDispatchMode):
    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if _may_read(func) and any(map(_on_device, args)):
            what = _read_by(func, args, kwargs)
            if what is not None:
                raise _refusal(what)
        try:
            return func(*args, **kwargs)
        except _OnHost:
            raise _no_form(func) from None


@contextlib.contextmanager
def refuse_host_reads() -> Iterator[None]:
    """Have the reading of a device value raise `HostReadError`.

    Operations that torch_xla would compute on the host raise a `CaptureError`. Tensors
    on the CPU are not concerned.

    Yields:
        Nothing.
    """
    global _num_refusing
    original = torch.Tensor.__repr__

    def represent(self: torch.Tensor, **options: Any) -> str:
        # The stand-ins of torch's own tracers print without reading.
        if type(self) in _REAL and _on_device(self):
            raise _refusal(_ITEM)
        return original(self, **options)

    torch.Tensor.__repr__ = represent  # printing switches dispatch modes off
    kernel = torch.library.Library("aten", "IMPL")
    _num_refusing += 1
    try:
        with warnings.catch_warnings():  # torch warns that it replaces a kernel
            warnings.simplefilter("ignore")
            kernel.impl("_to_cpu", _refuse_fallback, "XLA")
        with _RefuseReads():
            yield
    finally:
        _num_refusing -= 1
        kernel._destroy()
        torch.Tensor.__repr__ = original


_num_refusing = 0


def is_refusing() -> bool:
    """Whether a step is being recorded, in which device values have no data."""
    return _num_refusing > 0


class _OnHost(RuntimeError):
    """An operation, or some of its arguments, has no XLA form."""


def _refuse_fallback(tensors: Any) -> Any:
    """Stands in for what torch_xla calls before it computes with torch's CPU kernel.

    Some operations fall back for some arguments only, so a list of them would not do;
    and the read of a tensor that holds no data would end the process.
    """
    raise _OnHost


def _on_device(thing: Any) -> bool:
    return isinstance(thing, torch.Tensor) and thing.device.type == "xla"


@functools.cache
def _may_read(func: Any) -> bool:
    """Whether an operation reads values for some arguments; there are few."""
    tags = {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output}
    return func in _COPYING | _INDEXING or bool(tags & set(getattr(func, "tags", ())))


def _read_by(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
    """How an operation reads a value, if it does."""
    if func is torch.ops.aten._to_copy.default:
        target = kwargs.get("device")
        to_host = target is not None and torch.device(target).type == "cpu"
        return _COPY if to_host else None
    if func is torch.ops.aten.copy_.default:
        return None if _on_device(args[0]) else "copy_ into a CPU tensor"
    if func in _INDEXING:
        masks = (torch.bool, torch.uint8)
        by_mask = any(i is not None and i.dtype in masks for i in args[1])
        return _MASK if by_mask else None
    if torch.Tag.dynamic_output_shape in func.tags:
        return _MASK
    if torch.Tag.data_dependent_output in func.tags:
        name = func.overloadpacket.__name__
        return _ITEM if name == "_local_scalar_dense" else f"torch.{name}"
    return None


def _no_form(func: Any) -> RuntimeError:
    from spmd._capture.checks import CaptureError

    place = where()
    hint = "Write it with other operations"
    if "/transformers/integrations/moe.py" in place:
        hint = "Set config._experts_implementation = 'batched_mm' for these experts"
    return CaptureError(
        f"the step uses {func.name()} at {place}, which has no XLA form for these "
        f"arguments: it would run on the host while the step is traced, and its result "
        f"be baked into the compiled one. {hint}"
    )


def where() -> str:
    """File and line of the innermost frame outside the libraries.

    Returns:
        ``train.py:42 in step``; in a backward pass there may be no such frame.
    """
    for frame in reversed(traceback.extract_stack()):
        path = frame.filename.replace("\\", "/")
        if not any(part in path for part in _LIBRARY) and not path.startswith("<"):
            return f"{frame.filename}:{frame.lineno} in {frame.name}"
    return "the backward pass"


@contextlib.contextmanager
def without_hf_mask_read(*, packed: bool) -> Iterator[None]:
    """Keep Hugging Face's mask helper from reading device values.

    `transformers.masking_utils` asks on the host whether positions restart inside a row
    (several sequences packed into one), unless it believes to be traced. Positions that
    the model counts up itself never do.

    Args:
        packed: The step is given positions of its own, which may restart: they are
            then compared on the device.

    Yields:
        Nothing.
    """
    masking: Any = sys.modules.get("transformers.masking_utils")
    names = ("is_tracing", "find_packed_sequence_indices")
    if masking is None or not all(hasattr(masking, n) for n in names):
        yield
        return
    before = {n: getattr(masking, n) for n in names}
    masking.is_tracing = lambda *args, **kwargs: True
    if not packed:
        masking.find_packed_sequence_indices = lambda *args, **kwargs: None
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(masking, name, value)
