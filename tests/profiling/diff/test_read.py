"""`diff` and `side` take whatever one has of a step."""

import json
from typing import Any

import pytest

import profiling
from profiling import Dump, Side, diff, side
from profiling._compiling.outcome import Outcome, document
from profiling._diff.read import both_sides
from profiling._diff.side import side_of
from profiling._targets.target import Target
from tests.profiling.hlo_files import JAX
from tests.profiling.one_weight import program
from tests.profiling.schedules import schedule


def write(path, *schedules):
    outcomes = [Outcome("", one) for one in schedules]
    path.write_text(json.dumps(document(outcomes)), encoding="utf-8")
    return path


def test_schedules_sides_and_json_are_the_same(tmp_path):
    one = schedule()
    path = write(tmp_path / "one.json", one)
    for given in (one, side_of(one), path, str(path)):
        assert side(given) == side_of(one)
        assert diff(given, one).is_empty


def test_a_program_is_compiled_for_what_the_other_step_is_for(tmp_path):
    step = program(8)
    saved = step.save(tmp_path / "step.spmd")
    made = profiling.compile(step, "cpu:8")
    assert diff(made, step).is_empty
    assert diff(saved, made).is_empty
    assert diff(step, saved, target="cpu:8").is_empty
    flags = {"xla_cpu_enable_fast_math": True}
    other = side(step, target=Target.parse("cpu:8"), flags=flags)
    assert other.flags == flags and diff(made, other).notes


def test_an_hlo_file_and_a_dump():
    of_file = side(JAX, mesh={"data": 8})
    dump = profiling.read(JAX)
    assert isinstance(dump, Dump)
    assert side(dump, mesh={"data": 8}) == of_file
    assert side(dump.largest, mesh={"data": 8}) == of_file
    assert both_sides(dump, JAX, None)[0] == side(dump)
    with pytest.raises(KeyError, match="none"):
        side(dump, name="none")


def test_of_several_schedules_the_target_says_which(tmp_path):
    v5e = Target.parse("v5e:2x4")
    path = write(tmp_path / "two.json", schedule(), schedule(target=v5e))
    assert side(path, target="v5e:2x4").target == "v5e:2x4"
    with pytest.raises(ValueError, match="say which by its target"):
        side(path)
    with pytest.raises(ValueError, match="not cpu:8: say which"):
        side(path, target="cpu:8")


@pytest.mark.parametrize(
    ("step", "given", "words"),
    [
        (program(8), {}, "is a program, not compiled yet"),
        (program(8), {"name": "other"}, "name= does not apply"),
        (program(8), {"mesh": {"fsdp": 8}}, "mesh= does not apply"),
        (schedule(), {"flags": {"xla_a": True}}, "flags= does not apply"),
        (JAX, {"flags": {"xla_a": True}}, "is compiled already"),
    ],
    ids=["no-target", "name", "mesh", "flags", "flags-of-a-dump"],
)
def test_what_does_not_apply(step, given: dict[str, Any], words):
    with pytest.raises(ValueError, match=words):
        side(step, **given)


def test_what_is_no_step():
    wrong: Any = 7
    with pytest.raises(TypeError, match="int is nothing to compare"):
        side(wrong)
    with pytest.raises(OSError, match="none"):
        side("none.spmd")
    assert isinstance(side(schedule()), Side)
