"""Linear layers, products and attention with their dims kept, against torch."""

import pytest
import torch
import torch.nn.functional as F

import spmd
from spmd._torch_xla import graph as torch_xla_graph
from tests.spmd.same_as_torch import check_same, random, shapes_of

each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])


@each_dtype
@pytest.mark.parametrize("lead", [(4, 3), (2, 3, 2)], ids=str)
def test_linear(lead, dtype):
    x, weight, bias = random(*lead, 8), random(16, 8), random(16)
    # bfloat16: XLA's CPU compiler rounds the sum of the bias's gradient at every term.
    text = check_same(F.linear, x, weight, dtype=dtype)
    assert shapes_of(text, "dot") == [[*lead, 16], [*lead, 8], [16, 8]]
    if dtype is torch.float32:
        check_same(F.linear, x, weight, bias, dtype=dtype)


MATMULS = {
    "batched": ((2, 3, 4, 5), (2, 3, 5, 6), [2, 3, 4, 6]),
    "broadcast": ((2, 1, 4, 5), (3, 5, 6), [2, 3, 4, 6]),
    "by a matrix": ((2, 3, 4, 5), (5, 6), [2, 3, 4, 6]),
    "of a matrix": ((4, 5), (2, 3, 5, 6), [2, 3, 6, 4]),
    "by a vector": ((2, 3, 4, 5), (5,), [2, 3, 4]),
    "of a vector": ((5,), (2, 3, 5, 6), [2, 3, 6]),
    "five dims": ((2, 3, 2, 4, 5), (2, 3, 2, 5, 6), [2, 3, 2, 4, 6]),
}


@each_dtype
@pytest.mark.parametrize("case", MATMULS)
def test_matmul(case, dtype):
    a, b, product = MATMULS[case]
    text = check_same(torch.matmul, random(*a), random(*b, seed=1), dtype=dtype)
    assert shapes_of(text, "dot")[0] == product


@pytest.mark.parametrize("a, b", [((3, 4), (4, 5)), ((2, 3, 4), (2, 4, 5))], ids=str)
def test_products_that_flatten_nothing_are_torchs(a, b):
    text = check_same(torch.matmul, random(*a), random(*b, seed=1))
    with spmd.sharding_preserving(False):
        own = torch.matmul(random(*a).to("xla"), random(*b).to("xla"))
    assert shapes_of(text, "dot")[0] == list(own.shape)


HEADS = (2, 4, 6, 8)  # [batch, heads, seq, head_dim]
MASKS = {
    "none": {},
    "causal": {"is_causal": True},
    "scale": {"is_causal": True, "scale": 0.3},
    "boolean": {"attn_mask": torch.ones(2, 1, 6, 6).tril().bool()},
    "float": {"attn_mask": random(6, 6)},
    "row without keys": {"attn_mask": torch.arange(6)[:, None].expand(6, 6) > 0},
}


def attention(mask, **options):
    def function(q, k, v):
        given = {
            n: m.to(q.device, q.dtype if m.is_floating_point() else m.dtype)
            if isinstance(m, torch.Tensor)
            else m
            for n, m in mask.items()
        }
        return F.scaled_dot_product_attention(q, k, v, **given, **options)

    return function


@each_dtype
@pytest.mark.parametrize("mask", MASKS)
def test_attention(mask, dtype):
    q, k, v = (random(*HEADS, seed=i) for i in range(3))
    text = check_same(attention(MASKS[mask]), q, k, v, dtype=dtype)
    products = shapes_of(text, "dot")
    assert len(products) == 6  # two forward, four backward
    assert all(shape[:2] == [2, 4] for shape in products)


@each_dtype
def test_attention_with_fewer_heads_of_keys_and_values(dtype):
    q, k, v = random(*HEADS), random(2, 2, 6, 8), random(2, 2, 6, 8, seed=1)
    function = attention(MASKS["causal"], enable_gqa=True)
    text = check_same(function, q, k, v, dtype=dtype)
    assert all(shape[:2] == [2, 4] for shape in shapes_of(text, "dot"))


def test_attention_with_dropout():
    """The same numbers are drawn, so that the same are dropped."""
    q, k, v = (random(*HEADS, seed=i).to("xla") for i in range(3))
    found = []
    for on in (True, False):
        torch_xla_graph.set_seed(3)
        with spmd.sharding_preserving(on):
            found.append(F.scaled_dot_product_attention(q, k, v, dropout_p=0.5).cpu())
    ours, theirs = found
    torch.testing.assert_close(ours, theirs, rtol=0.0, atol=1e-6)
    whole = F.scaled_dot_product_attention(q, k, v).cpu()
    assert not torch.allclose(ours, whole, atol=0.1)


@pytest.mark.parametrize(
    "a, b, function",
    [
        ((2, 3, 4), (6, 5), F.linear),
        ((2, 3, 4, 5), (2, 2, 5, 6), torch.matmul),
        ((2, 3, 4, 5), (6, 7), torch.matmul),
    ],
    ids=["linear", "matmul-batch", "matmul-inner"],
)
def test_torch_refuses_what_it_refuses_without(a, b, function):
    a, b = torch.ones(a).to("xla"), torch.ones(b).to("xla")
    messages = []
    for on in (True, False):
        with spmd.sharding_preserving(on), pytest.raises(RuntimeError) as caught:
            function(a, b)
        messages.append(str(caught.value))
    assert messages[0].splitlines()[0] == messages[1].splitlines()[0]


def test_other_dtypes_are_torchs():
    x = random(2, 3, 4).to("xla")
    with spmd.sharding_preserving():
        mixed = F.linear(x, random(5, 4).to("xla").bfloat16())
        counted = torch.arange(24).reshape(2, 3, 4).to("xla") @ torch.ones(
            4, 5, dtype=torch.int64
        ).to("xla")
    assert mixed.shape == (2, 3, 5)
    assert counted.cpu()[0, 0].tolist() == [6] * 5
