from __future__ import annotations

import pytest
from rich.console import Console, Group

from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec
from spmd._shown.grid import MAX_CELLS, devices_text, draw, one_cell


def drawn(
    mesh: Mesh, spec: Spec, shape: tuple[int, ...] | None = None, width: int = 80
) -> list[str]:
    console = Console(width=width, color_system=None)
    with console.capture() as text:
        console.print(Group(*draw(mesh, spec, shape=shape, width=width)))
    return text.get().splitlines()


def cells(lines: list[str]) -> list[list[str]]:
    rows = [line.strip("│").split("│") for line in lines if line.startswith("│")]
    return [[cell.strip() for cell in row] for row in rows]


BIG = Mesh({"replica": 8, "fsdp": 64, "tensor": 8})


def test_one_dim_makes_rows() -> None:
    assert cells(drawn(Mesh({"a": 2, "b": 2}), ("b", None), (4, 3))) == [
        ["dim 0 (b) ↓", "devices"],
        ["0:2", "0,2"],
        ["2:4", "1,3"],
    ]


def test_the_last_dim_makes_columns() -> None:
    assert cells(drawn(Mesh({"a": 2, "b": 2}), (None, "a"), (4, 6))) == [
        ["dim 1 (a) →", "0:3", "3:6"],
        ["", "0,1", "2,3"],
    ]


def test_columns_that_do_not_fit_become_rows() -> None:
    lines = drawn(Mesh({"a": 32}), (None, "a"), (4, 64))
    assert cells(lines)[0] == ["dim 1 (a) ↓", "devices"]
    assert len(cells(lines)) == 33


def test_two_dims_make_a_grid() -> None:
    assert cells(drawn(Mesh({"a": 2, "b": 2}), ("b", "a"))) == [
        ["dim 1 (a) →", "", ""],
        ["dim 0 (b) ↓", "1/2", "2/2"],
        ["1/2", "0", "2"],
        ["2/2", "1", "3"],
    ]


def test_more_dims_make_several_grids() -> None:
    mesh = Mesh({"a": 2, "b": 2, "c": 2})
    lines = drawn(mesh, ("c", None, "b", "a"), (4, 9, 4, 4))
    titles = [line.strip() for line in lines if line.startswith("dim 0")]
    assert titles == ["dim 0 (c) 0:2", "dim 0 (c) 2:4"]
    assert [row[1:] for row in cells(lines) if row[0] == "0:2"] == [
        ["0", "4"],
        ["1", "5"],
    ]


def test_padding_is_told() -> None:
    rows = cells(drawn(Mesh({"a": 4}), ("a",), (5,)))
    assert [row[0] for row in rows[1:]] == ["0:2", "2:4", "4:5 +1 pad", "padding"]
    rows = cells(drawn(Mesh({"a": 2}), ("a",), (0,)))
    assert [row[0] for row in rows[1:]] == ["0:0", "0:0"]


@pytest.mark.parametrize("width", [40, 80, 120])
@pytest.mark.parametrize(
    "spec",
    [
        ("fsdp", "tensor"),
        ("tensor", "fsdp"),
        (("fsdp", "tensor"), None),
        ("replica",) * 1,
    ],
)
def test_big_meshes_are_cut_and_counted(width: int, spec: Spec) -> None:
    lines = drawn(BIG, spec, tuple(8192 for _ in spec), width)
    assert max(map(len, lines)) <= width
    if width < 80:
        return  # device lists fold, which makes them hard to count
    names = [
        c for row in cells(lines) for c in row[1:] if c[:1].isdigit() and ":" not in c
    ]
    pieces = BIG.size // (8 if len(spec) > 1 else 512)
    assert 0 < len(names) <= MAX_CELLS
    if len(names) < pieces:
        assert lines[-1].strip() == (
            f"… {pieces - len(names):,} of {pieces:,} pieces are not shown"
        )


def test_several_grids_share_the_limit() -> None:
    mesh = Mesh({"a": 16, "b": 4, "c": 4})
    lines = drawn(mesh, ("a", "b", "c"), (16, 4, 4))
    assert len([line for line in lines if line.startswith("dim 0")]) == 4
    assert lines[-1].strip() == "… 192 of 256 pieces are not shown"


def test_device_lists() -> None:
    assert devices_text([0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18]) == "0-7,16-18"
    assert devices_text(range(0, 64, 2)) == "0,2,…,62 (32)"
    assert devices_text([100000, 200000, 300000]) == "100000,200000,300000"


def test_one_cell() -> None:
    console = Console(width=30, color_system=None)
    with console.capture() as text:
        console.print(one_cell("all [8] devices"))
    assert "│ all [8] devices │" in text.get()
