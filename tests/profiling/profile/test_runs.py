"""Executions of programs, and where steps begin."""

from profiling._profile.runs import (
    Window,
    executions,
    main_program,
    runs_per_step,
    windows,
    within,
)
from profiling._profile.trace import OpEvent, Run, Span, Trace


def op(name: str, start: int, length: int = 4, program: str = "p", run: int = 0):
    return OpEvent(name, program, 0, start, start + length, run)


def trace(*ops: OpEvent, marks: int = 0, device_steps: int = 0) -> Trace:
    spans = tuple(Span("train", 10 * i, 10 * i + 5, 0, i) for i in range(marks))
    return Trace("node0", "x", "cpu", "", ops, (), device_steps, spans, {})


def names(found) -> list[list[str]]:
    return [[o.name for o in e.ops] for e in found]


def test_by_the_device_s_own_marks():
    marks = [Run("p", 0, 0, 10), Run("q", 0, 20, 30)]
    found = executions([op("a", 20), op("b", 24), op("a", 0), op("c", 15)], marks)
    assert [(e.program, e.start, e.end) for e in found] == [
        ("p", 0, 4),
        ("p", 15, 19),  # outside all marks: as its program says
        ("q", 20, 28),
    ]
    assert "\n" not in repr(found[0])


def test_what_marks_lie_between_is_no_one_execution():
    marks = [Run("p", 0, 10, 20)]
    cut = [op("b", 2), op("a", 10), op("b", 14), op("a", 30)]
    found = executions(cut, marks)
    assert names(found) == [["b"], ["a", "b"], ["a"]]


def test_what_is_of_no_program_is_each_alone():
    """Copies of a GPU, say, before and after what the host waits for."""
    ops = [op("in", 0, program=""), op("a", 20), op("b", 24), op("out", 50, program="")]
    assert names(executions(ops)) == [["in"], ["a", "b"], ["out"]]
    nameless = [op(name, at, program="") for at, name in enumerate("abab")]
    assert names(executions(nameless)) == [["a", "b"], ["a", "b"]]


def test_by_number():
    found = executions([op("a", 0, run=5), op("b", 4, run=5), op("a", 8, run=6)])
    assert names(found) == [["a", "b"], ["a"]]


def test_by_the_operation_that_comes_once():
    step = ["loop", "loop", "first", "loop", "second"]
    ops = [op(name, 10 * i) for i, name in enumerate(step * 3)]
    found = executions(ops)
    assert len(found) == 3
    assert [len(e.ops) for e in found] == [7, 5, 3]  # each from its "first" on


def test_the_main_program_takes_most_time():
    short = [op("a", 10 * i, 1, "often") for i in range(9)]
    assert main_program([trace(*short, op("b", 0, 50, "long"))]) == "long"
    assert main_program([trace(op("k", 0, 5, ""))]) == ""
    assert main_program([]) == ""


def step(start: int, number: int = 3, program: str = "p", run: int = 1):
    return [op(str(i), start + 5 * i, 4, program, run) for i in range(number)]


def test_a_step_goes_on_to_the_next_and_the_last_one_ends_with_the_device():
    ops = [*step(0, run=1), *step(100, run=2), *step(120, 1, "tail", run=1)]
    found = windows(executions(ops), "p", 1)
    assert found == (Window(0, 100, True), Window(100, 124, False))
    assert windows(executions(ops), "q", 1) == ()


def test_steps_of_several_runs():
    ops = [o for i in range(4) for o in step(50 * i, run=i + 1)]
    assert [w.start for w in windows(executions(ops), "p", 2)] == [0, 100]


def test_what_the_capture_cut_off_is_left_out():
    ops = [*step(0, 1, run=1), *step(50, run=2), *step(90, run=3), *step(130, 2, run=4)]
    found = windows(executions(ops), "p", 1)
    assert found == (Window(50, 90, True), Window(90, 130, True))


def test_runs_of_a_step():
    assert runs_per_step([trace(marks=3)], [12]) == (4, "")
    assert runs_per_step([trace(marks=3, device_steps=6)], [12]) == (2, "")
    assert runs_per_step([trace()], [12]) == (1, "")
    assert runs_per_step([trace(marks=5)], [4]) == (1, "")  # one was cut off
    number, note = runs_per_step([trace(marks=5)], [8])
    assert number == 1
    assert note.startswith("node0: 5 steps are marked, but the main program ran 8")


def test_within():
    ops = [op(str(t), t) for t in (0, 10, 20, 30)]
    starts = [o.start for o in ops]
    assert [o.name for o in within(ops, starts, 10, 30)] == ["10", "20"]


def test_a_program_that_was_compiled_again_is_the_same_step():
    ops = [*step(0, 3, "f(1)", 1), *step(50, 5, "f(2)", 2), *step(90, 3, "f(1)", 3)]
    found = windows(executions(ops), "f(1)", 1)
    assert [window.start for window in found] == [0, 50, 90]
