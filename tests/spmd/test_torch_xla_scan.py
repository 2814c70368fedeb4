import torch

from spmd._torch_xla_scan import loop
from tests.on_device import on_device


def test_a_loop_carries_and_keeps():
    def body(carry, xs):
        total = carry[0] + xs[0]
        return [total], [total * 2]

    xs = on_device(4, 2)
    start = torch.zeros(2).to("xla")
    want = xs.cpu().cumsum(0)
    (last,), (kept,) = loop(body, [start], [xs])
    torch.testing.assert_close(last.cpu(), want[-1])
    torch.testing.assert_close(kept.cpu(), want * 2)
    (last,), (kept,) = loop(body, [start], [xs], reverse=True)
    torch.testing.assert_close(last.cpu(), want[-1])
    torch.testing.assert_close(kept.cpu(), xs.cpu().flip(0).cumsum(0).flip(0) * 2)
