"""The example trains, records steps and reads them."""

import re
from pathlib import Path

import pytest

from tests.examples.test_examples import run

VERDICTS = r"(host|input|communication|compute)-bound: "


def test_profile(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    result = run("10_profile.py", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    lines, profile = result.stdout.split("SyncTensorsGraph", 1)
    assert "no peak known for cpu: MFU not given" in lines.replace("\n", " ")
    steps = re.findall(r"^step: +(\d+) .*\(compiled\)", lines, re.MULTILINE)
    assert steps == ["1", "5", "10", "15", "20"]
    assert "on 8 CPU devices" in profile
    assert re.search(VERDICTS, profile)
    assert re.search(r"^  matmul +\d+ +\d+ .*x$", profile, re.MULTILINE)
    assert re.search(
        r"^Collectives \(\d+ collectives, measured;", profile, re.MULTILINE
    )
    assert max(map(len, result.stdout.splitlines())) <= 80
    out = tmp_path / "runs" / "10_profile"
    assert (out / "profile.html").read_text().startswith("<!doctype html>")
    assert len(list(out.glob("events.out.tfevents.*"))) == 1
    assert len(list(out.glob("plugins/profile/*/*.xplane.pb"))) == 1
