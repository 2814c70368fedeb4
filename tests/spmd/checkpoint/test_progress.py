"""A bar for what takes long, and for nobody else."""

import sys

from spmd.checkpoint import _progress
from spmd.checkpoint._progress import progress


def test_shown_if_wanted(capsys):
    with progress("loading x", 100, True) as advance:
        advance(50)
        advance(50)
    told = capsys.readouterr()
    assert "loading x" in told.err and told.out == ""


def test_not_shown_otherwise(capsys, monkeypatch):
    for show in (None, False):
        with progress("x", 10, show) as advance:
            advance(10)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with progress("x", 10) as advance:
        advance(10)  # at once
    assert capsys.readouterr().err == ""


def test_shown_on_a_terminal_once_it_takes_long(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr(_progress, "AFTER_S", 0.0)
    with progress("saving y", 10) as advance:
        advance(5)
    assert "saving y" in capsys.readouterr().err
