"""The story of examples/08_explain.py ends as it says."""

from pathlib import Path

from tests.examples.test_examples import run
from tests.profiling.compilers import need


def test_explain(tmp_path: Path) -> None:
    need("h100:2x8")
    result = run("08_explain.py", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "activation-gathered" in result.stdout
    assert "up: [[fsdp, replica], null]" in result.stdout
    assert "before: weights 41.0 MiB, activations 69.4 MiB" in result.stdout
    assert "after:  weights 246.1 MiB, activations 0.0 MiB" in result.stdout
    assert "traced anew by the plan: activations 0.0 MiB" in result.stdout
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == [
        "08_plan.yaml",
        "08_two_layers.spmd",
    ]
