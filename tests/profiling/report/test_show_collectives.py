import pytest

from profiling._report.show_collectives import listed, show_collectives, where
from tests.profiling.on_console import on_console
from tests.profiling.schedules import COLLECTIVES, collective, moved, schedule


def rows_of(said: str) -> list[list[str]]:
    return [line.split() for line in said.splitlines()]


@pytest.mark.parametrize("width", [80, 120])
def test_by_axes_and_role(width):
    rows = rows_of(on_console(show_collectives, schedule(), width=width))
    for row in (
        "fsdp gradient reduction nvlink 1 1 300 B 43% 3 s",
        "fsdp weight gather nvlink 1 3 288 B 41% 1 s",
        "fsdp scalar nvlink 1 1 100 B 14% 1 s",
        "groups of 2 unknown ib 1 1 12 B 1.7% 0",
        "all 3 5 700 B 5 s",
    ):
        assert row.split() in rows


def test_sums():
    said = on_console(show_collectives, schedule())
    assert "What moves (3 collectives, counted in the module)" in said
    assert "by phase: backward 400 B, forward 288 B, unknown 12 B" in said
    assert (
        "by kind: all-reduce 400 B, all-gather 288 B, collective-permute 12 B" in said
    )
    assert "role unknown: 1.7% of the bytes on the wire" in said


def test_the_largest():
    said = on_console(show_collectives, schedule(), top=2)
    assert "The 2 largest (bytes a device sends in a step)" in said
    narrow = said[said.index("The 2 largest") :].splitlines()[3:]
    assert narrow[0].split()[:4] == ["400", "B", "1", "4"]
    assert narrow[0].endswith("all-reduce fsdp: gradient reduction, backward")
    assert narrow[1].strip() == "w +1 · model.py:42"
    assert narrow[3].strip() == ("…output_projection.weight · model.py:42")
    wide = on_console(show_collectives, schedule(), top=2, width=140)
    last = wide.splitlines()[-1]
    assert last.split()[:5] == ["288", "B", "3", "1", "s"]
    assert "all-gather fsdp: weight gather, forward" in last
    assert last.endswith("output_projection.weight · model.py:42")


def test_none():
    said = on_console(show_collectives, schedule(collectives=()))
    assert "Nothing: the module has no collectives." in said


def test_one_without_times():
    one = [collective("a", moved("scalar", 0, tensor="", module="", phase=""))]
    said = on_console(show_collectives, schedule(collectives=one, timeline=None))
    assert "The largest (bytes" in said
    assert "a · model.py:42" in said


def test_where():
    assert where(COLLECTIVES[1]) == "w +1 · model.py:42"
    assert where(COLLECTIVES[2]) == "cp.1"
    nameless = collective("a", moved("activation", 4, tensor="", module="layers.0"))
    assert where(nameless) == "layers.0 · model.py:42"
    two = (moved("activation", 4, tensor="", module="layers.0"), moved("scalar", 0))
    assert where(collective("a", *two)).startswith("layers.0 · ")


@pytest.mark.parametrize(("width", "columns"), [(80, 4), (120, 4), (140, 5)])
def test_a_row_has_one_line_or_two(width, columns):
    from rich.console import Console

    table = listed(COLLECTIVES, Console(width=width))
    assert len(table.columns) == columns
