"""Our description of `XSpace` against jax's own reader of it."""

from jax.profiler import ProfileData

from tests.profiling.xplanes import Plane, space


def test_jax_reads_what_is_written_so():
    plane = Plane("/device:GPU:0")
    line = plane.line("Stream #7(Compute)", start_us=3)
    line.event("kernel", 1.5, 2, hlo_op="fusion.1", bytes_accessed=4096, share=0.5)
    (read,) = ProfileData.from_serialized_xspace(space(plane)).planes
    (stream,) = read.lines
    (event,) = stream.events
    assert (read.name, stream.name) == ("/device:GPU:0", "Stream #7(Compute)")
    assert (event.name, event.start_ns, event.duration_ns) == ("kernel", 4500, 2000)
    stats = {"hlo_op": "fusion.1", "bytes_accessed": 4096, "share": 0.5}
    assert dict(event.stats) == stats
