"""A `Profile` as text for people, in 80 columns and more."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from profiling._profile.profile import (
    OpClass,
    Profile,
    ProfiledCollective,
    ProfiledOp,
    Spent,
)
from profiling._report.show_collectives import ONE_LINE, ROOMY
from profiling._report.show_words import (
    Tail,
    percent,
    print_indented,
    seconds_text,
    short,
)
from profiling._targets.target import count
from spmd._program.summary import bytes_text

_READ = "  read from "
_NOUNS = {"cpu": "CPU device", "gpu": "GPU", "tpu": "TPU device"}
_LEAST_SHARE = 0.001
_WHERE = (
    ("compute", "compute_s"),
    ("exposed communication", "exposed_s"),
    ("gaps inside programs", "gap_s"),
    ("waiting for input", "input_s"),
    ("waiting for the host", "host_s"),
)
_BAR = 24


def show_profile(profile: Profile, console: Console, *, top: int = 10) -> None:
    """Print a profile.

    Args:
        profile: The profile.
        console: Where to; its width is used.
        top: Collectives and operations to list.
    """
    _head(profile, console)
    _where(profile, console)
    _hosts(profile, console)
    _classes(profile, console)
    _collectives(profile, console, top)
    _ops(profile, console, top)
    for note in profile.notes:
        print_indented(console, Text(f"note: {note}", style="dim"), 0)


def ratio_text(ratio: float | None) -> str:
    """Measured by predicted.

    Args:
        ratio: The ratio; None without an estimate.

    Returns:
        Such as ``2.1x``.

    Example:
        >>> ratio_text(2.143), ratio_text(0.034), ratio_text(120.4), ratio_text(None)
        ('2.1x', '0.034x', '120x', '-')
    """
    if ratio is None:
        return "-"
    return f"{ratio:.0f}x" if ratio >= 9.95 else f"{ratio:.2g}x"


def rate_text(bytes_per_s: float | None) -> str:
    """A bandwidth.

    Args:
        bytes_per_s: Bytes in a second; None where it is not known.

    Returns:
        In GB/s, 10^9 bytes in a second.

    Example:
        >>> rate_text(1.2345e9), rate_text(None)
        ('1.23', '-')
    """
    return "-" if bytes_per_s is None else f"{bytes_per_s / 1e9:.3g}"


def _head(profile: Profile, console: Console) -> None:
    on = f" on {count(profile.num_devices, _NOUNS[profile.device_kind])}"
    chip = f" ({profile.chip})" if profile.chip else ""
    hosts = f", {count(len(profile.hosts), 'host')}" if len(profile.hosts) > 1 else ""
    console.print(Text(profile.program or "?", style="bold").append(on + chip + hosts))
    room = console.width - len(_READ)
    console.print(Text(_READ + short(profile.source, room)))
    times = [s.spent.step_s for s in profile.steps if s.is_counted]
    spread = ""
    if len(times) > 1:
        spread = (
            f" (median of {len(times)}; {seconds_text(min(times))} to "
            f"{seconds_text(max(times))}, half of them within "
            f"{seconds_text(profile.spread_s)} of it)"
        )
    print_indented(
        console,
        Text(f"measured: a step takes {seconds_text(profile.step_s)}{spread}"),
    )
    predicted = profile.predicted_step_s
    if predicted:
        print_indented(
            console,
            Text(
                f"estimate: {seconds_text(predicted)}; measured is "
                f"{ratio_text(profile.step_s / predicted)} of it"
            ),
        )
    verdict = Text(f"{profile.verdict.kind}: ", style="bold")
    print_indented(console, verdict.append(profile.verdict.why, style="not bold"))


def _where(profile: Profile, console: Console) -> None:
    spent = profile.spent
    number = sum(step.is_counted for step in profile.steps)
    of = f"mean of {count(number, 'step')}"
    if profile.num_devices > 1:
        of += f" on {count(profile.num_devices, 'device')}"
    _title(console, "Where a step goes", f"{of}: {seconds_text(spent.step_s)}")
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for name, field in _WHERE:
        seconds = getattr(spent, field)
        share = seconds / spent.step_s if spent.step_s else 0.0
        bar = "█" * round(share * _BAR)
        table.add_row(name, seconds_text(seconds), percent(share), bar)
    print_indented(console, table)
    if profile.host_times:
        parts = [
            f"{t.doing} {seconds_text(t.total_s)}"
            + (f" (devices idle {seconds_text(t.idle_s)})" if t.idle_s else "")
            for t in profile.host_times
            if t.doing != "other"
        ]
        if parts:
            print_indented(console, Text(f"host, a step: {', '.join(parts)}"))


def _hosts(profile: Profile, console: Console) -> None:
    if len(profile.hosts) < 2:
        return
    _title(console, "Hosts", "mean of their devices and steps")
    table = _table(console)
    table.add_column("host", no_wrap=True)
    titles = ("devices", "step", "compute", "exposed", "gaps", "input", "host")
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("")
    for host in profile.hosts:
        table.add_row(
            host.name,
            str(host.num_devices),
            *_spent(host.spent),
            "others wait for it" if host.is_straggler else "",
        )
    print_indented(console, table)


def _spent(spent: Spent) -> list[str]:
    fields = ("step_s", "compute_s", "exposed_s", "gap_s", "input_s", "host_s")
    return [seconds_text(getattr(spent, field)) for field in fields]


def _classes(profile: Profile, console: Console) -> None:
    least = _LEAST_SHARE * profile.spent.step_s
    shown = [
        c
        for c in profile.op_classes
        if max(c.own_s, c.predicted_s or 0, c.total_s * c.is_communication) >= least
    ]
    predicted = any(c.predicted_s is not None for c in shown)
    _title(
        console,
        "Time by class of operation",
        "a step; own: charged to it alone, of collectives what is exposed",
    )
    table = _table(console)
    table.add_column("class", no_wrap=True)
    titles = ["ops", "runs", "own", "share", "start\nto end"]
    titles += ["predicted\nestimate", "measured\nof it"] if predicted else []
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for row in shown:
        table.add_row(*_class_row(row, profile, predicted))
    print_indented(console, table)
    rest = len(profile.op_classes) - len(shown)
    if rest:
        console.print(f"  and {rest} more below {percent(_LEAST_SHARE)} of the step")


def _class_row(row: OpClass, profile: Profile, predicted: bool) -> list[str]:
    share = row.own_s / profile.spent.step_s if profile.spent.step_s else 0.0
    cells = [
        row.kind,
        str(row.num_ops),
        f"{row.num_runs:.4g}",
        seconds_text(row.own_s),
        percent(share),
        seconds_text(row.total_s),
    ]
    if predicted:
        cells += [seconds_text(row.predicted_s), ratio_text(row.ratio)]
    return cells


def _collectives(profile: Profile, console: Console, top: int) -> None:
    found = profile.collectives
    number = count(len(found), "collective")
    _title(console, "Collectives", f"{number}, measured; seconds a step of a device")
    if not found:
        console.print("  None ran.")
        return
    total = sum(c.total_s for c in found)
    exposed = sum(c.exposed_s for c in found)
    share = 1 - exposed / total if total else 0.0
    print_indented(
        console,
        Text(
            f"{seconds_text(total)} in all, {seconds_text(exposed)} exposed: "
            f"{percent(share)} is beside other work"
        ),
    )
    print_indented(console, _listed(found[:top], console))


def _listed(found: Sequence[ProfiledCollective], console: Console) -> Table:
    predicted = any(c.predicted_s is not None for c in found)
    roomy, wide = console.width >= ROOMY, console.width >= ONE_LINE
    table = _table(console)
    titles = ["time", "exposed", "waits"]
    titles += ["GB/s"] if roomy or not predicted else []
    titles += ["predicted\nestimate"] if roomy and predicted else []
    titles += ["measured\nof it" if roomy else "of the\nestimate"] if predicted else []
    for title in titles:
        table.add_column(title, justify="right", no_wrap=True)
    for title in ("what", "of what, where") if wide else ("what",):
        table.add_column(title, vertical="bottom")
    for c in found:
        cells = [
            seconds_text(c.total_s),
            seconds_text(c.exposed_s),
            seconds_text(c.wait_s),
        ]
        cells += [rate_text(c.bytes_per_s)] if roomy or not predicted else []
        cells += [seconds_text(c.predicted_s)] if roomy and predicted else []
        cells += [ratio_text(c.ratio)] if predicted else []
        what, where = _what(c), _of_what(c)
        names = [Tail(what), Tail(where)] if wide else [Tail(what, where)]
        table.add_row(*cells, *names)
    return table


def _what(c: ProfiledCollective) -> str:
    over = ", ".join(c.axes) or (f"groups of {c.group_size}" if c.group_size else "")
    role = "" if c.role == "unknown" else f": {c.role}"
    phase = f", {c.phase}" if c.phase and role else ""
    return f"{c.kind}{' ' * bool(over)}{over}{role}{phase}"


def _of_what(c: ProfiledCollective) -> str:
    sent = bytes_text(c.wire_bytes) if c.wire_bytes else ""
    runs = f"{c.num_runs:.4g}x" if c.num_runs != 1 else ""
    name = c.tensor or c.module or c.name
    file = c.source.rpartition("/")[2]
    return " · ".join(filter(None, [name, sent, runs, file]))


def _ops(profile: Profile, console: Console, top: int) -> None:
    ops = [op for op in profile.ops if op.own_s][:top]
    _title(console, f"The {len(ops)} longest operations", "own time of a step")
    table = _table(console)
    for title in ("own", "share", "runs"):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("class", no_wrap=True)
    rated = any(op.flops_per_s is not None for op in ops)
    for title in ("TFLOP/s", "GB/s", "bound by") if rated else ():
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("name")
    table.add_column("where")
    for op in ops:
        share = op.own_s / profile.spent.step_s
        figures = [
            seconds_text(op.own_s),
            percent(share),
            f"{op.num_runs:.4g}",
            op.kind,
        ]
        figures += _rates(op) if rated else []
        table.add_row(*figures, Tail(op.name), Tail(_op_where(op)))
    print_indented(console, table)


def _rates(op: ProfiledOp) -> list[str]:
    flops = "-" if op.flops_per_s is None else f"{op.flops_per_s / 1e12:.3g}"
    return [flops, rate_text(op.bytes_per_s), op.bound_by or "-"]


def _op_where(op: ProfiledOp) -> str:
    return " · ".join(filter(None, [op.phase, op.module, op.source]))


def _title(console: Console, title: str, about: str) -> None:
    console.print()
    console.print(Text(title, style="bold"), Text(f"({about})"))


def _table(console: Console) -> Table:
    return Table(
        box=None,
        pad_edge=False,
        header_style="bold",
        padding=(0, 1),
        collapse_padding=console.width < ROOMY,
    )
