import io
import time

import pytest
from rich.console import Console

from profiling._cli import progress
from profiling._cli.progress import Steps


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(progress, "_SHOWN_AFTER_S", 0.02)


def on_terminal(monkeypatch) -> io.StringIO:
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=80)
    monkeypatch.setattr(progress, "Console", lambda **_: console)
    return screen


def test_what_is_quick_is_not_said(capsys):
    with Steps() as steps, steps.step("reading"):
        pass
    steps.tick("compiling", 0.5)
    assert capsys.readouterr() == ("", "")


def test_in_a_file_a_line_now_and_then(capsys):
    with Steps() as steps:
        for elapsed_s in (0.5, 1.2, 1.7, 20.0, 31.5, 32.0):
            steps.tick("compiling for cpu:8", elapsed_s)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "compiling for cpu:8: 1 s so far",
        "compiling for cpu:8: 32 s so far",
    ]


def test_a_slow_block_is_said(capsys, quick):
    with Steps() as steps, steps.step("reading"):
        time.sleep(0.2)
    assert capsys.readouterr().err.startswith("reading: 0 s so far")


def test_on_a_terminal_it_goes_when_it_is_done(monkeypatch, quick):
    screen = on_terminal(monkeypatch)
    with Steps() as steps:
        with steps.step("reading"):
            time.sleep(0.5)
        steps.tick("compiling", 3.0)
        time.sleep(0.3)
    assert "reading" in screen.getvalue()
    assert "compiling" in screen.getvalue()


def test_an_error_goes_through(quick):
    with pytest.raises(ValueError, match="broken"), Steps() as steps:
        with steps.step("reading"):
            raise ValueError("broken")
