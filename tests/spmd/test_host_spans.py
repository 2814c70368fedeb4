"""What `_host_spans` counts, whom it tells, and where `spmd` has its spans."""

import threading

import pytest

from spmd import _host_spans
from spmd._host_spans import (
    DATA,
    ITERATION,
    STEP,
    WAIT,
    at_each_step,
    counts,
    end_iteration,
    span,
    spanned,
    step_span,
    totals,
)


class Recorder:
    """Stands in for a library's ``TraceMe``: notes what begins and ends."""

    def __init__(self) -> None:
        self.on = True
        self.heard: list[str] = []

    def event(self, name, **stats):
        recorder = self

        class Event:
            def __enter__(self):
                said = ",".join(f"{k}" for k in stats)
                recorder.heard.append(f"{name}({said})" if said else name)

            def __exit__(self, *error):
                recorder.heard.append(f"/{name}")

        return Event()


@pytest.fixture
def recorder(monkeypatch):
    found = Recorder()
    entry = (lambda: found.on, found.event)
    monkeypatch.setattr(_host_spans, "_recorders", [entry])
    yield found
    end_iteration()


def test_seconds_and_number_are_added_up_by_name():
    before, number = totals().get(WAIT, 0.0), counts().get(WAIT, 0)
    for _ in range(3):
        with span(WAIT):
            sum(range(1000))
    assert totals()[WAIT] > before
    assert counts()[WAIT] == number + 3


def test_spans_of_several_threads_are_all_counted():
    before = counts().get(DATA, 0)

    def work():
        for _ in range(200):
            with span(DATA):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts()[DATA] == before + 800


def test_what_is_asked_for_is_a_copy():
    with span(WAIT):
        pass
    totals().clear()
    counts().clear()
    assert WAIT in totals() and WAIT in counts()


def test_a_recorder_hears_of_spans_while_it_records(recorder):
    with span(WAIT):
        recorder.on = False
        with span(DATA):
            pass
    assert recorder.heard == [WAIT, f"/{WAIT}"]  # one that began also ends


def test_an_error_ends_the_span_and_goes_on(recorder):
    with pytest.raises(KeyError), span(WAIT):
        raise KeyError
    assert recorder.heard == [WAIT, f"/{WAIT}"]


def test_a_decorated_function_keeps_its_name_and_result(recorder):
    @spanned(DATA)
    def twice(x: int) -> int:
        """Two of it."""
        return 2 * x

    assert twice(4) == 8
    assert (twice.__name__, twice.__doc__) == ("twice", "Two of it.")
    assert recorder.heard == [DATA, f"/{DATA}"]


def test_an_iteration_goes_on_until_the_next_step_begins(recorder):
    for _ in range(2):
        with step_span(), span(DATA):
            pass
    end_iteration()
    iteration, step = f"{ITERATION}(step_num,_r)", f"{STEP}(step_num)"
    inner = [DATA, f"/{DATA}", f"/{STEP}"]
    once = [iteration, step, *inner, f"/{ITERATION}"]
    assert recorder.heard == once * 2


def test_a_step_in_a_step_is_part_of_it(recorder):
    begun = []
    end = at_each_step(lambda: begun.append(1))
    number = counts().get(STEP, 0)
    with step_span(), step_span():
        pass
    end()
    assert len(begun) == 1
    assert counts()[STEP] == number + 1
    assert recorder.heard.count(f"{STEP}(step_num)") == 1


def test_a_step_that_fails_is_over():
    with pytest.raises(KeyError), step_span():
        raise KeyError
    number = counts()[STEP]
    with step_span():
        pass
    assert counts()[STEP] == number + 1


def test_listeners_are_called_first_and_until_they_are_ended(recorder):
    def listen():
        recorder.heard.append("listener")

    end = at_each_step(listen)
    with step_span():
        pass
    end()
    end()
    with step_span():
        pass
    assert recorder.heard.count("listener") == 1
    assert recorder.heard[0] == "listener"


def test_an_unrecorded_step_ends_the_iteration_of_the_last(recorder):
    with step_span():
        pass
    recorder.on = False
    with step_span():
        pass
    assert recorder.heard[-1] == f"/{ITERATION}"


def test_importing_it_loads_neither_torch_nor_jax(run_script):
    result = run_script(
        """
        import sys
        from spmd import _host_spans
        with _host_spans.step_span():
            pass
        assert not {"torch", "torch_xla", "jax"} & set(sys.modules)
        """
    )
    assert result.rc == 0, result.stderr
