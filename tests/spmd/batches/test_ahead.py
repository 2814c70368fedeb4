"""The background thread: order, errors, and an end in every case."""

import gc
import threading
import time
import traceback

import pytest

from spmd._batches import ahead as ahead_module
from spmd._batches.ahead import Ahead


def counted(num_items, made):
    for i in range(num_items):
        made.append(i)
        yield i


def ends(thread, within_s=5.0):
    thread.join(within_s)
    return not thread.is_alive()


def until(condition, within_s=5.0):
    limit = time.perf_counter() + within_s
    while not condition() and time.perf_counter() < limit:
        time.sleep(0.005)
    return condition()


@pytest.mark.parametrize("num_items", [0, 1, 3])
def test_items_come_in_order(num_items):
    ahead = Ahead(iter(range(5)), num_items)
    assert [ahead.get() for _ in range(7)] == [[0], [1], [2], [3], [4], [], []]
    ahead.close()


def test_it_is_no_more_than_so_many_items_ahead():
    made = []
    ahead = Ahead(counted(10, made), 3)
    assert until(lambda: len(made) == 3)
    time.sleep(0.05)
    assert made == [0, 1, 2]
    ahead.get()
    assert until(lambda: len(made) == 4)
    ahead.close()


def test_without_a_thread_nothing_is_ahead():
    made = []
    ahead = Ahead(counted(10, made), 0)
    assert ahead.thread is None
    assert made == []
    assert ahead.get() == [0]
    ahead.close()
    assert made == [0]


@pytest.mark.parametrize("num_items", [0, 2])
def test_errors_keep_their_traceback(num_items):
    def broken():
        yield 1
        raise KeyError("deep inside")

    ahead = Ahead(broken(), num_items)
    assert ahead.get() == [1]
    with pytest.raises(KeyError, match="deep inside") as caught:
        ahead.get()
    assert "broken" in [
        f.name for f in traceback.extract_tb(caught.value.__traceback__)
    ]
    assert ahead.get() == []
    ahead.close()


def test_the_thread_ends_by_itself_after_the_last_item():
    ahead = Ahead(iter(range(2)), 3)
    assert ahead.thread is not None
    assert ends(ahead.thread)
    assert [ahead.get() for _ in range(3)] == [[0], [1], []]


@pytest.mark.parametrize("taken", [0, 1, 5])
def test_close_ends_the_thread(taken):
    ahead = Ahead(iter(range(1000)), 2)
    for _ in range(taken):
        ahead.get()
    ahead.close()
    ahead.close()
    assert ahead.thread is not None
    assert not ahead.thread.is_alive()


def test_close_lets_go_of_the_source_and_of_the_items():
    closed = threading.Event()

    class Item:
        alive = 0

        def __init__(self):
            Item.alive += 1

        def __del__(self):
            Item.alive -= 1

    def source():
        try:
            while True:
                yield Item()
        finally:
            closed.set()

    ahead = Ahead(source(), 3)
    assert until(lambda: Item.alive == 3)
    ahead.close()
    assert closed.wait(5)
    gc.collect()
    assert Item.alive == 0


def test_nobody_on_the_way_keeps_an_item():
    class Item:
        alive = 0

        def __init__(self):
            Item.alive += 1

        def __del__(self):
            Item.alive -= 1

    ahead = Ahead((Item() for _ in range(1)), 1)
    got = ahead.get()
    assert ends(ahead.thread)
    assert Item.alive == 1
    got.clear()
    assert Item.alive == 0


def test_close_does_not_wait_for_a_stuck_source(monkeypatch):
    monkeypatch.setattr(ahead_module, "PATIENCE_S", 0.05)
    release = threading.Event()

    def stuck():
        yield 1
        release.wait(30)
        yield 2

    ahead = Ahead(stuck(), 2)
    ahead.get()
    started = time.perf_counter()
    ahead.close()
    assert time.perf_counter() - started < 2
    assert ahead.thread is not None
    assert ahead.thread.is_alive()
    release.set()
    assert ends(ahead.thread)


def test_close_from_its_own_thread_does_not_wait_for_itself():
    """As when the garbage collector runs a loop's end in the thread."""
    closed, bound = [], threading.Event()

    def source():
        yield 1
        bound.wait(5)
        ahead.close()
        closed.append(True)
        yield 2

    ahead = Ahead(source(), 2)
    bound.set()
    assert ahead.thread is not None
    assert ends(ahead.thread)
    assert closed == [True]


@pytest.mark.parametrize(
    "doing", ["time.sleep(60)", "threading.Event().wait()", "pass"]
)
def test_interpreter_exit_is_not_held_up(doing, run_script):
    result = run_script(
        f"""
        import threading, time
        from spmd._batches import ahead as ahead_module
        ahead_module.EXIT_PATIENCE_S = 0.2
        def source():
            n = 0
            while True:
                yield n
                n += 1
                {doing}
        ahead = ahead_module.Ahead(source(), 2)
        print(ahead.get())
        """,
        timeout_s=30,
    )
    assert (result.rc, result.stdout) == (0, "[0]\n"), result.stderr
