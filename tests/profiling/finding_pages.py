"""The programs of docs/findings, traced and compiled; each once."""

from __future__ import annotations

import functools
import re
import warnings
from pathlib import Path
from typing import Any

import profiling
from profiling import Finding, Schedule, Verified
from profiling._findings.case import Case
from spmd import Program
from tests.profiling.compilers import need

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "findings"
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def source(kind: str) -> str:
    """The program of a page as it stands there."""
    path = FOLDER / f"{kind}.md"
    match = BLOCK.search(path.read_text(encoding="utf-8"))
    assert match, path
    return match[1]


@functools.cache
def page(kind: str) -> tuple[Program, str]:
    """The program of a page, and its target; lines count as in the page."""
    path = FOLDER / f"{kind}.md"
    text = path.read_text(encoding="utf-8")
    match = BLOCK.search(text)
    assert match, path
    source = "\n" * text.count("\n", 0, match.start(1)) + match[1]
    names: dict[str, Any] = {}
    with warnings.catch_warnings():  # pages show what is warned of
        warnings.simplefilter("ignore", UserWarning)
        exec(compile(source, str(path), "exec"), names)
    return names["program"], names["target"]


@functools.cache
def compiled(kind: str) -> tuple[Program, Schedule]:
    """A page's program, compiled."""
    program, target = page(kind)
    return program, profiling.compile(program, need(target))


@functools.cache
def explained(kind: str) -> tuple[Finding, ...]:
    """What is found in a page's program."""
    return profiling.explain(*compiled(kind))


@functools.cache
def verified(kind: str) -> Verified:
    """A page's program with its fixes tried."""
    return profiling.verify(*compiled(kind), explained(kind))


@functools.cache
def case(kind: str) -> Case:
    """A page's program as finders see it."""
    return Case(*compiled(kind))


def finding(kind: str, *, after: bool = False) -> Finding:
    """The finding that a page is about; `after` its fix was tried."""
    findings = verified(kind).findings if after else explained(kind)
    (found,) = (f for f in findings if f.kind == kind and f.where != "data")
    return found
