"""Where `spmd` has its spans: each is counted where it should be, and only there."""

import contextlib

import pytest
import torch

import spmd
from spmd._host_spans import (
    CHECKPOINT,
    COMPILE,
    DATA,
    DISPATCH,
    STEP,
    TRACE,
    WAIT,
    counts,
)
from tests.profiling import captured


@contextlib.contextmanager
def counted():
    """How often each span occurs in the block."""
    before, found = counts(), {}
    yield found
    found.update(
        {n: c - before.get(n, 0) for n, c in counts().items() if c > before.get(n, 0)}
    )


@pytest.fixture(params=["torch_xla", "jax"])
def step(request):
    return captured.compiled_step(request.param)


def test_a_first_step_is_traced_compiled_and_run(step):
    (batch,) = captured.batches(1, captured.runtime_of(step))
    with counted() as found:
        step(batch)
    assert found[STEP] == found[COMPILE] == found[DISPATCH] == 1
    assert found[TRACE] >= 1


def test_a_later_step_is_run(step):
    (batch,) = captured.batches(1, captured.runtime_of(step))
    for _ in range(2):  # torch_xla learns the layout of the results
        step(batch)
    with counted() as found:
        step(batch)
    assert found[STEP] == found[DISPATCH] == 1
    assert not {TRACE, COMPILE, WAIT, CHECKPOINT} & set(found)
    assert found.get(DATA, 0) == (captured.runtime_of(step) == "jax")


def test_a_program_is_traced_without_a_step():
    mesh = spmd.Mesh({"fsdp": 8})
    with counted() as found:
        spmd.trace(lambda x: x + 1, torch.ones(8, 2), mesh=mesh)
    assert found[TRACE] and not {STEP, COMPILE, DISPATCH} & set(found)


def test_data_is_waited_for_once_a_batch():
    mesh = spmd.Mesh({"fsdp": 8})
    with counted() as found:
        spmd.shard_batch(torch.ones(8, 2), mesh, "fsdp")
    assert found == {DATA: 1}
    for prefetch in (0, 2):
        loader = spmd.ShardedLoader(
            [torch.ones(8, 2)] * 3, mesh, "fsdp", prefetch=prefetch
        )
        with counted() as found:
            assert len(list(loader)) == 3
        # Twice for the first (fetched, then sent), and once for the end.
        assert found == {DATA: 5}


def test_reading_a_result_of_jax_is_a_wait():
    step = captured.compiled_step("jax")
    loss = step(captured.batches(1, "jax")[0])
    with counted() as found:
        loss.wait()
        loss.item()
    assert found == {WAIT: 2}


@pytest.mark.parametrize("asynchronous", [False, True], ids=["at once", "background"])
def test_a_checkpoint_is_one_span_and_one_in_the_background(tmp_path, asynchronous):
    model = torch.nn.Linear(4, 4)
    with counted() as found:
        saving = spmd.checkpoint.save(tmp_path / "a", model, asynchronous=asynchronous)
        saving.wait()
    assert found == {CHECKPOINT: 1 + asynchronous}
    with counted() as found:
        spmd.checkpoint.load(tmp_path / "a", model)
    assert found == {CHECKPOINT: 1}
