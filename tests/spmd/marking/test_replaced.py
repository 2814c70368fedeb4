import pytest
import torch

from spmd._marking.replaced import replaced


def test_an_optimizer_that_holds_it_does_not_step():
    old, new = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    replaced(old, name="up.weight", by="up.a.weight, up.b.weight")
    for parameter in (old, new):
        parameter.grad = torch.ones(2)
    torch.optim.SGD([new], lr=1.0).step()
    with pytest.raises(ValueError, match=r"holds up\.weight \[2\], .* has up\.a\.we"):
        torch.optim.SGD([new, old], lr=1.0).step()
    assert old.tolist() == [1, 1]
