import subprocess
import sys
import threading

import pytest

from profiling._metrics.background import Background
from profiling._metrics.step_record import StepRecord


class Sink:
    """Keeps what it is given; waits or fails where it is told to."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.threads: set[str] = set()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.fails = False
        self.is_closed = False

    def write(self, records) -> None:
        self.may_go_on.wait(10)
        self.threads.add(threading.current_thread().name)
        if self.fails:
            raise OSError("no space left")
        self.steps += [record.step for record in records]

    def close(self) -> None:
        self.is_closed = True


def test_the_loop_goes_on_and_the_end_waits():
    slow, quick = Sink(), Sink()
    background = Background(slow, quick)
    slow.may_go_on.clear()
    for step in range(1, 6, 2):
        background.write((StepRecord(step), StepRecord(step + 1)))
    assert slow.steps == []  # it waits, and nobody waited for it
    slow.may_go_on.set()
    background.close()
    assert slow.steps == quick.steps == [1, 2, 3, 4, 5, 6]
    assert slow.is_closed and quick.is_closed
    assert threading.current_thread().name not in slow.threads


def test_the_loop_hears_of_a_failure_at_its_next_window():
    broken, other = Sink(), Sink()
    broken.fails = True
    background = Background(broken, other)
    broken.may_go_on.clear()
    background.write([StepRecord(1)])
    broken.may_go_on.set()
    with pytest.raises(OSError, match="no space left"):
        background.close()
    assert broken.is_closed and other.steps == [1]


def test_a_failure_is_told_once():
    sink = Sink()
    sink.fails = True
    background = Background(sink)
    background.write([StepRecord(1)])
    while not background._errors:
        threading.Event().wait(0.01)
    sink.fails = False
    with pytest.raises(OSError, match="no space left"):
        background.write([StepRecord(2)])
    background.write([StepRecord(3)])
    background.close()
    assert sink.steps == [3]


def test_what_is_dropped_is_written():
    sink = Sink()
    background = Background(sink)
    sink.may_go_on.clear()
    background.write([StepRecord(1)])
    sink.may_go_on.set()
    del background
    assert sink.steps == [1]


LOOP = """
import sys
from profiling import StepMetrics
metrics = StepMetrics(console=False, json_lines=sys.argv[1], log_every=1)
for _ in range(50):
    metrics.step(1.0)
"""


def test_a_process_that_ends_without_close_has_written_all(tmp_path):
    path = tmp_path / "metrics.jsonl"
    subprocess.run([sys.executable, "-c", LOOP, str(path)], check=True, timeout=120)
    assert len(path.read_text().splitlines()) == 50
