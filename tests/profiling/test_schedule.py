import json

import pytest

from profiling import Schedule
from tests.profiling.schedules import GIB, MEMORY, schedule


def test_sums():
    step = schedule()
    assert step.wire_bytes == 700
    assert step.unknown_share == 12 / 700
    assert (step.step_s, step.exposed_s) == (10.0, 5.0)
    assert [t.key for t in step.totals("kind")] == [
        "all-reduce",
        "all-gather",
        "collective-permute",
    ]
    assert repr(step) == (
        "Schedule('step' on h100:1x8, 3 collectives, 700 bytes on the wire)"
    )


def test_largest_and_most_exposed():
    step = schedule()
    assert [c.name for c in step.largest(2)] == ["ar.1", "ag.1"]
    assert [c.name for c in step.most_exposed()] == ["ar.1", "ag.1"]  # cp.1 is hidden
    assert len(step.largest()) == 3


def test_without_collectives_and_timeline():
    step = schedule(collectives=(), timeline=None, target=None)
    assert (step.wire_bytes, step.unknown_share) == (0, 0.0)
    assert (step.step_s, step.exposed_s) == (None, None)
    assert step.largest() == step.most_exposed() == ()
    assert repr(step) == "Schedule('step', 0 collectives, 0 bytes on the wire)"


@pytest.mark.parametrize(
    ("capacity", "over"), [(None, 0), (80 * GIB, 0), (51 * GIB - 7, 7)]
)
def test_over_bytes(capacity, over):
    import dataclasses

    memory = dataclasses.replace(MEMORY, capacity_bytes=capacity)
    assert schedule(memory=memory).over_bytes == over


def test_it_cannot_be_changed():
    step = schedule()
    with pytest.raises(TypeError, match="does not support item assignment"):
        step.flags["xla_a"] = False  # pyright: ignore[reportIndexIssue] - on purpose


def test_a_page(tmp_path):
    path = schedule().save_html(tmp_path / "page.html")
    text = path.read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "h100:1x8" in text


def test_show(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    schedule().show(top=1)
    said = capsys.readouterr().out
    assert said.startswith("step on h100:1x8\n")
    assert isinstance(schedule(), Schedule)
    assert json.dumps(schedule().as_json())
