"""Numbers of a step that stay on the devices until they are read, all in one go."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from numbers import Real
from typing import Any

from spmd._host_spans import WAIT, span


def keep(name: str, value: Any) -> Any:
    """Take a number without waiting for it.

    Args:
        name: What errors call it.
        value: A number, or a tensor or array of one element, on any device.

    Returns:
        A float where the value is on the host; else what `read` takes.

    Raises:
        TypeError: Something that is no number.
        RuntimeError: Inside of a step that is being traced.
        ValueError: More elements than one, or a tensor without data.
    """
    kind = type(value)
    if kind is float:
        return value
    torch = sys.modules.get("torch")
    if torch is not None and kind is torch.Tensor and value.is_xla:
        # Called in each step, in the middle of which nothing is in the caches.
        if value.numel() == 1 and not (_is_refusing() or value.is_complex()):
            return value.detach() if value.requires_grad else value
    elif isinstance(value, Real):
        return float(value)
    elif _is_device_array(kind) and value.shape == () and "complex" not in value.dtype:
        return value
    return _checked(name, value)


def _checked(name: str, value: Any) -> Any:
    if is_traced(value):
        raise RuntimeError(
            f"StepMetrics: {name} is a value of a step that is being traced; return it "
            f"from the step, and call StepMetrics.step outside"
        )
    shape = getattr(value, "shape", None)
    if shape is not None and math.prod(shape) != 1:
        raise ValueError(
            f"StepMetrics: {name} has shape {list(shape)}; one number is needed, such "
            f"as its mean()"
        )
    if "complex" in str(getattr(value, "dtype", "")):
        raise TypeError(f"StepMetrics: {name} is complex; give its abs()")
    if _is_tensor(value):
        if value.device.type == "meta":
            raise ValueError(f"StepMetrics: {name} is on meta, where it has no value")
        # What requires a gradient would keep the step's graph alive.
        value = value.detach() if value.requires_grad else value
        return float(value.item()) if value.device.type == "cpu" else value
    if is_jax(value):
        return value
    try:
        return float(_item(value))
    except (TypeError, ValueError):
        raise TypeError(
            f"StepMetrics: {name} is a {type(value).__name__}; a number, or a tensor "
            f"or array of one is needed"
        ) from None


def is_traced(value: Any) -> bool:
    """Whether a value is none, because its step is being traced.

    Args:
        value: Anything.

    Returns:
        True inside of the function that `spmd.compile_step` or `jax.jit` was given.
    """
    if is_xla(value):
        return _is_refusing()
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def _is_refusing() -> bool:
    host_reads = sys.modules.get("spmd._capture.host_reads")
    return host_reads is not None and host_reads.is_refusing()


def are_recorded(values: Sequence[Any]) -> list[bool]:
    """Which values torch_xla has recorded but not executed yet.

    Args:
        values: From `keep`.

    Returns:
        For each; true before the `torch_xla.sync` of its step.
    """
    places = _on_xla(values)
    found = [False] * len(values)
    if places:
        from spmd._torch_xla.graph import needs_execution

        answers = needs_execution([values[i] for i in places])
        for i, is_recorded in zip(places, answers, strict=True):
            found[i] = is_recorded
    return found


def read(values: Sequence[Any]) -> list[float]:
    """Wait for values and copy them to the host, those of torch_xla together.

    Args:
        values: From `keep`.

    Returns:
        Numbers in the same order.

    Raises:
        RuntimeError: A later step has taken the memory of a value.
    """
    try:
        return _read(values)
    except RuntimeError as error:
        if "deleted" not in str(error):
            raise
        raise RuntimeError(
            "StepMetrics: a value that it was given is state of the step, whose memory "
            "a later step has taken; hand in a copy: value.clone(), or value.item()"
        ) from error


def _read(values: Sequence[Any]) -> list[float]:
    places = _on_xla(values)
    found = list(values)
    if places:
        from spmd._torch_xla.seam import to_host

        copied = to_host([values[i] for i in places])
        for i, value in zip(places, copied, strict=True):
            found[i] = value
    with span(WAIT):
        return [v if type(v) is float else float(_item(v)) for v in found]


def _item(value: Any) -> Any:
    """The number in a value.

    Each device of jax's has the whole of an array without dims: reading one of them is
    twice as fast as reading the array, which puts its pieces together.
    """
    array = value.array if _is_device_array(type(value)) else value
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(array, jax.Array) and array.shape == ():
        value = array.addressable_data(0)
    return value.item() if hasattr(value, "item") else value


def _on_xla(values: Sequence[Any]) -> list[int]:
    """Where tensors of torch_xla are among values."""
    torch = sys.modules.get("torch")
    if torch is None:
        return []
    tensor = torch.Tensor
    return [i for i, v in enumerate(values) if isinstance(v, tensor) and v.is_xla]


def is_xla(value: Any) -> bool:
    """Whether a value is a tensor on torch_xla's device.

    Args:
        value: Anything.
    """
    return _is_tensor(value) and value.is_xla


def is_jax(value: Any) -> bool:
    """Whether a value is jax's array, or spmd's around one.

    Args:
        value: Anything.
    """
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(getattr(value, "array", value), jax.Array)


def _is_device_array(kind: type) -> bool:
    arrays = sys.modules.get("spmd._jax.device_array")
    return arrays is not None and kind is arrays.DeviceArray


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
