"""A `Diff` as text."""

import dataclasses

import pytest

from profiling._diff.diff import diff
from profiling._diff.show import show_diff
from profiling._diff.side import side_of
from profiling._memory.use import HeldTensor
from tests.profiling.on_console import on_console
from tests.profiling.schedules import COLLECTIVES, GIB, MEMORY, collective, moved
from tests.profiling.schedules import schedule as made

GATHER, *REST = COLLECTIVES


def other():
    """One gather moved, activations came, a weight is split otherwise."""
    first, *tensors = MEMORY.tensors
    held = dataclasses.replace(first, spec=(None, "tensor"), device_bytes=4 * GIB)
    memory = dataclasses.replace(
        MEMORY, tensors=(held, *tensors), total_bytes=90 * GIB, argument_bytes=22 * GIB
    )
    return made(
        memory=memory,
        collectives=(
            dataclasses.replace(GATHER, axes=("tensor",)),
            *REST,
            collective("new", moved("activation", 2**20, tensor="", module="layers.3")),
        ),
    )


@pytest.mark.parametrize("width", [80, 140])
def test_all_of_it(width):
    found = diff(side_of(made()), side_of(other()))
    text = on_console(show_diff, found, width=width)
    flat = " ".join(text.split())
    assert "A step on h100:1x8, fsdp=4, tensor=2" in flat
    assert "memory 51 GiB 90 GiB +39 GiB +76.5%" in flat
    assert "inputs 20 GiB 22 GiB +2 GiB +10.0%" in flat
    assert "does not fit by 0 B 10 GiB +10 GiB" in flat
    assert "temporaries 30 GiB 30 GiB same" in flat
    assert "by role, axes and tensor: 1 added, 1 moved" in flat
    assert "activation: all-gather over fsdp added 1 MiB 1 - layers.*" in flat
    assert "weight gather: all-gather over fsdp -> tensor moved 288 B 3 1 s" in flat
    assert "self_attention.output_projection.weight" in flat
    assert "(fsdp, -) -> (-, tensor) parameter w" in flat


def test_inputs_that_are_split_alike_have_one_line():
    names = [f"optimizer.m[{name}]" for name in "abcd"]
    a, b = (
        tuple(HeldTensor(n, "optimizer", "f32", (8,), s, 2**10, 1) for n in names)
        for s in (None, ("fsdp",))
    )
    a, b = (made(memory=dataclasses.replace(MEMORY, tensors=t)) for t in (a, b))
    text = on_console(show_diff, diff(side_of(a), side_of(b)), width=100)
    line = "4 KiB  4 KiB  whole -> (fsdp)  optimizer m[a], m[b] and 2 more"
    assert line in text


def test_nothing():
    text = on_console(show_diff, diff(side_of(made()), side_of(made())))
    assert text.endswith("Nothing differs.\n")


def test_only_memory_and_no_times():
    memory = dataclasses.replace(MEMORY, total_bytes=GIB)
    b = made(memory=memory, timeline=None)
    text = on_console(show_diff, diff(side_of(made()), side_of(b)))
    assert "Collectives: the same." in text
    assert "note: B has no times" in text
    assert "-50 GiB -98.0%" in text


def test_the_rest_is_counted():
    found = diff(side_of(made()), side_of(other()))
    assert "and 1 more (--top, --json)" in on_console(show_diff, found, top=1)
