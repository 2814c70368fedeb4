"""`Limit`: what `--fail-on` takes, and when it fails."""

import pytest

from profiling._diff.diff import Diff, diff
from profiling._diff.limits import Limit, figure_text
from profiling._diff.side import side_of
from tests.profiling.schedules import COLLECTIVES, collective, moved, schedule

MORE = (*COLLECTIVES, collective("more", moved("activation", 70)))


def to(*collectives) -> Diff:
    """From the 700 bytes of the schedule made by hand."""
    return diff(side_of(schedule()), side_of(schedule(collectives=collectives)))


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("wire_bytes=+9%", True),
        ("wire_bytes=+10%", False),
        ("wire_bytes=+69", True),
        ("wire_bytes=+70B", False),
        ("wire_bytes=+1KiB", False),
        ("wire_bytes=769", True),
        ("wire_bytes=770", False),
        ("wire_bytes:activation=+0%", True),
        ("wire_bytes:activation=70", False),
        ("wire_bytes:weight gather=+0", False),
        ("num_runs = +0", True),
        ("num_collectives=4", False),
        ("memory_bytes=+0%", False),
        ("memory_bytes=50GiB", True),
        ("over_bytes=0", False),
        ("exposed_s=+0", False),
        ("step_s=10s", False),
        ("step_s=9999ms", True),
        ("new_roles", True),
        ("new_axes", False),
        ("added", True),
        ("moved", False),
        ("grew", False),
    ],
)
def test_limits(text, fails):
    assert bool(Limit.parse(text).exceeded(to(*MORE))) == fails


def test_less_never_fails():
    less = to(*COLLECTIVES[:1])
    for text in ("wire_bytes=+0%", "num_runs=+0", "new_roles", "added", "grew"):
        assert Limit.parse(text).exceeded(less) == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "wire_bytes=+5%",
            "wire_bytes=+5%: wire_bytes is 770 B (+10.0%), 70 B more than 700 B",
        ),
        ("wire_bytes=1", "wire_bytes=1: wire_bytes is 770 B"),
        (
            "wire_bytes:activation=+1%",
            "wire_bytes:activation=+1%: wire_bytes:activation is 70 B, 70 B more than "
            "0 B",
        ),
        ("new_roles", "new_roles: activation"),
    ],
)
def test_words(text, words):
    assert Limit.parse(text).exceeded(to(*MORE)) == words


def test_words_of_what_moved():
    first, *rest = COLLECTIVES
    name = first.moved[0].tensor.replace("17", "*")
    other = collective("ag.1", num_runs=3, axes=("tensor",))
    found = Limit.parse("moved").exceeded(to(other, *rest))
    assert found == f"moved: weight gather {name} over fsdp, now tensor"
    assert Limit.parse("new_axes").exceeded(to(other, *rest)) == "new_axes: tensor"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("wire_bytes", "is no limit"),
        ("wire_bytes=-5%", "is no limit"),
        ("bytes=+5%", "no figure 'bytes'; wire_bytes, num_collectives"),
        ("step_s:scalar=+5%", "no figure 'step_s'; with a role: wire_bytes"),
        ("wire_bytes:nothing=+5%", "no role 'nothing'; one of weight gather"),
        ("wire_bytes=5%", r"are written \+5%"),
        ("wire_bytes=+5ms", "unit 'ms' is not one of wire_bytes; allowed: %, none, B"),
        ("step_s=+5", "unit 'none' is not one of step_s; allowed: %, s, ms"),
        ("num_runs=+5B", "unit 'B'"),
    ],
)
def test_what_is_none(text, words):
    with pytest.raises(ValueError, match=words):
        Limit.parse(text)


def test_a_figure_that_is_not_known():
    timeless = side_of(schedule(timeline=None))
    with pytest.raises(ValueError, match=r"exposed_s of A \(step\) is not known"):
        Limit.parse("exposed_s=+5%").exceeded(diff(timeless, side_of(schedule())))
    with pytest.raises(ValueError, match="step_s of B"):
        Limit.parse("step_s=1s").exceeded(diff(side_of(schedule()), timeless))


def test_figures_as_text():
    assert figure_text("wire_bytes:scalar", 2048) == "2 KiB"
    assert figure_text("exposed_s", 0.0123) == "12.3 ms"
    assert figure_text("step_s", None) == "-"
