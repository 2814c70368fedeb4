import pytest
from torch import nn

from fsdpv2._nest import repeated_layers, wrap_children


class Wrapper(nn.Module):
    def __init__(self, module, **options):
        super().__init__()
        self.module, self.options = module, options


OPTIONS = {"mesh": 1, "shard_output": 2, "extra_data_axis": 3, "min_shard_elements": 4}


def root() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.ReLU(), nn.Linear(2, 2)))


def test_chosen_children_are_replaced_in_place():
    model = root()
    inner = model[1][1]
    wrap_children(model, nn.Linear, Wrapper, options=OPTIONS)
    assert isinstance(model[0], Wrapper) and isinstance(model[1][1], Wrapper)
    assert model[1][1].module is inner
    assert isinstance(model[1][0], nn.ReLU)


def test_a_child_in_two_places_is_wrapped_once():
    layer = nn.Linear(2, 2)
    model = nn.Sequential(layer, layer)
    wrap_children(model, nn.Linear, Wrapper, options=OPTIONS)
    assert model[0] is model[1]


def test_a_wrapper_gets_what_it_takes():
    seen = {}

    def named(module, mesh, shard_output=None):
        seen.update(mesh=mesh, shard_output=shard_output)
        return Wrapper(module)

    wrap_children(root(), nn.Linear, named, options=OPTIONS)
    assert seen == {"mesh": 1, "shard_output": 2}


def test_a_wrapper_with_any_keywords_gets_those_of_torch_xla():
    model = root()
    wrap_children(model, nn.Linear, Wrapper, options=OPTIONS)
    assert model[0].options == {"mesh": 1, "shard_output": 2, "extra_data_axis": 3}


def test_a_class_that_is_not_there():
    with pytest.raises(ValueError, match="no submodule of Sequential is a 'Conv2d'"):
        wrap_children(root(), nn.Conv2d, Wrapper, options=OPTIONS)
    with pytest.raises(TypeError, match="give layer classes"):
        wrap_children(root(), 3, Wrapper, options=OPTIONS)


def test_layers_that_repeat():
    model = nn.Sequential(
        nn.ModuleList([nn.Sequential(nn.ReLU(), nn.ReLU()) for _ in range(2)]),
        nn.Sequential(nn.Linear(2, 2), nn.ReLU()),
    )
    assert repeated_layers(model) == (nn.Sequential,)
    assert repeated_layers(nn.Linear(2, 2)) == ()


def test_a_wrapper_that_cannot_do_what_is_asked():
    def plain(module, mesh):
        return Wrapper(module)

    options = {**OPTIONS, "remat": "full", "mixed_precision": None}
    with pytest.raises(ValueError, match=r"remat='full' is for the layers, but"):
        wrap_children(root(), nn.Linear, plain, options=options)
    model = root()
    wrap_children(model, nn.Linear, Wrapper, options=options)
    assert model[0].options["remat"] == "full"
    assert "mixed_precision" not in model[0].options
