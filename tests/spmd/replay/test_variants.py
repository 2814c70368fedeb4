import pytest
import torch

from spmd._capture.checks import CaptureError
from spmd._capture.state import StepState
from spmd._marking.mark import mark_sharding
from spmd._meshes.mesh import Mesh
from spmd._replay.variants import Variants, batch_key, difference

STATE = StepState(torch.nn.Linear(2, 2), None, {}).key()


def key(*, shape=(8, 2), other=(), dtype=torch.float32, spec=None, state=STATE):
    x = torch.empty(shape, dtype=dtype, device="meta")
    if spec is not None:
        mark_sharding(x, Mesh({"fsdp": 4}), spec)
    return (batch_key({"batch.x": x}), other, *state)


def test_keys_that_share_a_graph_count_once():
    variants: Variants[str] = Variants(1)
    variants.announce(key())  # the first is nothing special
    variants.add(key(), "graph", "one")
    variants.add(key(other=(("flag", True),)), "graph", "one")
    assert variants.num_graphs == 1
    assert variants.get(key()) == variants.same("graph") == "one"
    assert variants.get(key(shape=(4, 2))) is variants.same("other") is None
    variants.drop(key())
    assert variants.get(key()) is None
    assert variants.get(key(other=(("flag", True),))) == "one"


def test_the_last_variant_is_that_of_its_key():
    variants: Variants[str] = Variants(2)
    variants.add(key(), "first", "one")
    variants.add(key(shape=(4, 2)), "second", "two")
    for _ in range(2):
        assert variants.get(key()) == "one"
        assert variants.get(key(shape=(4, 2))) == "two"
    variants.add(key(shape=(4, 2)), "third", "three")
    assert variants.get(key(shape=(4, 2))) == "three"


def test_a_further_graph_is_announced_and_one_too_many_refused():
    variants: Variants[str] = Variants(2)
    variants.add(key(), "first", "one")
    with pytest.warns(UserWarning, match=r"graph .*2 of at most 2.*because of batch.x"):
        variants.announce(key(shape=(4, 2)))
    variants.add(key(shape=(4, 2)), "second", "two")
    with pytest.raises(CaptureError, match=r"beyond max_graphs=2, because of batch.x"):
        variants.announce(key(shape=(2, 2)))


@pytest.mark.parametrize(
    ("new", "words"),
    [
        (key(shape=(4, 2)), r"batch.x, now float32[4, 2], before float32[8, 2]"),
        (key(dtype=torch.int64), r"batch.x, now int64[8, 2], before float32[8, 2]"),
        (
            key(spec=("fsdp", None)),
            r"batch.x, now float32[8, 2] split ('fsdp', None), before float32[8, 2]",
        ),
        (((), (), *STATE), "batch.x, no longer given"),
        (
            key(other=(("flag", False),)),
            "an argument that is no tensor, now ('flag', False)",
        ),
        (
            key(state=(b"\1\0", *STATE[1:])),
            "which parameters have a gradient",
        ),
        (
            key(state=(*STATE[:2], b"\0", *STATE[3:])),
            "training or evaluation mode of a module",
        ),
        (key(), "nothing visible"),
    ],
)
def test_difference_names_what_changed(new, words):
    assert difference(key(), new) == words
