"""`diff`: what is added, removed, moved, grown; counted by hand."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling._diff.diff import Diff, diff, over
from profiling._diff.side import side_of
from tests.profiling.schedules import MEMORY, collective, moved, schedule


def of(*collectives, **fields) -> Diff:
    """From the schedule of three collectives to one of these."""
    return diff(side_of(schedule()), side_of(schedule(collectives=collectives)))


def gather(layer: int, *, role="weight gather", size=96, **fields):
    name = f"layers.{layer}.up.weight"
    return collective(f"ag.{layer}", moved(role, size, tensor=name), **fields)


def between(before, after, **fields) -> Diff:
    return diff(
        side_of(schedule(collectives=before)),
        side_of(schedule(collectives=after, **fields)),
    )


def changes(found: Diff):
    return [(c.what, c.group.pattern, c.more_bytes) for c in found.changes]


def test_the_same():
    found = diff(side_of(schedule()), side_of(schedule()))
    assert found.is_empty
    assert (found.changes, found.held, found.notes) == ((), (), ())


def test_layers_are_one_group():
    found = between([gather(0), gather(1)], [gather(i) for i in range(5)])
    assert changes(found) == [("grew", "layers.*.up.weight", 3 * 96)]
    (one,) = found.changes
    assert (one.before.num_runs, one.after.num_runs) == (2, 5)
    back = between([gather(i) for i in range(5)], [gather(0), gather(1)])
    assert changes(back) == [("shrank", "layers.*.up.weight", -3 * 96)]


def test_other_layers_of_the_same_number_are_no_change():
    assert between([gather(0)], [gather(7)]).changes == ()


def test_the_same_bytes_in_more_runs():
    two = [gather(0, size=48), gather(1, size=48)]
    assert changes(between(two, [gather(0)]))[0][0] == "fewer runs"
    assert changes(between([gather(0)], two)) == [
        ("more runs", "layers.*.up.weight", 0)
    ]


def test_added_and_removed():
    other = gather(0, role="activation", size=500)
    found = between([gather(0)], [other])
    assert changes(found) == [
        ("added", "layers.*.up.weight", 500),
        ("removed", "layers.*.up.weight", -96),
    ]
    assert found.changes[0].before is None
    assert found.changes[1].after is None


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"axes": ("tensor",)}, "moved"),
        ({"kind": "all-reduce"}, "other kind"),
        ({"axes": ("tensor",), "kind": "all-reduce"}, "moved"),
    ],
)
def test_moved_and_other_kinds(fields, what):
    found = between([gather(0)], [gather(0, **fields)])
    (one,) = found.changes
    assert one.what == what
    assert (one.group.axes, one.group.kind) == ("fsdp", "all-gather")
    assert one.to.axes == ", ".join(fields.get("axes", ("fsdp",)))
    assert one.to.kind == fields.get("kind", "all-gather")


def test_what_stays_is_not_taken_for_moved():
    """One over fsdp stays, another over tensor comes."""
    found = between([gather(0)], [gather(0), gather(1, axes=("tensor",))])
    assert [c.what for c in found.changes] == ["added"]


def test_the_most_alike_becomes_it():
    old = [gather(0)]
    new = [gather(0, axes=("tensor",), kind="all-reduce"), gather(1, axes=("tensor",))]
    found = between(old, new)
    assert {(c.what, c.to.kind) for c in found.changes} == {
        ("moved", "all-gather"),
        ("added", "all-reduce"),
    }


def test_nameless_ones_are_not_paired():
    nameless = moved("scalar", 4, tensor="", module="")
    old = collective("a", nameless)
    new = collective("a", nameless, axes=("tensor",))
    assert {c.what for c in between([old], [new]).changes} == {"added", "removed"}


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ("[1,8]<=[8]", "{{0,1,2,3,4,5,6,7}}"),
        ("{{0,1,2,3,4,5,6,7}}", "{{0,1,2,3,4,5,6,7}}"),
        ("{{2,3},{1,0}}", "{{0,1},{2,3}}"),
        ("[2,2]<=[2,2]T(1,0)", "{{0,2},{1,3}}"),
        ("[4,64]<=[256]", "4 groups of 64, first {0,1,2,3,...}"),
        ("[64,4]<=[4,64]T(1,0)", "64 groups of 4, first {0,64,128,192}"),
        ("{}", "all devices"),
        ("no groups", "no groups"),
    ],
)
def test_groups_that_no_axes_make(groups, text):
    assert over(collective("a", axes=(), groups=groups)) == text


def test_the_same_groups_written_otherwise_are_no_change():
    a, b = (gather(0, axes=(), groups=g) for g in ("[1,8]<=[8]", "{{7,6,5,4,3,2,1,0}}"))
    assert between([a], [b]).changes == ()


def test_only_the_time_differs():
    def waits(seconds):
        return [gather(0, total_s=1.0, hidden_s=1.0 - seconds, exposed_s=seconds)]

    assert [c.what for c in between(waits(0.1), waits(0.2)).changes] == ["waits longer"]
    assert [c.what for c in between(waits(0.2), waits(0.1)).changes] == ["waits less"]
    assert between(waits(0.1), waits(0.1005)).changes == ()
    assert between(waits(0.0), waits(1e-7)).changes == ()


def test_sums_add_up():
    """Differences of all groups are the difference of the bytes on the wire."""
    new = [gather(0), collective("x", moved("activation", 5000, tensor="", module="m"))]
    found = of(*new)
    whole = found.after.figures["wire_bytes"] - found.before.figures["wire_bytes"]
    assert sum(c.more_bytes for c in found.changes) == whole
    sizes = [abs(c.more_bytes) for c in found.changes]
    assert sizes == sorted(sizes, reverse=True)


def test_inputs():
    memory = dataclasses.replace(MEMORY, tensors=MEMORY.tensors[1:])
    found = diff(side_of(schedule()), side_of(schedule(memory=memory)))
    assert [(h.pattern, h.after) for h in found.held] == [("w", ())]


def test_notes():
    other = schedule(mesh=None, target=None, timeline=None, flags={"xla_a": False})
    found = diff(side_of(schedule()), side_of(other))
    assert found.notes == (
        "another target: A h100:1x8, B not known",
        "another mesh: A fsdp=4, tensor=2, B not known",
        "other flags: xla_a (A true, B false), xla_b (A 3, B not set)",
        "B has no times: say what it runs on, with --target",
    )


def test_as_json():
    found = between([gather(0)], [gather(0, axes=("tensor",))])
    data = json.loads(json.dumps(found.as_json(), allow_nan=False))
    assert data["a"]["figures"]["wire_bytes"] == 96
    (one,) = data["changes"]
    assert (one["what"], one["to"]["axes"], one["more_bytes"]) == ("moved", "tensor", 0)
    assert "1 changes" in repr(found)


def some_collectives():
    """Lists of collectives that share roles, kinds, axes and tensors."""

    def one(i, role, kind, axes, tensor, size, runs):
        what = moved(role, size, tensor=tensor, module="")
        return collective(f"c.{i}", what, kind=kind, axes=axes, num_runs=runs)

    made = st.builds(
        one,
        st.integers(0, 99),
        st.sampled_from(["weight gather", "activation"]),
        st.sampled_from(["all-gather", "all-reduce"]),
        st.sampled_from([("fsdp",), ("tensor",), ("fsdp", "tensor")]),
        st.sampled_from(["", "w", "layers.0.w", "layers.1.w"]),
        st.integers(0, 1000),
        st.integers(1, 3),
    )
    return st.lists(made, max_size=8)


@given(some_collectives(), some_collectives())
def test_every_group_is_counted_once(old, new):
    found = between(old, new)
    whole = found.after.figures["wire_bytes"] - found.before.figures["wire_bytes"]
    assert sum(c.more_bytes for c in found.changes) == whole
    was = [c.group for c in found.changes if c.before is not None]
    now = [c.to for c in found.changes if c.after is not None]
    assert len(set(was)) == len(was)
    assert len(set(now)) == len(now)
    back = between(new, old)
    assert sum(c.more_bytes for c in back.changes) == -whole
    same = sorted(
        (c.group.role, c.group.pattern) for c in found.changes if not c.before
    )
    assert same == sorted(
        (c.group.role, c.group.pattern) for c in back.changes if not c.after
    )


@given(some_collectives())
def test_nothing_differs_from_itself(some):
    assert between(some, some[::-1]).is_empty
