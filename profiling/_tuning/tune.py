"""`tune`: search flags for one step by compiling it, and say what each one does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flags import Preset, PresetFlag, Workload, catalogue, options, preset
from profiling._compiling.compiled import FlagValue
from profiling._report.show_words import seconds_text
from profiling._targets.target import Target
from profiling._tuning.search import Effect, descend, effects
from profiling._tuning.space import Knob, knobs
from profiling._tuning.trial import Compile, Flags, Judge, Trial, Watch
from profiling._tuning.workload import workload
from spmd._program.summary import bytes_text

if TYPE_CHECKING:
    from profiling._schedule import Schedule
    from spmd._program.program import Program

_PRESETS = {"gpu": "gpu-overlap", "tpu": "tpu-overlap"}
_LIBRARIES = {"gpu": "cuda", "tpu": "libtpu"}
LEAST_BUDGET = 2
BUDGET = 24


@dataclass(frozen=True, slots=True, repr=False)
class Tuned:
    """What a search found. Times are estimates.

    Attributes:
        program: Name of the step.
        target: What it was compiled for.
        budget: Sets of flags that it might compile.
        trials: All that were compiled, in order.
        defaults: The one without flags.
        best: The chosen one.
        effects: What each of its flags does.
        reasons: What each flag that was varied changes, by name.
        versions: Of what compiled.
        notes: What was left out, and why.
    """

    program: str
    target: Target
    budget: int
    trials: tuple[Trial, ...]
    defaults: Trial
    best: Trial
    effects: tuple[Effect, ...]
    reasons: Mapping[str, str] = field(hash=False)
    versions: Mapping[str, str] = field(hash=False)
    notes: tuple[str, ...] = ()

    def preset(self, name: str, *, date: str) -> Preset:
        """The chosen flags as a preset, for `flags.write`.

        Args:
            name: What to call it.
            date: When it was found.

        Returns:
            Each flag with its reason and the difference it makes.
        """
        compiler = {k: v for k, v in self.versions.items() if k != "compiler"}
        made = tuple(
            PresetFlag(
                effect.name,
                effect.value,
                reason=self.reasons.get(effect.name, "of the set it started from"),
                source=f"spmd tune, {len(self.trials)} sets of flags compiled",
                effect=effect_text(effect, self.best),
            )
            for effect in self.effects
        )
        about = f"Found by spmd tune for {self.program} on {self.target.text}."
        figures = (
            f"Estimated step {_ms(self.defaults.step_s)} ms at the defaults, "
            f"{_ms(self.best.step_s)} with these flags; exposed "
            f"{_ms(self.defaults.exposed_s)} and {_ms(self.best.exposed_s)}. Compiled, "
            f"not run."
        )
        return Preset(name, about, self.target.kind, date, compiler, figures, made)

    def as_json(self) -> dict[str, Any]:
        """The fields as plain data; the same in every run.

        Returns:
            What `json.dumps` takes.
        """
        return {
            "program": self.program,
            "target": self.target.text,
            "budget": self.budget,
            "trials": [trial.as_json() for trial in self.trials],
            "defaults": self.defaults.as_json(),
            "best": self.best.as_json(),
            "effects": [
                {
                    "name": effect.name,
                    "value": effect.value,
                    "without": effect.without and effect.without.as_json(),
                }
                for effect in self.effects
            ],
            "versions": dict(self.versions),
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        return (
            f"Tuned({self.program!r} on {self.target.text}: {len(self.best.flags)} "
            f"flags, estimated step {seconds_text(self.defaults.step_s)} to "
            f"{seconds_text(self.best.step_s)}, {len(self.trials)} tried)"
        )


def tune(
    program: Program,
    target: Target | str,
    *,
    budget: int = BUDGET,
    starts: Sequence[Preset] = (),
    compile: Compile | None = None,
    watch: Watch | None = None,
    num_workers: int | None = None,
) -> Tuned:
    """Search flags of combining, scheduling and overlap by compiling a step.

    From the best of the defaults, our preset and `starts`, each flag is stepped up and
    down while the estimated step gets faster; what does not fit in memory loses to what
    does. A flag that makes no difference is left out again. For the same step, target,
    budget and compiler the result is the same; what was compiled once is read from the
    cache.

    Args:
        program: For as many devices as the target has.
        target: A target or its text, such as ``h100:2x8``; a GPU or TPU.
        budget: Sets of flags to compile at most.
        starts: Further presets to start from.
        compile: Compiles one set; None for `profiling.compile`.
        watch: Told what is compiled.
        num_workers: Compilers at a time; None for one on every two cores.

    Returns:
        All that was tried, the best, and what each of its flags does.

    Raises:
        CompileError: The compiler is not installed or locked.
        NotInstalledError: The compiler's flags cannot be read.
        ValueError: A CPU, a budget that is too small, or a number of devices that does
            not agree.
    """
    if isinstance(target, str):
        target = Target.parse(target)
    _check(program, target, budget)
    figures = workload(program, target)
    sets, notes = _starts(target, figures, starts)
    varied = _knobs(target, figures)
    judge = Judge(
        program,
        target,
        budget=budget,
        compile=compile or _compile,
        watch=watch,
        num_workers=num_workers,
    )
    best = descend(judge, varied, sets)
    return Tuned(
        program=program.name,
        target=target,
        budget=budget,
        trials=judge.trials,
        defaults=judge.trials[0],
        best=best,
        effects=effects(judge, best),
        reasons={knob.name: knob.reason for knob in varied},
        versions=judge.versions,
        notes=tuple(notes),
    )


def effect_text(effect: Effect, best: Trial) -> str:
    """What one flag does, in words.

    Args:
        effect: The flag.
        best: The set it is in.

    Returns:
        What the step takes without it.
    """
    without = effect.without
    if without is None:
        return "not tried without it; a larger budget would"
    if without.step_s is None:
        return f"without it: {without.error}"
    if without.over_bytes:
        return f"without it a device has {bytes_text(without.over_bytes)} too little"
    if best.step_s is None:
        return "without it the step compiles"
    return (
        f"without it: step {best.step_s * 1e3:.2f} to {without.step_s * 1e3:.2f} ms, "
        f"exposed {_ms(best.exposed_s)} to {_ms(without.exposed_s)}"
    )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.2f}"


def _check(program: Program, target: Target, budget: int) -> None:
    if target.kind == "cpu":
        raise ValueError(
            f"{target.text}: there is nothing to tune, as collectives of a CPU run "
            f"beside nothing; take a GPU or a TPU, such as h100:1x8"
        )
    if budget < LEAST_BUDGET:
        raise ValueError(f"budget is {budget}; it must be {LEAST_BUDGET} or more")
    if program.num_devices != target.num_devices:
        raise ValueError(
            f"program {program.name!r} is for {program.num_devices} devices, "
            f"{target.text} has {target.num_devices}"
        )


def _starts(
    target: Target, figures: Workload, given: Sequence[Preset]
) -> tuple[dict[str, Flags], list[str]]:
    """The sets to start from by label, the defaults first; and what was left out."""
    sets: dict[str, Flags] = {"defaults": {}}
    notes: list[str] = []
    for entry in [preset(_PRESETS[target.kind]), *given]:
        try:
            sets[entry.name] = options(entry, workload=figures, backend=target.kind)
        except ValueError as error:
            if entry in given:
                raise
            notes.append(f"not started from {entry.name}: {error}")
    return sets, notes


def _knobs(target: Target, figures: Workload) -> tuple[Knob, ...]:
    known = {f.name for f in catalogue(_LIBRARIES[target.kind]).in_channel("options")}
    return knobs(figures, target.kind, accepts=known.__contains__)


def _compile(program: Program, target: Target, flags: Flags) -> Schedule:
    from profiling._compiling.compile import compile

    return compile(program, target, flags=flags)


def setting(effect: Effect) -> str:
    """A flag with its value, as ``--flag`` takes it.

    Args:
        effect: The flag.

    Returns:
        ``name=value``.
    """
    return f"{effect.name}={_text(effect.value)}"


def _text(value: FlagValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
