"""What is taken from a fused layer's output is what a plain tensor gives."""

import pytest
import torch

from spmd._fused.output import PartsOutput, joined, parts_of

SIZES = (6, 2, 2)  # of 10 in the last dim
ROWS = 3


def parts(grad=False):
    generator = torch.Generator().manual_seed(0)
    made = [torch.randn(ROWS, 4, n, generator=generator) for n in SIZES]
    return [t.requires_grad_(grad) for t in made]


TAKEN = {
    "split": lambda x: x.split(list(SIZES), dim=-1),
    "torch_split": lambda x: torch.split(x, list(SIZES), 2),
    "split_keyword": lambda x: x.split(split_size=2, dim=-1),
    "split_uneven": lambda x: x.split(4, -1),
    "split_rows": lambda x: x.split(2, 0),
    "chunk": lambda x: x.chunk(5, dim=-1),
    "torch_chunk": lambda x: torch.chunk(x, 5, 2),
    "narrow": lambda x: x.narrow(-1, 6, 4),
    "narrow_rows": lambda x: x.narrow(0, 1, 2),
    "slices": lambda x: (x[..., :6], x[..., 6:8], x[:, :, 8:]),
    "slices_of_rows": lambda x: (x[1:, ..., 6:], x[0, :, :6], x[1]),
    "within_a_part": lambda x: x[..., 1:3],
    "across_parts": lambda x: x[..., 4:9],
    "negative": lambda x: (x[..., -4:-2], x[..., -1], x[..., [-2]]),
    "steps": lambda x: x[..., ::2],
    "mask": lambda x: x[x > 0],
    "several": lambda x: x[..., [0, 7]],
    "none": lambda x: x[None, ..., :6],
    "empty": lambda x: x[..., 3:3],
    "heads": lambda x: x.view(ROWS, 4, 5, 2)[..., :-2, :],
    "one_head": lambda x: x.view(ROWS, 4, 5, 2)[..., [-2], :],
    "last_head": lambda x: x.view(ROWS, 4, -1, 2)[:, :, -1],
    "reshape": lambda x: x.reshape((ROWS, 4, 1, 5, 2))[..., 3:4, :],
    "unflatten": lambda x: x.unflatten(-1, (5, 2))[..., 4, :],
    "unbind": lambda x: x.view(ROWS, 4, 5, 2).unbind(2),
    "permute": lambda x: x.view(ROWS, 4, 5, 2).permute(2, 0, 1, 3)[0],
    "transpose": lambda x: x.view(ROWS, 4, 5, 2).transpose(1, 2)[:, 3:],
    "flatten_rows": lambda x: x.view(ROWS * 4, 10).split(list(SIZES), -1),
    "other_heads": lambda x: x.view(ROWS, 4, 2, 5),
    "dtype": lambda x: x.to(torch.float64)[..., :6],
    "double_view": lambda x: x.view(torch.int32)[..., 1],
    "clamp": lambda x: x.clamp(-0.5, 0.5).chunk(5, -1),
    "clamp_tensors": lambda x: x.clamp(min=torch.zeros(10)).split(2, -1),
    "sum": lambda x: (x + 1).sum(-1),
    "matmul": lambda x: x @ torch.ones(10, 2),
    "in_a_list": lambda x: torch.cat([x, x], -1),
    "copy": lambda x: x.clone().contiguous()[..., 6:],
}


def leaves(found):
    return list(found) if isinstance(found, tuple | list) else [found]


@pytest.mark.parametrize("name", TAKEN)
def test_the_same_as_of_a_plain_tensor(name):
    got = leaves(TAKEN[name](joined(parts())))
    wanted = leaves(TAKEN[name](torch.cat(parts(), -1)))
    assert len(got) == len(wanted)
    for a, b in zip(got, wanted, strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert torch.equal(a.as_subclass(torch.Tensor), b)


@pytest.mark.parametrize("name", ["split", "slices", "heads", "permute", "sum"])
def test_gradients(name):
    grads = []
    for join in (joined, lambda given: torch.cat(given, -1)):
        given = parts(grad=True)
        total = sum(t.square().sum() for t in leaves(TAKEN[name](join(given))))
        total.backward()
        grads.append([torch.zeros_like(t) if t.grad is None else t.grad for t in given])
    for a, b in zip(*grads, strict=True):
        assert torch.allclose(a, b)


def test_whole_parts_are_handed_on():
    given = parts()
    for took in (
        joined(given).split(list(SIZES), -1),
        (joined(given)[..., :6], joined(given)[..., 6:8], joined(given)[..., 8:]),
    ):
        assert all(a is b for a, b in zip(took, given, strict=True))
    half = joined([given[0], given[0]]).chunk(2, dim=-1)
    assert half[0] is given[0] and half[1] is given[0]


def test_several_parts_stay_several():
    kv = joined(parts())[..., 6:]
    assert isinstance(kv, PartsOutput)
    assert [tuple(p.shape) for p in kv.chunk(2, -1)] == [(ROWS, 4, 2)] * 2
    heads = joined(parts()).view(ROWS, 4, 5, 2)
    assert [p.shape[2] for p in heads.parts] == [3, 1, 1]


def test_parts_of():
    given = parts()
    nested = joined([joined(given[:2]), given[2]])
    for found in (parts_of(joined(given)), parts_of(nested)):
        assert all(a is b for a, b in zip(found, given, strict=True))
    assert parts_of(given[0]) == (given[0],)


def test_one_part_is_itself():
    (part, *_) = parts()
    assert joined([part]) is part


def test_it_is_a_tensor():
    whole = joined(parts())
    assert whole.shape == (ROWS, 4, 10) and whole.size(-1) == 10
    assert type(whole + 0) is torch.Tensor
    assert "PartsOutput" not in repr(whole + 0)


def test_writing_to_the_whole():
    whole = joined(parts())
    whole.add_(1)
    q, _, _ = whole.split(list(SIZES), -1)
    assert torch.equal(q.as_subclass(torch.Tensor), parts()[0] + 1)


def test_writing_to_a_part():
    whole = joined(parts())
    whole.split(list(SIZES), -1)[0].zero_()
    assert (whole + 0)[..., :6].abs().sum() == 0
    assert torch.equal((whole + 0)[..., 6:8], parts()[1])


def test_writing_to_both():
    whole = joined(parts())
    whole.split(list(SIZES), -1)[0].zero_()
    whole.parts[1].add_(1)
    with torch._C.DisableTorchFunctionSubclass():
        torch.Tensor.add_(whole, 1)
    with pytest.raises(
        RuntimeError, match=r"\[3, 4, 10\] of a fused layer was written"
    ):
        whole.sum()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.split([6, 2], -1),
        lambda x: x.split(0, -1),
        lambda x: x.narrow(-1, 8, 4),
        lambda x: x.view(7, -1),
        lambda x: x[..., 0, 0, 0, 0],
        lambda x: x.permute(0, 0, 1),
    ],
    ids=["sizes", "zero", "narrow", "view", "index", "permute"],
)
def test_torch_says_what_is_wrong(wrong):
    with pytest.raises((RuntimeError, IndexError)) as plain:
        wrong(torch.cat(parts(), -1))
    with pytest.raises(type(plain.value)) as ours:
        wrong(joined(parts()))
    assert str(ours.value) == str(plain.value)


def test_inference():
    with torch.inference_mode():
        whole = joined([t + 1 for t in parts()])
        assert torch.equal(whole[..., 6:8].as_subclass(torch.Tensor), parts()[1] + 1)
