"""Laps, with time that stands still unless a test moves it."""

import pytest

from profiling._metrics import clock
from profiling._metrics.clock import Lap, StepClock, Way
from spmd import _host_spans
from spmd._host_spans import COMPILE, DATA, DISPATCH, WAIT, span


class Time:
    """What the clocks show."""

    def __init__(self) -> None:
        self.now = 100.0
        self.cpu = 5.0

    def work(self, seconds: float) -> None:
        self.now += seconds
        self.cpu += seconds

    def block(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def time(monkeypatch):
    time = Time()
    for module in (clock, _host_spans):
        monkeypatch.setattr(module, "perf_counter", lambda: time.now)
    monkeypatch.setattr(clock, "thread_time", lambda: time.cpu)
    return time


def near(data=0.0, compiled=0.0, wait=0.0, host=0.0) -> tuple:
    return tuple(pytest.approx(s) for s in (data, compiled, wait, host))


def seconds(*ways: Way, waited_s: float = 0.0) -> tuple:
    lap = Lap.of(ways, waited_s)
    return lap.data_s, lap.compile_s, lap.wait_s, lap.host_s


def test_a_lap_is_data_compiling_waiting_and_the_rest(time):
    clock = StepClock()
    time.work(1.0)
    with span(DATA):
        time.block(2.0)
    with span(COMPILE):
        time.work(3.0)
    with span(WAIT):
        time.block(4.0)
    assert seconds(clock.way()) == near(2.0, 3.0, 4.0, 1.0)
    assert seconds(clock.way()) == near()


def test_of_a_dispatch_that_blocks_only_what_is_computed_is_the_hosts(time):
    clock = StepClock()
    with span(DISPATCH):
        time.work(1.0)
        time.block(20.0)  # too many steps are in flight
    time.work(2.0)
    assert seconds(clock.way()) == near(wait=20.0, host=3.0)


def test_what_blocks_elsewhere_is_the_hosts(time):
    clock = StepClock()
    with span(DISPATCH):
        time.work(1.0)
    time.block(7.0)  # such as another thread that holds Python's lock
    assert seconds(clock.way()) == near(wait=1.0, host=7.0)


def test_windows_are_made_of_laps(time):
    clock = StepClock()
    time.work(1.0)
    clock.way()
    time.work(2.0)
    clock.way()
    assert clock.window() == 3.0
    assert clock.window() == 0.0


def test_a_pause_is_in_no_lap_and_in_no_window(time):
    clock = StepClock()
    time.work(1.0)
    with span(DATA):
        time.block(0.5)
    with clock.no_window(), span(DATA):
        time.work(10.0)
    time.work(1.0)
    assert seconds(clock.way()) == near(data=0.5, host=2.0)
    assert clock.window() == 2.5


def test_a_pause_ends_with_an_exception(time):
    clock = StepClock()
    with pytest.raises(KeyError), clock.no_window():
        time.work(10.0)
        raise KeyError
    assert clock.window() == 0.0
    assert seconds(clock.way()) == near()


def test_reading_is_in_the_window_but_in_no_lap(time):
    clock = StepClock()
    with clock.no_lap(), span(WAIT):
        time.block(3.0)
    assert seconds(clock.way()) == near()
    assert clock.window() == 3.0


def test_a_loader_is_waited_for_once(time):
    """One of spmd's has a span of its own inside."""

    def loader():
        for batch in "ab":
            with span(DATA):
                time.block(1.0)
            time.block(0.25)
            yield batch

    clock = StepClock()
    assert list(clock.batches(loader())) == ["a", "b"]
    assert seconds(clock.way()) == near(data=2.5)


def test_a_lap_of_several_ways_is_their_sum(time):
    clock = StepClock()
    time.work(1.0)
    with span(WAIT):
        time.block(4.0)
    one = clock.way()
    with clock.no_lap():
        time.block(100.0)
    with span(DATA):
        time.block(2.0)
    two = clock.way()
    assert seconds(one) == near(wait=4.0, host=1.0)
    assert seconds(one, two) == near(data=2.0, wait=4.0, host=1.0)
    assert seconds(one, two, waited_s=0.5) == near(data=2.0, wait=4.5, host=1.0)
    assert seconds() == near()
