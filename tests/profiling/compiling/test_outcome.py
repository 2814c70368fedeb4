import dataclasses

import pytest

from profiling._compiling.compiled import CompileError
from profiling._compiling.outcome import (
    Outcome,
    compiled_outcomes,
    document,
    save_pages,
)
from profiling._targets.target import Target
from tests.profiling.one_weight import program
from tests.profiling.schedules import GIB, MEMORY, schedule

TARGET = Target.parse("h100:1x8")
ERROR = CompileError("dead", kind="crash", target=TARGET)


def test_findings():
    small = dataclasses.replace(MEMORY, capacity_bytes=GIB)
    assert not Outcome("h100:1x8", schedule()).is_finding
    assert Outcome("h100:1x8", schedule(memory=small)).is_finding
    assert Outcome("h100:1x8", None, ERROR).is_finding


def test_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    told = []
    wanted = [Target.parse("cpu:8")]
    (good,) = compiled_outcomes(
        program(8), wanted, flags={}, progress=lambda *a: told.append(a)
    )
    assert good.target == "cpu:8"
    assert good.schedule is not None
    assert good.error is None
    assert told
    (bad,) = compiled_outcomes(
        program(8), wanted, flags={"xla_no": 1}, progress=lambda *a: None
    )
    assert bad.schedule is None
    assert bad.error is not None
    assert bad.error.kind == "flag"
    with pytest.raises(ValueError, match="compile uses the xla_dump_ flags itself"):
        compiled_outcomes(
            program(8), wanted, flags={"xla_dump_to": "x"}, progress=lambda *a: None
        )


def test_document():
    content = document([Outcome("h100:1x8", schedule()), Outcome("x", None, ERROR)])
    assert content["schedules"] == [schedule().as_json()]
    assert [f["message"] for f in content["failures"]] == ["dead"]


def test_pages(tmp_path):
    page = tmp_path / "page.html"
    assert save_pages([Outcome("h100:1x8", schedule())], page) == (page,)
    several = [
        Outcome("h100:1x8", schedule()),
        Outcome("cpu:8", None, ERROR),
        Outcome("v5e:4x4*2", schedule()),
    ]
    assert [p.name for p in save_pages(several, page)] == [
        "page-h100-1x8.html",
        "page-v5e-4x4-slices-2.html",
    ]
    with pytest.raises(OSError, match="No such file"):
        save_pages(several, tmp_path / "none" / "page.html")
