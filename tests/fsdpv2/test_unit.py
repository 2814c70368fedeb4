from fsdpv2 import FSDPv2, fully_shard
from fsdpv2._unit import unit_of
from tests.fsdpv2.layers import FLAT, Layer, stack


def test_wrappers_and_sharded_modules_are_units():
    model = FSDPv2(stack(), FLAT, auto_wrap_policy=Layer, remat="full")
    assert unit_of(model).remat == "none" and not unit_of(model).is_nested
    inner = unit_of(model.layers[0])
    assert inner.remat == "full" and inner.is_nested
    assert unit_of(model.layers[0].up) is None
    module = stack()
    fully_shard(module.layers[0])
    fully_shard(module)
    assert unit_of(module.layers[0]).is_nested and not unit_of(module).is_nested
