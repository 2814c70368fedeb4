"""Planes that are written, as jax's own reader of profiles and ours see them."""

from jax.profiler import ProfileData

from profiling._profile.xplane import parse_space
from profiling._profile.xplane_write import PlaneWriter, with_planes
from tests.profiling import xplanes


def written() -> bytes:
    plane = PlaneWriter("/device:TPU:CPU 3", number=3, stats={"added_by": "spmd"})
    line = plane.line("XLA Ops", number=7, start_ps=5_000)
    kind = plane.event_id(
        "%a = f32[]", display_name="a", stats={"flops": 8, "share": 0.5}
    )
    assert plane.event_id("%a = f32[]") == kind
    assert plane.event_id("%a = f32[]", key="another") == kind + 1
    event = line.events.add(metadata_id=kind, offset_ps=2_000, duration_ps=4_000)
    plane.put(event.stats, {"hlo_op": "a", "large": 2**64 - 1, "data": b"\x00"})
    return plane.bytes()


def test_both_read_what_is_written():
    before = xplanes.space(xplanes.Plane("/host:CPU"))
    space = with_planes(before, [written()], warning="be careful")
    host, plane = parse_space(space, source="x").planes
    assert (host.name, plane.name) == ("/host:CPU", "/device:TPU:CPU 3")
    assert plane.stats == {"added_by": "spmd"}
    (line,) = plane.lines()
    (event,) = line.events
    assert (event.name, event.display_name) == ("%a = f32[]", "a")
    assert (event.start_ps, event.duration_ps) == (7_000, 4_000)
    own = {"hlo_op": "a", "large": 2**64 - 1, "data": b"\x00"}
    assert event.stats() == {"flops": 8, "share": 0.5, **own}
    (line,) = list(ProfileData.from_serialized_xspace(space).planes)[1].lines
    (event,) = line.events
    assert (line.name, event.start_ns, event.duration_ns) == ("XLA Ops", 7, 4)
    assert b"be careful" in space


def test_without_a_warning_there_is_none():
    assert with_planes(b"", [b"abc"]) == b"\x0a\x03abc"
