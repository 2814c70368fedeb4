"""Where dims are kept, and where not."""

import pytest
import torch
import torch.nn.functional as F
import transformers
from torch import nn

import spmd
from spmd import PRESERVED, sharding_preserving
from spmd._preserve.preserve import preserving_in_trace
from tests.on_device import sync
from tests.spmd import tracing
from tests.spmd.same_as_torch import graph, random, shapes_of
from tests.spmd.training import adamw, compiled, simple

KEPT, FLAT = [[2, 3, 5]], [[6, 5]]


def product():
    """Shape of the product of a linear layer."""
    return shapes_of(graph(F.linear(random(2, 3, 4).to("xla"), WEIGHT())), "dot")


def WEIGHT():
    return random(5, 4).to("xla")


def test_only_inside():
    assert product() == FLAT
    with sharding_preserving():
        assert product() == KEPT
    assert product() == FLAT


def test_the_innermost_decides():
    with sharding_preserving():
        with sharding_preserving(False):
            assert product() == FLAT
            with sharding_preserving():
                assert product() == KEPT
            assert product() == FLAT
        assert product() == KEPT


def test_nothing_is_left_behind_by_an_error():
    with pytest.raises(KeyError), sharding_preserving():
        raise KeyError
    assert product() == FLAT


def test_traces_do_unless_told_otherwise():
    with preserving_in_trace():
        assert product() == KEPT
    with sharding_preserving(False), preserving_in_trace():
        assert product() == FLAT
        with sharding_preserving():
            assert product() == KEPT


def test_other_devices_are_not_concerned():
    x, weight = random(2, 3, 4), random(5, 4)
    with sharding_preserving():
        found = F.linear(x, weight)
    assert torch.equal(found, F.linear(x, weight))


def test_inference_on_the_device():
    with sharding_preserving(), torch.no_grad():
        assert product() == KEPT


def products_of(program):
    """Number of products with two dims or less, and with more."""
    kinds = ("dot", "dot_general")
    return [len(tracing.locations(program, kind)) for kind in kinds]


def test_a_trace_keeps_dims_forward_and_backward():
    model = tracing.wrapped()
    assert products_of(tracing.traced(model)) == [0, 15]  # three for each linear layer


def test_the_switch_around_a_trace_and_inside_a_step():
    model = tracing.wrapped()
    with sharding_preserving(False):
        around = tracing.traced(model)
    assert products_of(around) == [15, 0]
    own = tracing.step_of(model, None)

    def step(batch):
        with sharding_preserving(False):
            return own(batch)

    inside = spmd.trace(step, tracing.described(), model=model)
    assert products_of(inside) == [15, 0]


def test_a_compiled_step_keeps_dims(monkeypatch):
    from spmd._preserve import products as preserve_products

    shapes, own = [], preserve_products.dot

    def seen(a, b, dims):
        shapes.append(list(a.shape))
        return own(a, b, dims)

    monkeypatch.setattr(preserve_products, "dot", seen)
    model = spmd.to_device(nn.Linear(16, 16))
    training = simple(model, adamw(model))
    step = compiled(training)
    step(training.batches[0][:, None])
    step(training.batches[1][:, None])
    assert shapes == [[8, 1, 16]]


def gradients(model, x, call=None):
    """Loss and gradients, and the graph that computes them."""
    for parameter in model.parameters():
        parameter.grad = None
    if x.requires_grad:
        x = x.detach().requires_grad_()
    loss = (call or model)(x).square().mean()
    loss.backward()
    found = [loss.detach(), *(p.grad for p in model.parameters())]
    text = graph(*found)
    sync()  # rematerialisation leaves traces in the parameters
    return [t.cpu() for t in found], text


def both(model, x, call=None):
    """The graph with dims kept; values and gradients are those without."""
    wanted, _ = gradients(model, x, call)
    with sharding_preserving():
        found, text = gradients(model, x, call)
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6)
    return text


def mlp():
    torch.manual_seed(0)
    layers = nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 8), nn.LayerNorm(8)
    return nn.Sequential(*layers).to("xla")


def test_rematerialised_layers():
    from torch_xla.utils.checkpoint import checkpoint

    model = mlp()
    x = random(4, 3, 8).to("xla").requires_grad_()
    text = both(model, x, lambda x: checkpoint(model, x))
    products = shapes_of(text, "dot")
    assert len(products) == 7  # x has no use for a gradient, one forward is repeated
    assert [12, 16] not in products


def test_scanned_layers(monkeypatch):
    from torch_xla.experimental import scan
    from torch_xla.experimental.scan_layers import scan_layers

    # torch_xla's own needs torchax.
    monkeypatch.setattr(scan, "shard_as", lambda *tensors: tensors)
    model = nn.ModuleList([mlp() for _ in range(3)])
    x = random(4, 3, 8).to("xla").requires_grad_()
    text = both(model, x, lambda x: scan_layers(model, x, is_layer_pure=False))
    products = shapes_of(text, "dot")
    assert [4, 3, 16] in products and [12, 16] not in products
    assert len(products) == 6


def test_functional_calls():
    model = mlp()
    x = random(4, 3, 8).to("xla")

    def call(x):
        given = {n: p * 2 for n, p in model.named_parameters()}
        return torch.func.functional_call(model, given, x)

    assert [4, 3, 16] in shapes_of(both(model, x, call), "dot")


def test_gradients_by_function():
    """torch's own operations are used: it does not know the gradients of ours."""
    model = nn.Sequential(nn.Embedding(8, 8, padding_idx=1), *mlp()).to("xla")
    ids = torch.arange(12).reshape(4, 3).remainder(8).to("xla")
    given = {n: p.detach() for n, p in model.named_parameters()}

    def loss(given):
        found = torch.func.functional_call(model, given, ids)
        return F.cross_entropy(found.flatten(0, 1), ids.flatten())

    wanted = torch.func.grad(loss)(given)
    with sharding_preserving():
        found = torch.func.grad(loss)(given)
    for name, gradient in wanted.items():
        torch.testing.assert_close(found[name].cpu(), gradient.cpu())


def test_autocast():
    model = mlp()
    x = random(4, 3, 8).to("xla")
    with sharding_preserving(), torch.autocast("xla", dtype=torch.bfloat16):
        hidden = model[0](x)
        assert hidden.dtype == torch.bfloat16
        loss = F.cross_entropy(
            hidden.flatten(0, 1), torch.zeros(12, dtype=torch.int64).to("xla")
        )
        assert loss.dtype == torch.float32
        loss.backward()
    text = graph(loss, model[0].weight.grad)
    assert model[0].weight.grad.dtype == torch.float32
    assert shapes_of(text, "dot") == [[4, 3, 16], [16, 8]]
    assert [4, 3, 16] in shapes_of(text, "exponential")


def test_gpt2s_linear_layer():
    layer = transformers.pytorch_utils.Conv1D(16, 8).to("xla")
    original = type(layer).forward
    x = random(4, 3, 8).to("xla")
    text = both(layer, x)
    assert shapes_of(text, "dot") == [[4, 3, 16], [8, 16]]
    assert type(layer).forward is original


def test_the_list_says_what_is_replaced():
    with pytest.raises(TypeError):
        PRESERVED["more"] = ""
    for name in PRESERVED:
        module, _, attribute = name.rpartition(".")
        if module == "torch.nn.functional":
            assert hasattr(F, attribute)
    assert len(PRESERVED) == 9
