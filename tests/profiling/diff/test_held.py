"""`held`: inputs that are split or sized otherwise, counted by hand."""

import dataclasses

from profiling._diff.held import Held, held
from profiling._memory.use import HeldTensor

WHOLE = HeldTensor("layers.3.w", "parameter", "bf16", (64,), None, 300, 8)
SPLIT = dataclasses.replace(WHOLE, spec=(("fsdp", "tensor"),), device_bytes=75)


def test_the_same():
    assert held([WHOLE, SPLIT], [SPLIT, WHOLE]) == ()


def test_split_otherwise_and_added():
    new = HeldTensor("b", "buffer", "bf16", (8, 8), (None, "fsdp"), 4, 8)
    assert held([WHOLE], [SPLIT, new]) == (
        Held("parameter", "layers.*.w", ("whole",), ("(fsdp x tensor)",), 300, 75),
        Held("buffer", "b", (), ("(-, fsdp)",), 0, 4),
    )


def test_layers_are_one_and_their_bytes_add_up():
    other = dataclasses.replace(WHOLE, name="layers.4.w")
    (one,) = held([WHOLE, other], [WHOLE, other, SPLIT])
    assert (one.before, one.after) == (("whole",), ("(fsdp x tensor)", "whole"))
    assert (one.before_bytes, one.after_bytes) == (600, 675)


def test_a_spec_that_splits_nothing_is_whole():
    assert held([WHOLE], [dataclasses.replace(WHOLE, spec=(None,))]) == ()
