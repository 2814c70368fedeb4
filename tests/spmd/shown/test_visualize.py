from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from rich.console import Console

import spmd._marking.mark
from spmd._marking.mark import Annotation
from spmd._meshes.mesh import Mesh
from spmd._shown.visualize import visualize

MESH = Mesh({"replica": 2, "fsdp": 4})

GRID = """\
[8, 4] split (fsdp, replica) on Mesh(replica=2, fsdp=4): 8 pieces of [2, 2]
┌───────────────────┬─────┬─────┐
│ dim 1 (replica) → │     │     │
│    dim 0 (fsdp) ↓ │ 0:2 │ 2:4 │
├───────────────────┼─────┼─────┤
│               0:2 │ 0   │ 4   │
│               2:4 │ 1   │ 5   │
│               4:6 │ 2   │ 6   │
│               6:8 │ 3   │ 7   │
└───────────────────┴─────┴─────┘
"""


def shown(*args: Any, width: int = 80, color: bool = False, **kwargs: Any) -> str:
    console = Console(
        width=width, force_terminal=color, color_system="standard" if color else None
    )
    with console.capture() as text:
        visualize(*args, console=console, **kwargs)
    return text.get()


@pytest.mark.parametrize("width", [80, 120])
def test_spec(width: int) -> None:
    assert shown(("fsdp", "replica"), MESH, shape=(8, 4), width=width) == GRID


def test_colors_add_nothing_to_read() -> None:
    text = shown(("fsdp", "replica"), MESH, shape=(8, 4), color=True)
    assert "\x1b[" in text
    assert re.sub(r"\x1b\[[0-9;]*m", "", text) == GRID


def test_console_false_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    grid = visualize(("fsdp", None), MESH, console=False)
    assert capsys.readouterr().out == ""
    assert (grid.num_pieces, grid.shape, grid.spec) == (4, None, ("fsdp", None))
    visualize(("fsdp", None), MESH)
    assert "dim 0 (fsdp)" in capsys.readouterr().out


def test_spec_without_a_shape_counts_pieces() -> None:
    text = shown((("replica", "fsdp"), None), MESH)
    assert text.startswith("tensor split ((replica, fsdp), None) on Mesh(")
    assert "8/8" in text


def test_specs_of_other_libraries() -> None:
    from torch.distributed.tensor import Replicate, Shard

    text = shown((Replicate(), Shard(1)), MESH, shape=(8, 4), width=120)
    assert "split (None, fsdp)" in text
    assert "4 pieces of [8, 1], 2 copies of each" in text


@pytest.mark.parametrize("spec", [(None, None), ()])
def test_replicated(spec: tuple[None, ...]) -> None:
    text = shown(spec, MESH, shape=tuple(4 for _ in spec))
    assert "│ replicated: all 8 devices (0-7) │" in text


def test_annotated_tensor() -> None:
    tensor = torch.empty(8, 4, device="meta")
    spmd._marking.mark.mark_sharding(tensor, MESH, ("fsdp", "replica"))
    assert shown(tensor) == GRID


def test_the_mesh_is_passed_on_for_a_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def get_sharding(tensor: Any, mesh: Any = None) -> Annotation:
        asked.append(mesh)
        return Annotation(MESH, ("fsdp", "replica"))

    monkeypatch.setattr(spmd._marking.mark, "get_sharding", get_sharding)
    assert shown(np.zeros((8, 4)), MESH) == GRID
    assert asked == [MESH]


def test_tensor_without_an_annotation() -> None:
    tensor = torch.empty(8, 4, device="meta")
    assert "not annotated" in shown(tensor)
    assert "replicated: all 8 devices" in shown(tensor, MESH)


def test_a_spec_needs_a_mesh() -> None:
    with pytest.raises(TypeError, match=r"spec \('fsdp', None\) names axes of a mesh"):
        visualize(("fsdp", None))


def test_a_tensor_has_its_shape() -> None:
    with pytest.raises(TypeError, match=r"shape=\(8, 4\) was given beside a tensor"):
        visualize(torch.empty(8, 4), MESH, shape=(8, 4))


def test_a_spec_that_does_not_fit() -> None:
    with pytest.raises(ValueError, match="has 1 entries for 2 dims"):
        visualize(("fsdp",), MESH, shape=(8, 4), console=False)
    with pytest.raises(ValueError, match=r"^visualize: spec .* axis 'x'"):
        visualize(("x",), MESH, console=False)
