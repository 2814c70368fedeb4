"""Tables that xprof's own converters make of a profile, where xprof is installed."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TIMEOUT_S = 300.0
_GIGA, _GIBI = 1e9, 2**30
# It runs apart: the converter is native, writes its caches beside the files it reads,
# and reports on stderr.
_CHILD = """
import json, sys
from xprof.convert import raw_to_tool_data
paths, out = sys.argv[1:-1], sys.argv[-1]
data, _ = raw_to_tool_data.xspace_to_tool_data(paths, "hlo_stats", {})
with open(out, "wb") as file:
    file.write(data if isinstance(data, bytes) else (data or "{}").encode())
"""


@dataclass(frozen=True, slots=True)
class OpRate:
    """What xprof says of an operation.

    Attributes:
        flops_per_s: Floating-point operations in a second.
        bytes_per_s: Bytes that it read and wrote in a second.
        bound_by: What limits it, in xprof's words.
        self_s: Time of its own, of all executions.
    """

    flops_per_s: float
    bytes_per_s: float
    bound_by: str
    self_s: float


def op_rates(files: Sequence[Path]) -> dict[tuple[str, str], OpRate]:
    """Have xprof count what operations compute and move.

    Args:
        files: Of one session.

    Returns:
        Rates by number of the program and name of the operation; empty for a CPU run
        without the planes that `capture` adds.

    Raises:
        ValueError: xprof is not installed, or fails.
    """
    if importlib.util.find_spec("xprof") is None:
        raise ValueError(
            "xprof is not installed; pip install 'xla-spmd[profile]' gives it, or "
            "leave --xprof out"
        )
    with tempfile.TemporaryDirectory() as folder:
        links = [Path(folder) / file.name for file in files]
        for link, file in zip(links, files, strict=True):
            link.symlink_to(file.resolve())
        out = Path(folder) / "hlo_stats.json"
        command = [sys.executable, "-c", _CHILD, *map(str, links), str(out)]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False
            )
        except subprocess.TimeoutExpired:
            raise ValueError(f"xprof took more than {_TIMEOUT_S:g} s") from None
        if done.returncode or not out.is_file():
            last = (done.stderr.strip().splitlines() or ["no reason"])[-1]
            raise ValueError(f"xprof cannot convert this profile: {last}")
        return rates_of(json.loads(out.read_text(encoding="utf-8")))


def rates_of(table: Mapping[str, Any]) -> dict[tuple[str, str], OpRate]:
    """Read xprof's table `hlo_stats`.

    Args:
        table: In the form of a Google chart's data table.

    Returns:
        See `op_rates`.
    """
    names = [column["id"] for column in table.get("cols", ())]
    found = {}
    for row in table.get("rows", ()):
        cells = {n: c.get("v") for n, c in zip(names, row["c"], strict=False)}
        key = str(cells.get("program_id")), str(cells.get("hlo_op_name"))
        found[key] = OpRate(
            (cells.get("model_flop_rate") or 0.0) * _GIGA,
            (cells.get("measured_memory_bw") or 0.0) * _GIBI,
            str(cells.get("bound_by") or ""),
            (cells.get("total_self_time") or 0.0) * 1e-6,
        )
    return found
