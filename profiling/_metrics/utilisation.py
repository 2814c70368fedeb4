"""`Utilisation`: FLOPs of a step and the peak that they are held against."""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Real
from typing import TypeGuard

from profiling._report.show_words import flops_text
from profiling._step.flops import StepFlops, step_flops
from profiling._targets.target import Target
from spmd._program.program import Program


@dataclass(frozen=True, slots=True)
class Utilisation:
    """The two figures of model FLOP/s utilisation.

    Attributes:
        flops: Of the model in one step, over all devices; None if not given.
        peak_flops: FLOP/s of one device; None if not given or not known.
        counted: How the first was counted, in words.
        of: What the second is the figure of, or why there is none.
    """

    flops: float | None = None
    peak_flops: float | None = None
    counted: str = ""
    of: str = "no flops were given"

    @classmethod
    def parse(
        cls,
        flops: float | StepFlops | Program | None,
        peak: float | str | Target | None,
    ) -> Utilisation:
        """Take what a user says.

        Args:
            flops: A number, a count, or a program to count in.
            peak: FLOP/s of a device, or a chip that has a figure.

        Returns:
            The figures.

        Raises:
            TypeError: Something else.
            ValueError: A number that is not above zero, a chip that is not known, or a
                peak without FLOPs.
        """
        found = _count(flops)
        if found is None:
            if peak is None:
                return cls()
            raise ValueError(
                f"StepMetrics: peak={peak!r} without flops; MFU needs both: give "
                f"flops=program (from spmd.trace) or a number"
            )
        counted = "a number that was given" if _is_number(flops) else found.text
        return cls(found.flops, *_peak(peak, found.dtype, counted))

    def text(self, num_devices: int) -> str:
        """The formula with its figures, or why MFU is not given.

        Args:
            num_devices: Over all processes.

        Returns:
            A sentence for people.
        """
        if self.flops is None:
            return f"{self.of}: MFU not given"
        flops = f"{flops_text(self.flops)} a step ({self.counted})"
        if self.peak_flops is None:
            return f"{flops}; {self.of}: MFU not given"
        devices = f"{num_devices} device{'' if num_devices == 1 else 's'}"
        peak = f"{flops_text(self.peak_flops)}/s{self.of}"
        return f"MFU = {flops} / (step time x {devices} x {peak})"


def _count(flops: float | StepFlops | Program | None) -> StepFlops | None:
    if flops is None or isinstance(flops, StepFlops):
        return flops
    if isinstance(flops, Program):
        return step_flops(flops)
    if not _is_number(flops):
        raise TypeError(
            f"StepMetrics: flops={flops!r}; a number of one step over all devices, or "
            f"a Program of spmd.trace is needed"
        )
    if not flops > 0:
        raise ValueError(f"StepMetrics: flops={flops!r}; more than 0 is needed")
    return StepFlops(float(flops))


def _peak(
    peak: float | str | Target | None, dtype: str, counted: str
) -> tuple[float | None, str, str]:
    """FLOP/s of a device, how FLOPs were counted, what it is the figure of."""
    if peak is None:
        return None, counted, "no peak was given (such as peak='h100')"
    if _is_number(peak):
        if not peak > 0:
            raise ValueError(f"StepMetrics: peak={peak!r}; more than 0 is needed")
        return float(peak), counted, ""
    if not isinstance(peak, str | Target):
        raise TypeError(
            f"StepMetrics: peak={peak!r}; FLOP/s of one device, or a chip such as "
            f"'h100' is needed"
        )
    target = Target.parse(peak) if isinstance(peak, str) else peak
    if target.kind == "cpu":  # its figures are nominal
        return None, counted, "no peak known for cpu"
    return target.peak_flops(dtype), counted, f" {dtype} of {target.chip.name}"


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)
