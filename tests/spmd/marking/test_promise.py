import torch

from spmd._marking.promise import kept, promise, promised


def test_a_promise_lasts_until_it_is_kept():
    tensor = torch.empty(2, device="meta")
    assert promised(tensor) is None
    promise(tensor, lambda index: index)
    assert promised(tensor)((slice(0, 1),)) == (slice(0, 1),)
    kept(tensor)
    assert promised(tensor) is None
    kept(tensor)


def test_a_tensor_with_values_needs_none():
    tensor = torch.empty(2)
    promise(tensor, lambda index: index)
    assert promised(tensor) is None
