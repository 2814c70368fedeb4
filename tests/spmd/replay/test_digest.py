import torch

import tests.on_device  # noqa: F401 - switches SPMD mode on
from spmd._replay.digest import graph_digest, renumbered


def test_the_same_computation_has_the_same_digest_whatever_came_before():
    x = torch.ones(8, 4).to("xla")
    first = graph_digest([(x * 2).sum()])
    torch.ones(3).to("xla") + 1  # takes numbers
    assert graph_digest([(x * 2).sum()]) == first
    assert graph_digest([(x * 2).mean()]) != first
    assert graph_digest([(torch.ones(4, 4).to("xla") * 2).sum()]) != first


def test_which_operand_is_which_counts():
    one = "%a.1 = f32[] parameter(0)\n%b.2 = f32[] parameter(1)\n%c.3 = sub(%a.1, %b.2)"
    other = one.replace("sub(%a.1, %b.2)", "sub(%b.2, %a.1)")
    assert renumbered(one) == renumbered(one.replace(".1", ".11").replace(".3", ".30"))
    assert renumbered(one) != renumbered(other)


def test_numbers_in_constants_are_no_names():
    assert renumbered("%c.1 = f32[] constant(0.125)") == "%0 = f32[] constant(0.125)"
