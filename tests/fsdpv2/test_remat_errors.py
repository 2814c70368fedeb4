"""A layer that raises under rematerialisation leaves nothing behind."""

import pytest

import spmd
from fsdpv2 import FSDPv2
from tests.fsdpv2.layers import FLAT, device_ids, loss_of, stack
from tests.spmd.test_unwind import entered


def model(*, fails):
    module = stack()
    if fails:
        module.layers[1].register_forward_hook(lambda *_: 1 / 0)
    return FSDPv2(module, FLAT, min_shard_elements=1, remat="full")


def step_of(model, *, compiled):
    def step(batch):
        loss = loss_of(model, batch)
        loss.backward()
        return loss

    return spmd.compile_step(step, model=model) if compiled else step


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compile_step"])
def test_the_next_step_is_what_it_would_have_been(compiled):
    batch, kept = device_ids(), []
    want = step_of(model(fails=False), compiled=compiled)(batch).item()
    for _ in range(2):
        with pytest.raises(ZeroDivisionError) as error:
            step_of(model(fails=True), compiled=compiled)(batch)
        kept.append(error.value)  # as a notebook keeps it
        assert entered() == ([], None)
        assert step_of(model(fails=False), compiled=compiled)(batch).item() == want
