import json
import math

from profiling._metrics.console import Console
from profiling._metrics.devices import Devices
from profiling._metrics.sinks import JsonLines, opened
from profiling._metrics.step_record import StepRecord


def rows(path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_a_line_for_each_step_added_to_what_there_is(tmp_path):
    path = tmp_path / "new" / "metrics.jsonl"
    for steps in ((1, 2), (3,)):
        sink = JsonLines(path, 0, 1)
        sink.write([StepRecord(step, loss=math.nan) for step in steps])
        assert [row["step"] for row in rows(path)][-1] == steps[-1]  # before the close
        sink.close()
    assert [row["step"] for row in rows(path)] == [1, 2, 3]
    assert {row["loss"] for row in rows(path)} == {"nan"}
    assert all(row["process"] == 0 and row["time"] > 1e9 for row in rows(path))


def test_the_first_process_prints_and_each_writes_a_file(tmp_path):
    found = [
        opened(
            Devices("jax", 16, process, 2),
            console=True,
            about="",
            json_lines=tmp_path / "metrics.jsonl",
            tensorboard=tmp_path / "tb",
        )
        for process in (0, 1)
    ]
    for sinks in found:
        for sink in sinks:
            sink.close()
    names = [[type(sink).__name__ for sink in sinks] for sinks in found]
    assert names == [["Console", "Background"], ["Background"]]
    assert sorted(p.name for p in tmp_path.glob("*.jsonl")) == [
        "metrics.p0.jsonl",
        "metrics.p1.jsonl",
    ]


def test_nothing_is_opened_that_was_not_asked_for():
    nothing = {"about": "", "json_lines": None, "tensorboard": None}
    assert opened(Devices(), console=False, **nothing) == []
    (sink,) = opened(Devices(), console=True, **nothing)
    assert isinstance(sink, Console)
