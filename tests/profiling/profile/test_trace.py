"""`Trace` and what is in it."""

from profiling._profile.trace import OpEvent, Trace


def test_devices_are_those_that_ran_something():
    ops = tuple(OpEvent("a", "p", device, 0, 1) for device in (3, 1, 3))
    found = Trace("node0", "x", "tpu", "", ops, (), 0, (), {})
    assert found.devices == (1, 3)
    assert repr(found) == "Trace('node0', tpu, 3 operations on 2 devices)"
