"""The verdict on a run: what holds it up, with the figures behind it."""

from __future__ import annotations

from collections.abc import Sequence

from profiling._profile.profile import HostTime, Spent, Verdict
from profiling._report.show_words import percent, seconds_text

IDLE_SHARE = 0.2
"""Share of a step in which devices wait for their host, from which on that is what
holds the run up; xprof's input pipeline analyzer calls a run highly input-bound from
there on (`kHighlyInfeedBoundThresholdInPercent`)."""

_WHAT = {
    "data": "waited for data",
    "checkpoint": "saved or loaded a checkpoint",
    "compile": "compiled",
    "trace": "recorded the graph",
    "dispatch": "handed programs to the devices",
    "wait": "waited for results",
    "other": "did something that no span names",
}


def shares_of(spent: Spent) -> dict[str, float]:
    """Where a step's time went, as shares.

    Args:
        spent: Its times.

    Returns:
        Shares that add up to 1 by ``compute``, ``communication``, ``gaps``, ``input``
        and ``host``.
    """
    parts = {
        "compute": spent.compute_s,
        "communication": spent.exposed_s,
        "gaps": spent.gap_s,
        "input": spent.input_s,
        "host": spent.host_s,
    }
    whole = sum(parts.values())
    return {name: part / whole if whole else 0.0 for name, part in parts.items()}


def verdict(spent: Spent, host_times: Sequence[HostTime]) -> Verdict:
    """Judge a run.

    Devices that wait for their host for a fifth of the step or more are held up by it:
    by its input where they wait longer for data than for anything else, else by the
    host. Where they do not, it is communication if collectives that nothing hides take
    longer than compute, with the gaps between its operations.

    Args:
        spent: Where a step's time went.
        host_times: What hosts did meanwhile.

    Returns:
        The verdict.
    """
    shares = shares_of(spent)
    waiting = shares["input"] + shares["host"]
    working = shares["compute"] + shares["gaps"]
    if waiting >= IDLE_SHARE and shares["input"] >= shares["host"]:
        why = (
            f"devices are idle for {percent(waiting)} of the step between programs, "
            f"{percent(shares['input'])} while the host waits for data"
        )
        return Verdict("input-bound", why, shares)
    if waiting >= IDLE_SHARE:
        why = (
            f"devices are idle for {percent(waiting)} of the step between programs"
            f"{_meanwhile(host_times)}"
        )
        return Verdict("host-bound", why, shares)
    rest = (
        f"compute takes {percent(shares['compute'])}, gaps inside programs "
        f"{percent(shares['gaps'])}, waiting for the host {percent(waiting)}"
    )
    moved = (
        f"collectives that no compute hides take {percent(shares['communication'])} "
        f"of the step ({seconds_text(spent.exposed_s)})"
    )
    if shares["communication"] > working:
        return Verdict("communication-bound", f"{moved}; {rest}", shares)
    return Verdict("compute-bound", f"{rest}; {moved}", shares)


def _meanwhile(host_times: Sequence[HostTime]) -> str:
    idle = [t for t in host_times if t.idle_s > 0 and t.doing != "data"]
    if not idle:
        return ""
    most = max(idle, key=lambda t: t.idle_s)
    return f"; for {seconds_text(most.idle_s)} of it the host {_WHAT[most.doing]}"
