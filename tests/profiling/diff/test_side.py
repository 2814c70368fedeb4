"""`Side`: the same from a schedule and from the JSON of one."""

import json

import pytest

from profiling._compiling.outcome import Outcome, document
from profiling._diff.side import BY_ROLE, FIGURES, is_json, side_of, sides_from_json
from tests.profiling.hlo_files import JAX, STEP
from tests.profiling.schedules import GIB, schedule


def test_figures():
    side = side_of(schedule())
    assert tuple(side.figures) == FIGURES
    assert side.mesh == "fsdp=4, tensor=2"
    assert dict(side.figures) == {
        "wire_bytes": 96 * 3 + 400 + 12,
        "num_collectives": 3,
        "num_runs": 5,
        "memory_bytes": 51 * GIB,
        "argument_bytes": 20 * GIB,
        "temp_bytes": 30 * GIB,
        "over_bytes": 0,
        "step_s": 10.0,
        "exposed_s": 5.0,
    }
    assert repr(side) == "Side('step' on h100:1x8, 3 collectives)"


def test_figures_of_a_role():
    side = side_of(schedule())
    assert side.figure("wire_bytes") == 700
    assert side.figure("wire_bytes:scalar") == 100
    assert side.figure("num_runs:weight gather") == 3
    assert side.figure("exposed_s:gradient reduction") == 3.0  # 300 of 400 bytes
    assert [side.figure(f"{name}:activation") for name in BY_ROLE] == [0, 0, 0, 0]
    assert side_of(schedule(timeline=None)).figure("exposed_s:scalar") is None
    for name in ("nothing", "wire_bytes:nothing", "step_s:scalar"):
        with pytest.raises(KeyError, match=name.partition(":")[0]):
            side.figure(name)


@pytest.mark.parametrize(
    "one", [schedule(), schedule(mesh=None, target=None, timeline=None)]
)
def test_json_gives_the_same(one, tmp_path):
    path = tmp_path / "step.json"
    path.write_text(json.dumps(one.as_json()), encoding="utf-8")
    assert is_json(path)
    assert sides_from_json(path) == (side_of(one),)
    both = document([Outcome("", one), Outcome("", one)])
    path.write_text(json.dumps(both), encoding="utf-8")
    assert sides_from_json(path) == (side_of(one), side_of(one))


def test_what_is_no_json():
    assert not is_json(JAX)
    assert not is_json(STEP)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"schedules": [', "step.json: damaged or cut short"),
        ("[]", "not what spmd inspect --json writes"),
        ('{"schedules": [{}]}', "KeyError: 'format'"),
        ('{"format": 2}', "its format is 2"),
        ('{"schedules": []}', "no schedule in it; nothing compiled"),
        ('{"schedules": [], "failures": [{"message": "h100: too big"}]}', "too big"),
    ],
)
def test_json_of_something_else(text, words, tmp_path):
    path = tmp_path / "step.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        sides_from_json(path)
