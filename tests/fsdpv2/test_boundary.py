import dataclasses
from collections import OrderedDict, namedtuple
from typing import Any

import pytest
import torch

import spmd
from fsdpv2._boundary import batch_size, check_inputs, shard_output
from spmd import Mesh
from tests.on_device import as_tiles, constraints, on_device

MESH = Mesh({"replica": 2, "fsdp": 4})
AXES = ("replica", "fsdp")
Pair = namedtuple("Pair", "first second")


@dataclasses.dataclass
class Output:
    logits: Any
    hidden: Any = None


def check(*args: Any, warned: set[str] | None = None, **kwargs: Any) -> None:
    seen = set() if warned is None else warned
    check_inputs(args, kwargs, MESH, axes=AXES, warned=seen)


def split(*shape: int) -> torch.Tensor:
    spec = (AXES, *[None] * (len(shape) - 1))
    return spmd.mark_sharding(on_device(*shape), MESH, spec)


# Inputs


def test_split_inputs_of_every_form_pass():
    check(split(8, 2), [split(8)], mask={"a": split(8, 1, 2)}, flag=True, none=None)
    check(3, "text", scale=torch.tensor(2.0).to("xla"))
    check()


@pytest.mark.parametrize(
    "args, kwargs, name",
    [
        ((torch.ones(8),), {}, r"args\[0\] \[8\]"),
        ((None, (torch.ones(8, 2),)), {}, r"args\[1\]\[0\] \[8, 2\]"),
        ((), {"input_ids": torch.ones(8)}, r"input_ids \[8\]"),
        ((), {"batch": {"x": torch.ones(8)}}, r"batch\['x'\] \[8\]"),
    ],
)
def test_an_input_on_the_cpu_is_named(args, kwargs, name):
    text = rf"FSDPv2: input {name} is on cpu; give it .* spmd\.shard_batch"
    with pytest.raises(ValueError, match=text):
        check(*args, **kwargs)


def test_a_batch_smaller_than_the_mesh():
    text = (
        r"FSDPv2: input x \[4, 2\] has a batch of 4, smaller than the 8 devices that "
        r"split it over \('replica', 'fsdp'\); use at least 8 rows, .*pad=True.*module"
    )
    with pytest.raises(ValueError, match=text):
        check(x=on_device(4, 2))


def test_only_the_first_tensor_is_the_batch():
    check(split(8, 2), split(8), spmd.replicate(on_device(3, 2), MESH))


def test_an_input_without_a_spec_is_named_once():
    warned: set[str] = set()
    with pytest.warns(UserWarning, match=r"input mask \[8, 3\] has no spec") as caught:
        check(split(8, 2), mask=on_device(8, 3), warned=warned)
    assert caught[0].filename == __file__
    check(split(8, 2), mask=on_device(8, 5), warned=warned)


def test_no_warning_for_what_is_whole_on_purpose_or_computed():
    check(split(8, 2), spmd.replicate(on_device(8, 2), MESH))
    check(split(8, 2), on_device(1, 2))  # broadcast over the batch
    check(on_device(8, 2) * 2)  # the compiler decides


def test_no_warning_for_what_torch_xla_split():
    import numpy as np
    import torch_xla.distributed.spmd as xs

    mesh = xs.Mesh(np.arange(8), (2, 4), AXES)
    x = on_device(8, 2)
    xs.mark_sharding(x, mesh, (AXES, None))
    check(x)


def test_the_batch_size_is_the_first_tensors():
    assert batch_size((None, [torch.ones(3, 2)]), {"x": torch.ones(5)}) == 3
    assert batch_size((torch.tensor(1.0),), {"x": torch.ones(5)}) == 5
    assert batch_size((1,), {}) is None


# Outputs


def value(*shape: int) -> torch.Tensor:
    return on_device(*shape) * 2


def is_split(tensor: torch.Tensor) -> bool:
    want = as_tiles(MESH, (AXES, *[None] * (tensor.ndim - 1)))
    found = constraints(tensor)
    assert found in ([], [want])
    return bool(found)


def out(output: Any, rows: int | None = 8) -> Any:
    assert shard_output(output, MESH, axes=AXES, rows=rows, name="Model") is None
    return output


def test_a_tensor():
    assert is_split(out(value(8, 3, 2)))
    assert is_split(out(value(8)))


@pytest.mark.parametrize(
    "make",
    [
        lambda a, b: (a, b),
        lambda a, b: [a, b],
        lambda a, b: {"a": a, "b": b},
        lambda a, b: OrderedDict(a=a, b=b),
        lambda a, b: Pair(a, b),
        lambda a, b: Output(a, b),
        lambda a, b: Output(logits=(a, [b])),
        lambda a, b: (None, a, {"b": [b, None]}, "text", 3),
    ],
)
def test_containers_are_left_as_they_are_and_their_tensors_split(make):
    a, b = value(8, 2), value(8)
    tree = make(a, b)
    before = repr(type(tree)), id(tree)
    assert (repr(type(out(tree))), id(tree)) == before
    assert is_split(a) and is_split(b)


def test_hugging_faces_outputs():
    outputs = pytest.importorskip("transformers.modeling_outputs")
    logits, hidden = value(8, 2), (value(8, 2), value(8, 2))
    tree = outputs.CausalLMOutput(loss=value(1)[0], logits=logits, hidden_states=hidden)
    assert type(out(tree)) is outputs.CausalLMOutput
    assert tree.logits is logits and tree.hidden_states is hidden
    assert all(map(is_split, (logits, *hidden))) and not is_split(tree.loss)


def test_a_scalar_loss_first_is_left_alone():
    loss, logits = out((value(8)[0], value(8, 2)))
    assert not is_split(loss) and is_split(logits)


@pytest.mark.parametrize("shape", [(4, 2), (16, 2), (1, 2), (2,)])
def test_tensors_of_another_leading_size_are_left_alone(shape):
    tensor, _ = out((value(*shape), value(8, 2)))
    assert not is_split(tensor)


def test_a_batch_smaller_than_the_mesh_is_left_whole():
    assert not is_split(out(value(4, 2), rows=4))


def test_without_a_batch_what_divides_is_split():
    a, b = out((value(16, 2), value(9, 2)), rows=None)
    assert is_split(a) and not is_split(b)


def test_what_has_a_spec_keeps_it():
    tensor = spmd.mark_sharding(value(8, 4), MESH, (None, "fsdp"))
    out(tensor)
    assert spmd.get_sharding(tensor).spec == (None, "fsdp")
    assert constraints(tensor) == [as_tiles(MESH, (None, "fsdp"))]
