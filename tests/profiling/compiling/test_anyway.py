"""A program that is too big has a schedule all the same."""

import pytest

from profiling import CompileError, Target
from profiling._compiling import anyway
from profiling._compiling.anyway import compile_anyway
from tests.profiling import finding_pages


def test_what_fits_is_compiled():
    program, schedule = finding_pages.compiled("many-small")
    assert schedule.target is not None
    again = compile_anyway(program, schedule.target, flags={})
    assert again.wire_bytes == schedule.wire_bytes


@pytest.mark.parametrize("made", [True, False])
def test_what_does_not(monkeypatch, made):
    program, schedule = finding_pages.compiled("many-small")
    target, compiled = schedule.target, schedule.compiled
    assert target is not None and compiled is not None
    error = CompileError("too big", kind="memory", target=target, words="")
    error.compiled = compiled if made else None

    def refuse(*_, **__):
        raise error

    monkeypatch.setattr(anyway, "compile", refuse)
    if made:
        assert compile_anyway(program, target, flags={}).name == schedule.name
        return
    with pytest.raises(CompileError, match="too big"):
        compile_anyway(program, Target.parse(target.text), flags={})
