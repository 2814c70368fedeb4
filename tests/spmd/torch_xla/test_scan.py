import pytest
import torch

from spmd._torch_xla.scan import Late, loop
from tests.on_device import on_device, sync


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


@pytest.mark.parametrize("reverse", [False, True])
def test_a_body_adds_inputs(reverse):
    late, outside = Late(), torch.full((2,), 10.0).to("xla")

    def body(carry, xs):
        more = late.add(lambda: on_device(4, 2) * 100)
        return [carry[0] + 1], [xs[0] + more + outside]

    xs = on_device(4, 2)
    want = xs.cpu() * 101 + 10
    (last,), (kept,) = loop(
        body, [torch.zeros(2).to("xla")], [xs], reverse=reverse, late=late
    )
    assert len(late.values) == 1
    torch.testing.assert_close(kept.cpu(), want)
    assert last.cpu().tolist() == [4, 4]
    sync()


def test_truth_values_stay_so():
    def body(carry, xs):
        return [carry[0] & xs[0]], [carry[0]]

    start = torch.tensor([True, True, False]).to("xla")
    masks = torch.tensor([[True, True, True], [True, False, True]]).to("xla")
    (last,), (kept,) = loop(body, [start], [masks])
    assert last.cpu().tolist() == [True, False, False]
    assert kept.cpu().tolist() == [[True, True, False], [True, True, False]]


def test_a_body_that_draws_from_the_seed():
    def body(carry, xs):
        return [carry[0] + torch.rand(2, device="xla")], []

    with pytest.raises(ValueError, match=r"draws random values, which all") as caught:
        loop(body, [torch.zeros(2).to("xla")], [on_device(4, 2)])
    sync()  # else the process would end, as below
    del caught


def test_a_body_that_carries_on_something_else():
    def body(carry, xs):
        return [carry[0].double()], []

    match = r"carries \[2\] torch\.float32 in and \[2\] torch"
    with pytest.raises(ValueError, match=match) as caught:
        loop(body, [torch.zeros(2).to("xla")], [on_device(4, 2)])
    sync()
    del caught


@pytest.mark.parametrize("kind", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("wrapped", [False, True])
def test_nothing_of_a_body_that_failed_is_run(kind, wrapped):
    def inner(value):
        made = value * 2
        raise kind(f"of {list(made.shape)}")

    def body(carry, xs):
        if not wrapped:
            return [inner(carry[0])], []
        try:
            return [inner(carry[0])], []
        except kind as first:
            raise ValueError("another") from first

    with pytest.raises((kind, ValueError)) as caught:
        loop(body, [torch.zeros(2).to("xla")], [on_device(4, 2)])
    sync()  # ran what was recorded and still held, and ended the process
    first = caught.value.__cause__ if wrapped else caught.value
    assert str(first) == "of [2]"


def test_nothing_of_a_body_that_cannot_be_recorded_is_run(monkeypatch):
    def refused(*_):
        raise RuntimeError("cannot be lowered")

    monkeypatch.setattr(
        "spmd._torch_xla.scan.xb.computation_from_module_proto", refused
    )
    with pytest.raises(RuntimeError, match="cannot be lowered") as caught:
        loop(
            lambda carry, xs: ([carry[0] * 2], [xs[0] * 3]),
            [torch.zeros(2).to("xla")],
            [on_device(4, 2)],
        )
    sync()  # as above
    del caught
