import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from rich.table import Table

from profiling._report.show_words import Tail, flops_text, percent, seconds_text, short


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (4.2e-6, "4.2 us"), (3e-9, "3 ns")],
)
def test_seconds(seconds, text):
    assert seconds_text(seconds) == text
    assert seconds_text(None) == "-"
    assert seconds_text(0.0) == "0"


def test_shares():
    assert [percent(s) for s in (0.0, 1e-5, 0.0123, 0.0994, 0.0999, 0.5, 1.0)] == [
        "0%",
        "<0.1%",
        "1.2%",
        "9.9%",
        "10%",
        "50%",
        "100%",
    ]


def test_flops():
    assert flops_text(0.0) == "0 FLOP"
    assert flops_text(1.5e15) == "1.5 PFLOP"


@pytest.mark.parametrize(
    ("text", "width", "kept"),
    [
        ("model.layers.0.mlp.weight", 25, "model.layers.0.mlp.weight"),
        ("model.layers.0.mlp.weight", 20, "…layers.0.mlp.weight"),
        ("model.layers.0.mlp.weight", 17, "…0.mlp.weight"),
        ("/home/me/project/model.py:42", 20, "…project/model.py:42"),
        ("averylongnamewithoutanydots", 10, "…utanydots"),
    ],
)
def test_short_keeps_the_end(text, width, kept):
    assert short(text, width) == kept


@given(st.text(alphabet="ab./", max_size=40), st.integers(1, 50))
def test_short_fits(text, width):
    found = short(text, width)
    assert len(found) <= width
    assert text.endswith(found.removeprefix("…"))


def test_tail_gives_way_in_a_table():
    screen = io.StringIO()
    table = Table(box=None, pad_edge=False)
    table.add_column("n", no_wrap=True)
    table.add_column("what")
    table.add_row("1", Tail("model.layers.0.mlp.weight", "second.line"))
    Console(file=screen, width=20).print(table)
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert lines[1:] == ["1  …0.mlp.weight", "   second.line"]
