"""`StepRecord`: what is known of one training step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from math import isfinite
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One training step; None is what is not known or was not given.

    Times are those of this process. `step_s` is a mean over a window, the steps since
    the devices were last waited for; the other times are this step's own, in which
    Python was busy with something.

    Attributes:
        step: Its number, from 1.
        loss: Training loss.
        grad_norm: Norm of the gradients.
        scalars: Whatever else was handed in, by name.
        tokens: Over all devices.
        tokens_per_s: Over all devices, mean over the window.
        num_steps: Steps of the window.
        step_s: Seconds from step end to step end, mean over the window.
        data_s: Seconds in which this step waited for its batch.
        host_s: Seconds in which this thread did something else than waiting for data
            or devices or compiling: what the devices may have waited for. Of a lazy
            step that includes all of `torch_xla.sync`.
        compile_s: Seconds in which spmd had a step compiled.
        wait_s: Seconds of waiting for the devices.
        num_compiles: Programs that this process has compiled so far.
        num_devices: Over all processes.
        flops: Of the model in one step, over all devices; see `step_flops`.
        peak_flops: FLOP/s that one device could do.
        memory_bytes: Of one device: the most it had in use so far, or what the compiled
            step takes; `memory_source` says which.
        memory_limit_bytes: What there is of it.
        memory_source: ``"device"`` or ``"compiled"``.
        host_memory_bytes: Resident memory of this process. CPU devices live in it.
    """

    step: int
    loss: float | None = None
    grad_norm: float | None = None
    scalars: Mapping[str, float] = field(default_factory=dict, hash=False)
    tokens: int | None = None
    tokens_per_s: float | None = None
    num_steps: int = 1
    step_s: float = 0.0
    data_s: float = 0.0
    host_s: float = 0.0
    compile_s: float = 0.0
    wait_s: float = 0.0
    num_compiles: int | None = None
    num_devices: int = 1
    flops: float | None = None
    peak_flops: float | None = None
    memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    memory_source: Literal["device", "compiled"] | None = None
    host_memory_bytes: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "scalars", MappingProxyType(dict(self.scalars)))

    @property
    def tps(self) -> float | None:
        """Tokens per second and device, as torchtitan has it."""
        return _ratio(self.tokens_per_s, self.num_devices)

    @property
    def tflops(self) -> float | None:
        """The model's TFLOP/s of one device."""
        per_s = _ratio(self.flops, self.step_s * self.num_devices)
        return None if per_s is None else per_s / 1e12

    @property
    def mfu(self) -> float | None:
        """Model FLOP/s utilisation: ``flops / (step_s * num_devices * peak_flops)``."""
        if self.peak_flops is None:
            return None
        return _ratio(self.flops, self.step_s * self.num_devices * self.peak_flops)

    def as_json(self) -> dict[str, Any]:
        """Everything as data, `scalars` among the rest.

        Returns:
            Strings, numbers and None. JSON has no word for what is not finite, so that
            is text: ``"nan"``, ``"inf"`` or ``"-inf"``, which `float` reads.
        """
        return self.of_step() | self.of_window()

    def of_step(self) -> dict[str, Any]:
        """The part of `as_json` that each step of a window has of its own."""
        found = dict(zip(_OF_STEP, _of_step(self), strict=True))
        return _finite({**found, **self.scalars})

    def of_window(self) -> dict[str, Any]:
        """The part of `as_json` that is the same for all steps of a window."""
        return _finite(dict(zip(_OF_WINDOW, _of_window(self), strict=True)))


_DERIVED = ("tps", "tflops", "mfu")
_OF_STEP = (
    *("step", "loss", "grad_norm", "tokens"),
    *("data_s", "host_s", "compile_s", "wait_s"),
)
_OF_WINDOW = (
    *(f.name for f in fields(StepRecord) if f.name not in (*_OF_STEP, "scalars")),
    *_DERIVED,
)
_of_step, _of_window = attrgetter(*_OF_STEP), attrgetter(*_OF_WINDOW)
RESERVED = frozenset(
    (*(f.name for f in fields(StepRecord)), *_DERIVED, "time", "process")
)
"""Names that a scalar cannot have."""


def _finite(found: dict[str, Any]) -> dict[str, Any]:
    for name, value in found.items():
        if type(value) is float and not isfinite(value):
            found[name] = str(value)
    return found


def _ratio(part: float | None, whole: float) -> float | None:
    return None if part is None or whole <= 0.0 else part / whole
