"""Refuse to capture a step that would not repeat what it did when it was recorded."""

from __future__ import annotations

import gc
import inspect
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from traceback import extract_tb
from typing import Any

import torch

from spmd._capture.host_reads import HostReadError
from spmd._capture.record import Output, Recorded, Source, leaf_names
from spmd._capture.state import StepState
from spmd._torch_xla import graph as torch_xla_graph


class CaptureError(RuntimeError):
    """A step that cannot be captured, with the name of what is in the way."""


class HostValues:
    """What an optimizer keeps on the host: numbers, and CPU tensors.

    Args:
        state: The state before the step.
    """

    def __init__(self, state: StepState) -> None:
        self._state = state
        self._numbers: dict[str, Any] = {}
        self._tensors: dict[str, tuple[torch.Tensor, int, torch.Tensor]] = {}
        for label, value in self._entries():
            if isinstance(value, torch.Tensor):
                self._tensors[label] = (value, value._version, value.clone())
            else:
                self._numbers[label] = value

    def _entries(self) -> Iterator[tuple[str, Any]]:
        optimizer = self._state.optimizer
        if optimizer is None:
            return
        for name, parameter in self._state.parameters:
            for key, value in optimizer.state.get(parameter, {}).items():
                if isinstance(value, torch.Tensor) and value.device.type != "cpu":
                    continue
                if value is not None:
                    yield f"optimizer.{key}[{name}]", value

    def check(self) -> None:
        """Refuse a step that changed any of it.

        Raises:
            CaptureError: Says what changed.
        """
        for label, value in self._entries():
            if not self._is_same(label, value):
                raise CaptureError(
                    f"{type(self._state.optimizer).__name__} counts {label} on the "
                    f"host, so a captured step would repeat its first value for ever; "
                    f"use an optimizer that has capturable=True, or run this step "
                    f"without compile_step"
                )

    def _is_same(self, label: str, value: Any) -> bool:
        if not isinstance(value, torch.Tensor):
            return label in self._numbers and bool(self._numbers[label] == value)
        tensor, version, _ = self._tensors.get(label, (None, None, None))
        return tensor is value and version == value._version

    def restore(self) -> None:
        """Give CPU tensors their values again."""
        for tensor, version, copy in self._tensors.values():
            if tensor._version != version:
                with torch.no_grad():
                    tensor.copy_(copy)


@contextmanager
def explained(state: StepState) -> Iterator[None]:
    """Name the optimizer where torch's own code reads a value on the host.

    Args:
        state: The state of the step.

    Yields:
        Nothing.

    Raises:
        CaptureError: Instead of a `HostReadError` from inside `torch.optim`.
    """
    try:
        yield
    except HostReadError as error:
        files = [f.filename.replace("\\", "/") for f in extract_tb(error.__traceback__)]
        optim = [f.rpartition("/")[2] for f in files if "/torch/optim/" in f]
        if not set(optim) - {"optimizer.py", "lr_scheduler.py"}:
            raise
        raise CaptureError(
            f"{type(state.optimizer).__name__} reads a value on the host in its step, "
            f"its learning rate or a count; use an optimizer that computes with both "
            f"on the device, such as AdamW or SGD, or run this step without "
            f"compile_step"
        ) from error


def check_rates(state: StepState, rates: Sequence[torch.Tensor | None]) -> None:
    """Refuse a step that changes a learning rate.

    Args:
        state: The state, with the rates of the trace.
        rates: What each group was given.

    Raises:
        CaptureError: Says which.
    """
    for i, (group, rate) in enumerate(zip(state.groups, rates, strict=True)):
        if rate is None:
            continue
        if group["lr"] is not rate or torch_xla_graph.needs_execution([rate])[0]:
            raise CaptureError(
                f"the step itself changes the learning rate of group {i} (a scheduler "
                f"called inside it?); call scheduler.step() after the compiled step"
            )


def check_fallbacks(before: Counter[str]) -> None:
    """Refuse a step parts of which ran on the host while it was traced.

    Args:
        before: `fallback_ops` before the trace.

    Raises:
        CaptureError: Names the operations.
    """
    new = torch_xla_graph.fallback_ops() - before
    if new:
        raise CaptureError(
            f"the step uses operations that have no XLA form and ran on the host while "
            f"it was traced: {', '.join(sorted(new))}; their results would be baked "
            f"into the compiled step. Write them with other operations"
        )


