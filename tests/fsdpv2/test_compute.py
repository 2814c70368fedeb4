import torch

from fsdpv2 import FSDPv2, MixedPrecision
from fsdpv2._compute import compute, own_parameters
from tests.fsdpv2.layers import FLAT, Layer, stack


def test_without_options_the_module_is_called_as_it_is():
    seen = []

    def call(*args, **kwargs):
        seen.append((args, kwargs))
        return 3

    given = {"remat": "none", "precision": None}
    assert compute(stack(), call, (1,), {"a": 2}, **given) == 3
    assert seen == [((1,), {"a": 2})]


def test_a_unit_inside_has_its_own_parameters():
    model = FSDPv2(stack(), FLAT, auto_wrap_policy=Layer)
    assert list(own_parameters(model)) == ["embed.weight", "head.weight"]
    assert len(list(own_parameters(model.layers[0]))) == 6


def test_parameters_are_cast_while_the_module_runs():
    module = stack()
    seen = []

    def call(ids):
        seen.append({p.dtype for p in module.parameters()})

    precision = MixedPrecision()
    compute(module, call, (None,), {}, remat="none", precision=precision)
    assert seen == [{torch.bfloat16}]
    assert {p.dtype for p in module.parameters()} == {torch.float32}
