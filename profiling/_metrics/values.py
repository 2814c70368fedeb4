"""Numbers of a step that stay on the devices until they are read, all in one go."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from numbers import Real
from typing import Any


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
    if isinstance(value, Real):
        return float(value)
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
        host_reads = sys.modules.get("spmd._host_reads")
        return host_reads is not None and host_reads.is_refusing()
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(value, jax.core.Tracer)


def are_recorded(values: Sequence[Any]) -> list[bool]:
    """Which values torch_xla has recorded but not executed yet.

    Args:
        values: From `keep`.

    Returns:
        For each; true before the `torch_xla.sync` of its step.
    """
    late = [value for value in values if is_xla(value)]
    if not late:
        return [False] * len(values)
    from spmd._torch_xla_graph import needs_execution

    answers = iter(needs_execution(late))
    return [is_xla(value) and next(answers) for value in values]


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
    late = [value for value in values if is_xla(value)]
    found: dict[int, Any] = {}
    if late:
        from spmd._torch_xla import to_host

        found = {id(v): host for v, host in zip(late, to_host(late), strict=True)}
    return [float(_item(found.get(id(value), value))) for value in values]


def _item(value: Any) -> Any:
    return value.item() if hasattr(value, "item") else value


def is_xla(value: Any) -> bool:
    """Whether a value is a tensor on torch_xla's device.

    Args:
        value: Anything.
    """
    return _is_tensor(value) and value.device.type == "xla"


def is_jax(value: Any) -> bool:
    """Whether a value is jax's array, or spmd's around one.

    Args:
        value: Anything.
    """
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(getattr(value, "array", value), jax.Array)


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)
