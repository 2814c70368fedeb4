"""examples/06_hf_llama.py: a plan, three steps, and a report without a device."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.examples.test_examples import run
from tests.profiling.compilers import need


def test_hf_llama(tmp_path: Path) -> None:
    need("h100:2x8")
    options = "--layers 1 --html report.html".split()
    result = run("06_hf_llama.py", *options, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    plan = result.stdout.partition("step: 1")[0]
    assert "tp_plan of LlamaForCausalLM" in plan
    assert "on Mesh(fsdp=2, tensor=4)" in plan
    losses = [float(x) for x in re.findall(r"step: \d  loss: (.+)\n", result.stdout)]
    assert len(losses) == 3 and losses == sorted(losses, reverse=True)

    title = "1 of the 32 layers of Llama 3 8B on h100:2x8\n"
    report = result.stdout.partition(title)[2]
    assert "Mesh(replica=2[dcn], fsdp=2, tensor=4)" in report
    assert re.search(r"^  tensor +activation +nvlink ", report, re.MULTILINE)
    assert re.search(r"^  replica +gradient reduction +ib ", report, re.MULTILINE)
    assert not re.search(r"^  tensor .* ib ", report, re.MULTILINE)
    assert "role unknown: 0% of the bytes on the wire" in report
    assert max(len(line.rstrip()) for line in result.stdout.splitlines()) <= 80
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert page.startswith("<!doctype html>")
    assert "report: report.html" in report


def test_a_target_with_too_few_devices_is_refused(
    load: Callable[[str], ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    example = load("06_hf_llama.py")
    monkeypatch.setattr("sys.argv", ["06_hf_llama.py", "--target", "h100:1x2"])
    with pytest.raises(SystemExit, match="2"):
        example.main()
    assert "--target h100:1x2: 4 devices share a layer" in capsys.readouterr().err