def check_sources(record: Recorded, live: Live) -> None:
    """Refuse data without a place, and state that is overwritten blindly.

    Args:
        record: The recorded step.
        live: Tensors that were there before it.

    Raises:
        CaptureError: Names the tensor.
    """
    _check_constants(record, live)
    for leaf, name in zip(record.leaves, leaf_names(record.shape), strict=True):
        if not isinstance(leaf, Source | Output) and _holds_traced(leaf, depth=4):
            raise CaptureError(
                f"the step returns {name}, a {type(leaf).__name__} that holds tensors; "
                f"return the tensors themselves, in dicts, lists, tuples or dataclasses"
            )
    for slot in record.slots:
        if slot.name in record.cleared and slot.role not in ("gradient", "optimizer"):
            raise CaptureError(
                f"the step takes {slot.name} away, or makes it the same tensor as "
                f"other state; give it a tensor of its own: {slot.name} = other.clone()"
            )
    read = {s.index for s in record.sources if s.kind == "state"}
    for index in record.updated:
        slot = record.slots[index]
        fresh = index >= len(record.originals) or index in record.replaced
        if index not in read and not fresh and slot.role != "gradient":
            raise CaptureError(
                f"the step overwrites {slot.name} without reading it: either it is no "
                f"state of the step, or the trace lost track of it and would use a "
                f"stale value. Assign a new tensor instead of writing in place"
            )


def _holds_traced(thing: Any, *, depth: int) -> bool:
    """Whether an object that is no container we know has traced tensors inside."""
    if isinstance(thing, torch.Tensor):
        on_device = thing.device.type == "xla"
        return on_device and torch_xla_graph.needs_execution([thing])[0]
    if depth == 0 or isinstance(thing, type | torch.nn.Module):
        return False
    if isinstance(thing, Mapping):
        inside = list(thing.values())
    elif isinstance(thing, list | tuple | set):
        inside = list(thing)
    else:
        inside = list(getattr(thing, "__dict__", {}).values())
    return any(_holds_traced(inner, depth=depth - 1) for inner in inside)


def _check_constants(record: Recorded, live: Live) -> None:
    """Numbers written in the code are fine; data from elsewhere would go stale."""
    values = [
        s.value for s in record.sources if s.kind == "constant" and s.value is not None
    ]
    for value, handle in zip(values, torch_xla_graph.handles(values), strict=True):
        name = live.name(handle)
        if name is None and value.ndim == 0:
            continue
        what = f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
        raise CaptureError(
            f"the step reads a tensor that is none of its inputs: {name or 'unnamed'} "
            f"({what}). Pass it in the batch, register it as a buffer of the model, or "
            f"name it in compile_step(..., extra={{'name': tensor}})"
        )


def _kinds(kind: type) -> Iterator[type]:
    """A class and all below it: asking each of a million objects takes long."""
    yield kind
    for below in type.__subclasses__(kind):
        yield from _kinds(below)


class Live:
    """Tensors on the device that were there before a step, by the handle of their data.

    Args:
        fn: The step; tensors that it sees are called by its variables.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        self._fn = fn
        # Held, since a handle is an address that is used again once its data is gone.
        kinds = set(_kinds(torch.Tensor))
        self._tensors = [t for t in gc.get_objects() if type(t) in kinds]
        for tensor in self._tensors:
            tensor._fix_weakref()  # the collector knows some that only C++ holds
        self.refresh()

    def refresh(self) -> None:
        """Look again, after some of the tensors were given other data."""
        self._names: dict[int, str] = {}
        self._variables: set[int] = set()
        self._holders: dict[int, set[int]] = {}
        for tensor in self._tensors:
            handle = _handle(tensor)
            if handle is not None:
                self._names[handle] = "a tensor made before the step"
                self._holders.setdefault(handle, set()).add(id(tensor))
        for name, value in _seen_by(self._fn):
            handle = _handle(value)
            if handle is not None:
                self._names[handle] = name
                self._variables.add(handle)

    def name(self, handle: int) -> str | None:
        """What a tensor is called.

        Args:
            handle: Of its data.

        Returns:
            `None` where no tensor had this data.
        """
        return self._names.get(handle)

    def is_variable(self, handle: int) -> bool:
        """Whether the step sees a tensor by a variable of its own.

        Args:
            handle: Of its data.
        """
        return handle in self._variables

    def shares(self, tensor: torch.Tensor, handle: int) -> bool:
        """Whether another tensor has the same data.

        Args:
            tensor: A tensor.
            handle: Of its data.

        Returns:
            True if reading that other one would fail once the data is donated.
        """
        return bool(self._holders.get(handle, set()) - {id(tensor)})


def _seen_by(fn: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    """Variables of a function, and attributes of the object it belongs to."""
    inner: Any = inspect.unwrap(fn)
    owner = getattr(inner, "__self__", inner)
    if not inspect.isfunction(owner):
        yield from ((f"self.{n}", v) for n, v in getattr(owner, "__dict__", {}).items())
    code = inner if inspect.isroutine(inner) else type(inner).__call__
    code = getattr(code, "__func__", code)
    if inspect.isfunction(code):
        seen = inspect.getclosurevars(code)
        yield from {**seen.globals, **seen.nonlocals}.items()


def _handle(thing: Any) -> int | None:
    if not isinstance(thing, torch.Tensor) or thing.device.type != "xla":
        return None
    try:
        if torch_xla_graph.needs_execution([thing])[0]:
            return None
        return torch_xla_graph.handles([thing])[0]
    except RuntimeError:  # its buffer was donated to a step: nobody can read it
        return None
