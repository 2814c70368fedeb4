"""What `tune` found, as text for people."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiling._report.show_words import percent
from profiling._tuning.trial import Trial
from profiling._tuning.tune import Tuned, effect_text, setting
from spmd._program.summary import bytes_text


def show_tuned(found: Tuned, console: Console) -> None:
    """Print what was tried, what was chosen, and what each chosen flag does.

    Args:
        found: From `tune`.
        console: Where to.
    """
    console.print(
        Text(f"{found.program} on {found.target.text}", style="bold"),
        Text(_tried(found)),
    )
    console.print(_table(found))
    console.print()
    for note in found.notes:
        console.print(note, markup=False, highlight=False)
    console.print(Text("Chosen", style="bold"), _verdict(found))
    for effect in found.effects:
        console.print(f"  {setting(effect)}", markup=False, highlight=False)
        reason = found.reasons.get(effect.name)
        for line in filter(None, (reason, effect_text(effect, found.best))):
            console.print(f"    {line}", markup=False, highlight=False, soft_wrap=True)


def _tried(found: Tuned) -> str:
    cached = sum(trial.from_cache for trial in found.trials)
    number = len(found.trials)
    return (
        f"{number} sets of flags compiled of at most {found.budget}"
        + (f", {cached} of them in an earlier run" if cached else "")
        + "; times are estimates"
    )


def _table(found: Tuned) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1))
    table.add_column("", no_wrap=True)
    table.add_column("tried", overflow="fold", ratio=1)
    for title in ("step\nms", "exposed\nms", "hidden", "memory"):
        table.add_column(title, justify="right", no_wrap=True)
    for number, trial in enumerate(found.trials, 1):
        chosen = trial is found.best
        table.add_row(
            f"{number}{'*' if chosen else ''}",
            trial.label if not trial.error else f"{trial.label}: {trial.error}",
            _ms(trial.step_s),
            _ms(trial.exposed_s),
            _hidden(trial),
            _memory(trial),
            style="bold" if chosen else "",
        )
    return table


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1e3:.2f}"


def _hidden(trial: Trial) -> str:
    share = trial.overlapped_share
    return "-" if share is None else percent(share)


def _memory(trial: Trial) -> str:
    if trial.memory_bytes is None:
        return "-"
    if trial.over_bytes:
        return f"over by {bytes_text(trial.over_bytes)}"
    return bytes_text(trial.memory_bytes)


def _verdict(found: Tuned) -> str:
    best, defaults = found.best, found.defaults
    if not best.fits:
        return "nothing that was tried fits in memory"
    if not best.flags:
        return "no flag: nothing that was tried beats the defaults"
    if best.step_s is None or defaults.step_s is None or not defaults.fits:
        return f"step {_ms(best.step_s)} ms; the defaults do not fit in memory"
    gain = 1 - best.step_s / defaults.step_s
    return (
        f"step {_ms(best.step_s)} ms instead of {_ms(defaults.step_s)}, "
        f"{gain:.1%} less (estimate)"
    )
