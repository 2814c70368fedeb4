"""A line for each window of steps, in torchtitan's form."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import TextIO

from profiling._metrics.step_record import StepRecord

_GIB = 2**30


class Console:
    """A line for each window, in torchtitan's form.

    Args:
        stream: Where to; None for what `sys.stdout` is at each line.
        about: Printed once before the first line; empty for nothing.
    """

    def __init__(self, stream: TextIO | None = None, about: str = "") -> None:
        self._stream = stream
        self._about = about
        self._num_compiles: int | None = None

    def write(self, records: Sequence[StepRecord]) -> None:
        """Print the last record, and what the window spent its time on.

        Args:
            records: Of a window.
        """
        width = shutil.get_terminal_size((0, 0)).columns or 1000
        if self._about:
            self._print(textwrap.fill(self._about, min(width, 88)))
            self._about = ""
        last = records[-1]
        found = parts(records)
        if last.num_compiles and last.num_compiles != self._num_compiles:
            self._num_compiles = last.num_compiles
            found.append(f"compiles: {last.num_compiles}")
        self._print(joined(found, width))

    def close(self) -> None:
        """Do nothing: the stream is the caller's."""

    def _print(self, text: str) -> None:
        print(text, file=self._stream or sys.stdout, flush=True)


def parts(records: Sequence[StepRecord]) -> list[str]:
    """What a line says; what is not known is left out.

    Args:
        records: Of a window.

    Returns:
        Such as ``loss:  2.3456``, in torchtitan's order.
    """
    last = records[-1]
    whole = last.step_s * len(records)
    found = [f"step: {last.step:2}"]
    if last.loss is not None:
        found.append(f"loss: {last.loss:7.4f}")
    if last.grad_norm is not None:
        found.append(f"grad_norm: {last.grad_norm:7.4f}")
    if last.memory_bytes is not None:
        found.append(_memory(last))
    if last.tps is not None:
        found.append(f"tps: {round(last.tps):,}")
    else:
        found.append(f"time: {1e3 * last.step_s:,.1f}ms")
    if last.tflops is not None:
        found.append(f"tflops: {last.tflops:,.2f}")
    if last.mfu is not None:
        found.append(f"mfu: {100 * last.mfu:.2f}%")
    if whole > 0:
        found.append(f"data: {100 * sum(r.data_s for r in records) / whole:.0f}%")
        found.append(f"host: {100 * sum(r.host_s for r in records) / whole:.0f}%")
    return found + [f"{name}: {value:.4g}" for name, value in last.scalars.items()]


def _memory(record: StepRecord) -> str:
    assert record.memory_bytes is not None
    text = f"memory: {record.memory_bytes / _GIB:5.2f}GiB"
    if record.memory_source == "compiled":
        return f"{text}(compiled)"
    if record.memory_limit_bytes:
        return f"{text}({100 * record.memory_bytes / record.memory_limit_bytes:.2f}%)"
    return text


def joined(found: Sequence[str], width: int) -> str:
    """Put parts on a line, and what does not fit on indented lines below.

    Args:
        found: The parts.
        width: Columns there are.

    Returns:
        One line or several.

    Example:
        >>> print(joined(["step: 10", "loss:  2.3456", "tps: 1,772"], 24))
        step: 10  loss:  2.3456
            tps: 1,772
    """
    lines = [found[0]]
    for part in found[1:]:
        if len(lines[-1]) + 2 + len(part) <= width:
            lines[-1] += f"  {part}"
        else:
            lines.append(f"    {part}")
    return "\n".join(lines)
