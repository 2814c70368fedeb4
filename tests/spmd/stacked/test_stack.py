import pytest
import torch

from tests.spmd.stacked_model import Model, build, stacked


def test_gradients_that_are_there_are_stacked():
    model = build()
    model(torch.rand(4, 8)).sum().backward()
    model.layers[1].up.bias.grad = None
    want = model.layers[2].up.bias.grad
    model = stacked(model)
    found = model.get_parameter("layers.*.up.bias").grad
    assert torch.equal(found[2], want) and not found[1].any()


# What cannot be stacked


def test_an_optimizer_that_was_made_before():
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stacked(model)
    with pytest.raises(ValueError, match=r"SGD holds layers\.0\..*has layers\.\*\.nor"):
        optimizer.step()


def test_layers_that_share_a_weight():
    model = build()
    model.layers[2].up.weight = model.layers[0].up.weight
    with pytest.raises(ValueError, match=r"layers\.2\.up\.weight .* is tied to lay"):
        stacked(model)


def test_a_weight_that_is_tied_to_one_outside():
    model = build()
    model.layers[0].up.weight = model.embed.weight
    with pytest.raises(ValueError, match=r"tied to embed\.weight; .* Untie them"):
        stacked(model)


def test_a_weight_with_hooks():
    model = build()
    model.layers[1].up.weight.register_hook(lambda gradient: gradient)
    with pytest.raises(ValueError, match=r"layers\.1\.up\.weight .* has hooks of its"):
        stacked(model)


def test_a_weight_with_promised_values():
    from spmd._marking.promise import promise

    with torch.device("meta"):
        model = Model()
    promise(model.layers[0].up.weight, lambda index: torch.zeros(8, 8)[index])
    with pytest.raises(ValueError, match=r"wrap the model first, then materialize"):
        stacked(model)
