"""What spans of the host say."""

import pytest

from profiling._profile.host import HostSpans, doing, main_thread, marked_steps
from profiling._profile.trace import Span
from profiling._profile.xplane import Line, Plane, read_space
from tests.profiling import xplanes


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("spmd/data:", "data"),
        ("spmd/checkpoint:", "checkpoint"),
        ("spmd/compile:", "compile"),
        ("spmd/trace:", "trace"),
        ("spmd/dispatch:", "dispatch"),
        ("spmd/wait:", "wait"),
        ("PjitFunction(train_step)", "dispatch"),
        ("PjRtComputationClient::TransferFromDevice", "wait"),
        ("Iterator::Prefetch::Generator", "data"),
        ("spmd/step:", None),
        ("$builtins isinstance", None),
        ("dot.1", None),
    ],
)
def test_words(name, word):
    assert doing(name) == word


def spans(path, fill) -> tuple[Span, ...]:
    plane = xplanes.Plane("/host:CPU")
    fill(plane)
    found = HostSpans()
    read: Plane = read_space(xplanes.save(path / "x.xplane.pb", plane)).planes[0]
    lines: list[Line] = list(read.lines())
    for number, line in enumerate(lines):
        found.add(number, line)
    return found.found()


def test_spans_and_steps_are_kept_and_the_rest_is_not(tmp_path):
    def fill(plane):
        python = plane.line("python")
        python.event("train", 10, 5, step_num=4)
        python.event("spmd/data:", 0, 9)
        python.event("isinstance", 1, 1)

    first, second = spans(tmp_path, fill)
    assert (first.name, first.start, first.end) == ("spmd/data:", 0, 9_000_000)
    assert (second.name, second.step, first.step) == ("train", 4, None)


def test_steps_are_marked_by_the_loop_before_the_calls_in_it():
    marks = [Span("spmd/step:", t, t + 2, 0, i) for i, t in enumerate((1, 11, 21))] + [
        Span("train", t, t + 9, 0, i) for i, t in enumerate((0, 10, 20))
    ]
    assert [s.name for s in marked_steps(marks)] == ["train"] * 3
    assert marked_steps([Span("spmd/data:", 0, 1, 0)]) == ()


def test_the_thread_that_runs_the_steps():
    loader = [Span("spmd/data:", t, t + 5, 3) for t in range(9)]
    assert main_thread([*loader, Span("train", 0, 9, 1, 0)]) == 1
    assert main_thread([*loader, Span("spmd/dispatch:", 0, 9, 2)]) == 2
    assert main_thread(loader) is None


def test_marks_of_one_name_that_overlap_count_once():
    loop = [Span("train", t, t + 9, 0, i) for i, t in enumerate((0, 10, 20))]
    calls = [Span("train", t + 1, t + 8, 0, i + 5) for i, t in enumerate((0, 10, 20))]
    assert marked_steps([*calls, *loop]) == tuple(loop)


def test_a_step_that_has_no_number_marks_none(tmp_path):
    def fill(plane):
        line = plane.line("python")
        line.event("train", 0, 1, step_num="warmup")
        line.event("train", 2, 1, step_num=1.0)
        line.event("train", 4, 1, step_num=float("nan"))

    assert [span.step for span in spans(tmp_path, fill)] == [None, 1, None]
    assert len(marked_steps(spans(tmp_path, fill))) == 1
