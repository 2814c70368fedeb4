"""Products in another than the default precision."""

import pytest
import torch.nn.functional as F
from torch_xla import backends

import spmd
from spmd._torch_xla import seam
from tests.spmd.same_as_torch import graph, random

pytestmark = pytest.mark.filterwarnings("ignore:Setting mat mul precision")


@pytest.fixture(params=["high", "highest"])
def precision(request):
    before = seam._XLAC._xla_get_mat_mul_precision()
    backends.set_mat_mul_precision(request.param)
    yield request.param
    backends.set_mat_mul_precision(before)


def test_products_have_it_forward_and_backward(precision):
    x, weight = random(2, 3, 4), random(5, 4)
    given = x.to("xla").requires_grad_()
    with spmd.sharding_preserving():
        found = F.linear(given, weight.to("xla"))
        found.sum().backward()
    text = graph(found, given.grad)
    assert text.count(f"operand_precision={{{precision},{precision}}}") == 2
    assert (found.detach().cpu() - F.linear(x, weight)).abs().max() < 1e-5
    wanted = weight.sum(0).expand(2, 3, 4)
    assert (given.grad.cpu() - wanted).abs().max() < 1e-5
