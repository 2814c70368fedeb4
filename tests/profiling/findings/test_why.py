"""Words; their examples are doctests too."""

import dataclasses
from pathlib import Path

import pytest

from profiling._findings.why import (
    annotated_name,
    assigned_name,
    pattern_of,
    several,
    split_words,
)
from profiling._hlo.op_name import Scope
from profiling._step.ops import StepOp
from spmd._program.value import Value


def op_at(folder: Path, line: str, module: str = "net.up") -> StepOp:
    """An operation whose source line is this one."""
    path = folder / "model.py"
    path.write_text(f"# first\n    {line}\n", encoding="utf-8")
    scope = Scope("forward", module, "mm")
    return StepOp(0, "dot", (), (), "f32", scope, "", str(path), 2)


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("h = self.up(x)", "h"),
        ("h = self.up(x, scale=2)  # note", "h"),
        ("h = self.up(x).relu()", ""),
        ("h = self.up(self.norm(x))", ""),
        ("h = self.down(x)", ""),
        ("h, g = self.up(x)", ""),
        ("return self.up(x)", ""),
        ("h = self.up(", ""),
    ],
)
def test_the_variable_that_a_call_is_put_in(tmp_path, line, name):
    found, _ = assigned_name(op_at(tmp_path, line))
    assert found == name


def test_a_file_that_is_not_there(tmp_path):
    op = dataclasses.replace(op_at(tmp_path, "h = self.up(x)"), file="nowhere.py")
    assert assigned_name(op) == ("", "")
    assert annotated_name(op) == "value"


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("spmd.mark_sharding(h, mesh, spec)", "h"),
        ("y = mark_sharding(x, mesh, spec)", "x"),
        ("spmd.mark_sharding(h * 1, mesh, spec)", "value"),
        ("pass", "value"),
    ],
)
def test_the_variable_that_is_annotated(tmp_path, line, name):
    assert annotated_name(op_at(tmp_path, line)) == name


def test_patterns_and_lists():
    assert pattern_of("model.layers.3.mlp.gate2.weight") == (
        "model.layers.*.mlp.gate2.weight"
    )
    assert pattern_of("0.weight") == "*.weight"
    assert several([]) == ""
    assert several(["a"]) == "a"
    assert several(["a", "b", "c", "d"]) == "a, b, c and d"


def test_how_an_input_is_split():
    whole = Value("w", "parameter", (8, 4), "float32")
    assert split_words(whole) == "[8, 4] is whole on every device"
    both = Value("w", "parameter", (8, 4), "float32", (("a", "b"), "c"))
    assert split_words(both) == "[8, 4] is split on dim 0 over a x b and dim 1 over c"
