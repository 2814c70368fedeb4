"""What xprof's own converters make of the files of a profile."""

from __future__ import annotations

import importlib.util
import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

needs_xprof = pytest.mark.skipif(
    importlib.util.find_spec("xprof") is None, reason="xprof is not installed"
)

CHILD = """
import json, sys
from xprof.convert import raw_to_tool_data
tools, out, *paths = sys.argv[1:]
found = {}
for tool in tools.split(","):
    data, _ = raw_to_tool_data.xspace_to_tool_data(paths, tool, {})
    found[tool] = json.loads(data)
with open(out, "w") as file:
    json.dump(found, file)
"""


def converted(files: Iterable[Path], folder: Path, *tools: str) -> dict[str, Any]:
    """What each tool gives, in a process of its own and on copies of the files."""
    folder.mkdir()
    copies = [shutil.copy(file, folder / file.name) for file in files]
    out = folder / "out.json"
    command = [sys.executable, "-c", CHILD, ",".join(tools), str(out)]
    done = subprocess.run([*command, *map(str, copies)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(out.read_text())


def rows(table: Any) -> list[dict[str, Any]]:
    """Rows of a table in the form of Google's charts, by the names of its columns."""
    names = [column["id"] for column in table["cols"]]
    return [
        {name: cell.get("v") for name, cell in zip(names, row["c"], strict=True)}
        for row in table["rows"]
    ]
