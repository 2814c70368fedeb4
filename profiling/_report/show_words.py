"""Numbers and names as text that fits its place."""

from __future__ import annotations

import re

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.text import Text

_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_NOTHING_S = 1e-12
_LEAST = 12
"""Columns that a name gets at least."""


def seconds_text(seconds: float | None) -> str:
    """A time for people.

    Args:
        seconds: The time; None where it is not known.

    Returns:
        Three digits and a unit.

    Example:
        >>> seconds_text(0.0123), seconds_text(0.0), seconds_text(None)
        ('12.3 ms', '0', '-')
    """
    if seconds is None:
        return "-"
    if seconds < _NOTHING_S:
        return "0"
    size, unit = next(((s, u) for s, u in _UNITS if seconds >= s), _UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


def flops_text(flops: float) -> str:
    """A number of floating-point operations for people.

    Args:
        flops: How many.

    Returns:
        Three digits and a unit.

    Example:
        >>> flops_text(2.34e13), flops_text(5e6)
        ('23.4 TFLOP', '5 MFLOP')
    """
    scales = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"))
    size, unit = next(((s, u) for s, u in scales if flops >= s), (1.0, ""))
    return f"{flops / size:.3g} {unit}FLOP"


def mfu_flops_text(flops: float, model_flops: float | None) -> str:
    """What a timeline's MFU counts, for people.

    Args:
        flops: Of the compiled step on one device.
        model_flops: One device's share of what the model needs; None if not known.

    Returns:
        Words for the figure that counts.

    Example:
        >>> mfu_flops_text(4e12, 3e12)
        "3 TFLOP a device of the model's matmuls, causal attention counted once"
    """
    if model_flops is None:
        words = (
            "of matmuls on a device, causal attention in full (no traced step given)"
        )
        return f"{flops_text(flops)} {words}"
    words = "a device of the model's matmuls, causal attention counted once"
    return f"{flops_text(model_flops)} {words}"


def print_indented(console: Console, what: RenderableType, columns: int = 2) -> None:
    """Print below a title.

    Args:
        console: Where to.
        what: Text or a table.
        columns: How far to the right.
    """
    console.print(Padding(what, (0, 0, 0, columns), expand=False))


def percent(share: float) -> str:
    """A share for people.

    Args:
        share: Between 0 and 1.

    Returns:
        Percent; what is small, but there, is not shown as none.

    Example:
        >>> percent(0.417), percent(0.0004), percent(0.0)
        ('42%', '<0.1%', '0%')
    """
    if 0 < share < 0.001:
        return "<0.1%"
    return f"{share:.1%}" if 0 < share < 0.0995 else f"{share:.0%}"


def short(text: str, width: int) -> str:
    """The end of a name, which tells more than its start.

    Args:
        text: A path of a module, a file, or a list of them.
        width: Columns there are.

    Returns:
        At most so many characters.

    Example:
        >>> short("model.layers.3.mlp.down_proj.weight", 24)
        '…3.mlp.down_proj.weight'
    """
    if len(text) <= width:
        return text
    kept = text[len(text) - width + 1 :]
    cut = re.search(r"[./]", kept)
    if cut and cut.end() <= len(kept) // 3:
        kept = kept[cut.end() :]
    return "…" + kept


class Tail:
    """Lines of a table's cell that lose their start where there is no room.

    Args:
        *lines: One name or several, one below another.
        style: Rich's style.
    """

    def __init__(self, *lines: str, style: str = "") -> None:
        self.lines = lines
        self.style = style

    def __rich_console__(
        self, console: Console, options: ConsoleOptions
    ) -> RenderResult:
        """Draw it."""
        for line in self.lines:
            yield Text(short(line, options.max_width), style=self.style, no_wrap=True)

    def __rich_measure__(
        self, console: Console, options: ConsoleOptions
    ) -> Measurement:
        """How much room it takes."""
        most = max((len(line) for line in self.lines), default=0)
        return Measurement(min(most, _LEAST), most)
