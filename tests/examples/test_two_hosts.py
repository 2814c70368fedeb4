"""examples/07_two_hosts.py: the figures of the slow case and of those beside it."""

from __future__ import annotations

import re
from pathlib import Path

from tests.examples.test_examples import run
from tests.profiling.compilers import need


def row(text: str, name: str) -> list[float]:
    """The three figures of a row; 0 where there is none."""
    match = re.search(rf"^{re.escape(name)} {{2,}}(.*)$", text, re.MULTILINE)
    assert match, name
    cells = re.findall(r"(-|[\d.]+)(?: GiB| ms)?(?: |$)", match[1])
    assert len(cells) == 3, match[0]
    return [0.0 if cell == "-" else float(cell) for cell in cells]


def test_two_hosts(tmp_path: Path) -> None:
    need("h100:2x8")
    result = run("07_two_hosts.py", "--layers", "1", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    text = result.stdout
    assert "problem: activations cross hosts over fsdp" in text
    assert "problem: every device is given all rows of batch.input_ids" in text
    assert max(len(line) for line in text.splitlines()) <= 80

    was, fsdp, tensor = row(text, "sent between hosts")
    assert was > 10 * fsdp and was > 10 * tensor
    assert row(text, "  activation over fsdp") == [was, 0.0, 0.0]
    assert row(text, "  gradient reduction over replica") == [0.0, fsdp, tensor]
    assert row(text, "  weight gather over fsdp")[1] > 0.0
    assert (
        row(text, "  activation over tensor")[2] == row(text, "sent inside a host")[2]
    )
    for name in ("memory", "step (estimate)", "compute waits (estimate)"):
        was, fsdp, tensor = row(text, name)
        assert 0 < fsdp < was and 0 < tensor < was, name

    names = ("as_it_was", "fsdp_inside", "tensor_inside")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        f"07_{name}{suffix}" for name in names for suffix in (".html", ".spmd")
    )
