"""`step_flops`: floating-point operations that the model of a step needs.

Counted in the step as it was traced, before any compiler: matmuls of the whole batch
over all devices, loops by their trips, without what is computed a second time
(`model_flops`), and of causal attention the half that is not masked out (`_causal`).
MaxText counts so too; PaLM's formula (arxiv.org/abs/2204.02311, appendix B), which
torchtitan and nanoGPT use, counts causal attention in full.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from profiling._hlo.binary import read_binary
from profiling._hlo.loops import executions
from profiling._hlo.module import Instruction, Module
from profiling._hlo.no_gc import no_gc
from profiling._report.show_words import flops_text
from profiling._step.causal import causal_sizes, is_causal
from profiling._step.model_flops import model_flops
from profiling._timeline.flops import Matmul, matmul
from spmd._program.program import Program

_known: dict[str, StepFlops] = {}


@dataclass(frozen=True, slots=True)
class StepFlops:
    """What a model needs for one step, over all devices.

    Attributes:
        flops: Floating-point operations of its matmuls; a multiplication and an
            addition are two.
        causal_flops: Left out: what causal attention's masked half would add.
        dtype: That most of all products are in, as `Target.peak_flops` takes it.
        is_exact: False where a loop's trips are not known; it then counts once.
    """

    flops: float
    causal_flops: float = 0.0
    dtype: str = "bfloat16"
    is_exact: bool = True

    def of_one(self, num_devices: int) -> StepFlops:
        """A device's share.

        Args:
            num_devices: Over all processes.

        Returns:
            The same of each device.
        """
        return replace(
            self,
            flops=self.flops / num_devices,
            causal_flops=self.causal_flops / num_devices,
        )

    @property
    def text(self) -> str:
        """How it was counted, in words."""
        parts = ["matmuls of the traced step, recomputation left out"]
        if self.causal_flops:
            parts.append(
                f"causal attention counted once (its masked half would add "
                f"{flops_text(self.causal_flops)})"
            )
        if not self.is_exact:
            parts.append("a loop of unknown length counted as one trip")
        return "; ".join(parts)


def step_flops(program: Program) -> StepFlops:
    """Count what a step needs.

    Args:
        program: A traced step, see `spmd.trace`. It is neither compiled nor run.

    Returns:
        The count, over all devices.

    Raises:
        TypeError: Something that is no program.
        ValueError: A module that cannot be read.
    """
    if not isinstance(program, Program):
        raise TypeError(
            f"step_flops: {program!r}; a Program is needed: spmd.trace(...) or "
            f"spmd.Program.load(path)"
        )
    if program.fingerprint not in _known:  # compiled for several targets, or tuned
        with no_gc():
            _known[program.fingerprint] = flops_of(_module(program))
    return _known[program.fingerprint]


def flops_of(module: Module) -> StepFlops:
    """Count what a module's step needs.

    Args:
        module: A step as it was traced, for all devices.

    Returns:
        The count.
    """
    runs = executions(module)
    sizes = causal_sizes(module)
    done: list[tuple[Instruction, Matmul, float]] = []
    once: list[tuple[Instruction, Matmul, float]] = []
    is_exact = True
    for computation in module.computations:
        times = runs[computation.name]
        for instruction in computation.instructions:
            found = matmul(instruction) if times.times else None
            if found is None:
                continue
            is_exact = is_exact and times.is_exact
            done.append((instruction, found, times.times))
            if is_causal(instruction, sizes):
                found = replace(found, flops=found.flops / 2)
            once.append((instruction, found, times.times))
    flops, dtype = model_flops(once)
    return StepFlops(flops, model_flops(done)[0] - flops, dtype, is_exact)


def _module(program: Program) -> Module:
    from spmd._pjrt.client import hlo_from_stablehlo
    from spmd._program.stablehlo import module_text

    text = module_text(program.module, locations=True)
    return read_binary(hlo_from_stablehlo(text), source=f"program {program.name!r}")
