import dataclasses

from profiling._report.show_exposed import show_exposed
from tests.profiling.on_console import on_console
from tests.profiling.schedules import COLLECTIVES, TIMELINE, schedule


def test_time_of_a_step():
    said = on_console(show_exposed, schedule())
    assert "Time of a step (estimate)" in said
    assert "10 s = compute 5 s + exposed communication 5 s" in said
    assert "communication 7.5 s, of which 2.5 s is behind compute" in said
    assert "40% of the bytes on the wire" in said.replace("\n  ", " ")
    assert "MFU 20%: 2 PFLOP of matmuls on a device, causal attention in full" in said
    assert "whose peak is 1000 TFLOP/s" in said


def test_mfu_of_a_traced_step_counts_causal_attention_once():
    line = dataclasses.replace(TIMELINE, model_flops=1.5e15)
    said = on_console(show_exposed, schedule(timeline=line), width=200)
    words = "MFU 15%: 1.5 PFLOP a device of the model's matmuls, causal attention"
    assert f"{words} counted once, whose peak is 1000 TFLOP/s" in said


def test_longest_first():
    said = on_console(show_exposed, schedule(), width=140)
    rows = said[said.index("Exposed longest") :].splitlines()[3:]
    assert [row.split()[3] for row in rows] == ["4", "1"]
    assert len(on_console(show_exposed, schedule(), top=1)) < len(said)


def test_nothing_is_exposed():
    hidden = [dataclasses.replace(c, exposed_s=0.0) for c in COLLECTIVES]
    said = on_console(show_exposed, schedule(collectives=hidden))
    assert "Nothing is exposed: compute never waits." in said


def test_without_a_timeline_nothing_is_said():
    assert on_console(show_exposed, schedule(timeline=None)) == "\n"
