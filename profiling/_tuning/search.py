"""Coordinate descent over flags, and the difference that each one makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from profiling._compiling.compiled import FlagValue
from profiling._tuning.space import Knob
from profiling._tuning.trial import Flags, Judge, Trial, best_of
from spmd._program.summary import bytes_text


@dataclass(frozen=True, slots=True)
class Effect:
    """What one chosen flag does.

    Attributes:
        name: Of the flag.
        value: Its value.
        without: The chosen set without it; None where the budget did not reach.
    """

    name: str
    value: FlagValue
    without: Trial | None


def descend(judge: Judge, knobs: Sequence[Knob], starts: Mapping[str, Flags]) -> Trial:
    """Find a good set of flags.

    From the best start each knob is stepped up and down while that helps, one after
    the other, until a whole round changes nothing or the budget is used up; some of it
    is kept to take each flag away once.

    Args:
        judge: Compiles sets.
        knobs: What to vary, in order.
        starts: Sets to start from, by label; the first one is always compiled.

    Returns:
        The best that was found; each of its flags makes it better, as far as the
        budget reached.
    """
    best = best_of(judge.try_all(starts.items()))
    changed = True
    while changed:
        before = best
        for knob in knobs:
            best = _along(judge, knob, best)
        changed = best is not before
    return _pruned(judge, best)


def effects(judge: Judge, best: Trial) -> tuple[Effect, ...]:
    """What each flag of a set does.

    Args:
        judge: Compiles what is missing, as far as its budget reaches.
        best: The set.

    Returns:
        In the order of the set.
    """
    judge.try_all(_without_each(best).values())
    return tuple(
        Effect(name, value, judge.known(_without_each(best)[name][1]))
        for name, value in best.flags.items()
    )


def _along(judge: Judge, knob: Knob, best: Trial) -> Trial:
    """Step along one knob while it helps, from both neighbours of where it is."""
    rungs = knob.rungs(best.flags.get(knob.name))
    at = rungs.index(best.flags.get(knob.name))
    if not knob.is_size:
        others = [i for i in range(len(rungs)) if i != at]
        return best_of([best, *_tried(judge, knob, best, rungs, others)])
    base, there = best, at
    for step in _directions(judge, knob, best, rungs, at):
        while 0 <= there + step < len(rungs):
            found = _tried(judge, knob, base, rungs, [there + step])
            if not found or not found[0].is_better(best):
                break
            best, there = found[0], there + step
    return best


def _directions(
    judge: Judge,
    knob: Knob,
    best: Trial,
    rungs: Sequence[FlagValue | None],
    at: int,
) -> tuple[int, ...]:
    """The direction of the better neighbour, none where neither is better."""
    both = [i for i in (at - 1, at + 1) if 0 <= i < len(rungs)]
    found = _tried(judge, knob, best, rungs, both)
    if not found or (top := best_of([best, *found])) is best:
        return ()
    (index,) = [i for i in both if rungs[i] == top.flags.get(knob.name)]
    return (index - at,)


def _tried(
    judge: Judge,
    knob: Knob,
    best: Trial,
    rungs: Sequence[FlagValue | None],
    which: Sequence[int],
) -> list[Trial]:
    sets = [_changed(best.flags, knob, rungs[i]) for i in which]
    return judge.try_all(sets, keep=len(best.flags))


def _changed(flags: Flags, knob: Knob, value: FlagValue | None) -> tuple[str, Flags]:
    """A label and the set with one flag at another value, None to leave it out."""
    kept = {k: v for k, v in flags.items() if k != knob.name}
    if value is None:
        return f"without {short_name(knob.name)}", kept
    return setting_text(knob.name, value), {**kept, knob.name: value}


def _pruned(judge: Judge, best: Trial) -> Trial:
    """Leave out each flag without which the step is as fast."""
    for name in best.flags:
        if name not in best.flags:
            continue
        found = judge.try_all([_without_each(best)[name]])
        if found and not best.is_better(found[0]):
            best = found[0]
    return best


def _without_each(best: Trial) -> dict[str, tuple[str, Flags]]:
    return {
        name: (
            f"without {short_name(name)}",
            {k: v for k, v in best.flags.items() if k != name},
        )
        for name in best.flags
    }


def short_name(name: str) -> str:
    """A flag's name without what all of a kind begin with.

    Args:
        name: Of the flag.

    Returns:
        For a table.

    Example:
        >>> short_name("xla_gpu_all_gather_combine_threshold_bytes")
        'all_gather_combine_threshold_bytes'
    """
    for prefix in ("xla_gpu_", "xla_tpu_", "xla_"):
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    return name


def setting_text(name: str, value: FlagValue) -> str:
    """A flag and its value for a table.

    Args:
        name: Of the flag.
        value: Its value.

    Returns:
        The short name and the value, bytes with a unit.

    Example:
        >>> setting_text("xla_gpu_all_gather_combine_threshold_bytes", 67108864)
        'all_gather_combine_threshold_bytes=64 MiB'
    """
    if name.endswith("_bytes") and isinstance(value, int):
        return f"{short_name(name)}={bytes_text(value)}"
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return f"{short_name(name)}={text}"
