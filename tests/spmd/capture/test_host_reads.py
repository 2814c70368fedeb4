import inspect
import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import spmd
from spmd import HostReadError
from spmd._capture.host_reads import (
    is_refusing,
    refuse_host_reads,
    without_hf_mask_read,
)
from spmd._torch_xla import graph as torch_xla_graph
from tests.on_device import on_device, sync
from tests.spmd.training import adamw, batches, mlp, simple, wrapped

ITEM = re.escape(".item(), print, or a Python if or while over a tensor")
MASK = "nonzero or a boolean mask, whose size depends on the values"


def compare(x: torch.Tensor) -> None:
    if x.sum() > 1:
        pass


def loop(x: torch.Tensor) -> None:
    while x.sum() > 1:
        x = x / 2


def assign(x: torch.Tensor) -> None:
    x = x * 1
    x[x > 1] = x[x > 1] * 2


READS: dict[str, tuple[Callable[[torch.Tensor], object], str]] = {
    "item": (lambda x: x.sum().item(), ITEM),
    "float": (lambda x: float(x.sum()), ITEM),
    "tolist": (lambda x: x.tolist(), r"\.cpu\(\) or \.to\('cpu'\)"),
    "numpy": (lambda x: x.cpu().numpy(), r"\.cpu\(\) or \.to\('cpu'\)"),
    "if": (compare, ITEM),
    "while": (loop, ITEM),
    "print": (lambda x: print(x.sum()), r"\.item\(\), print|\.cpu\(\)"),
    "print many": (lambda x: print(x), r"\.item\(\), print|\.cpu\(\)"),
    "format": (lambda x: f"{x.sum():.3f}", ITEM),
    "equal": (lambda x: torch.equal(x, x * 2), "torch.equal"),
    "allclose": (lambda x: torch.allclose(x, x * 2), "torch.allclose"),
    "cpu": (lambda x: x.cpu(), r"\.cpu\(\) or \.to\('cpu'\)"),
    "to": (lambda x: x.to("cpu"), r"\.cpu\(\) or \.to\('cpu'\)"),
    "copy_": (lambda x: torch.empty(8, 4).copy_(x), "copy_ into a CPU tensor"),
    "nonzero": (lambda x: x.nonzero(), MASK),
    "where": (lambda x: torch.where(x > 1), MASK),
    "mask": (lambda x: x[x > 1], MASK),
    "rows": (lambda x: x[x[:, 0] > 1], MASK),
    "mask on the host": (lambda x: x[torch.tensor([True] * 8)], MASK),
    "masked_select": (lambda x: x.masked_select(x > 1), MASK),
    "mask assigned": (assign, MASK),
    "unique": (lambda x: x.unique(), MASK),
}


def line_of(read: Callable[..., object]) -> tuple[int, int]:
    """First and last line of a function."""
    lines, first = inspect.getsourcelines(read)
    return first, first + len(lines) - 1


@pytest.mark.parametrize("name", READS)
def test_a_read_is_refused_with_file_and_line(name):
    read, words = READS[name]
    x = on_device(8, 4)
    with refuse_host_reads(), pytest.raises(HostReadError, match=words) as error:
        read(x * 1)
    place = re.search(r" at (\S+):(\d+) in ", str(error.value))
    assert place is not None and place[1] == __file__
    first, last = line_of(read)
    assert first <= int(place[2]) <= last
    assert "return the value from the step and read it afterwards" in str(error.value)


@pytest.mark.parametrize(
    "fine",
    [
        lambda x: x.masked_fill(x > 1, 0.0),
        lambda x: torch.where(x > 1, x, -x),
        lambda x: x[torch.arange(3).to("xla")],
        lambda x: x[:, [0, 2]],
        lambda x: x.to("xla", torch.bfloat16),
        lambda x: torch.arange(4).sum().item(),
        lambda x: torch.tensor([1.0, 2.0])[torch.tensor([True, False])],
        lambda x: x.shape[0],
        lambda x: torch.tensor(2.0).to("xla") * x,
    ],
)
def test_what_reads_nothing_from_the_device_is_fine(fine):
    x = on_device(8, 4)
    with refuse_host_reads():
        fine(x * 1)


def test_reads_work_again_afterwards():
    x = on_device(8, 4)
    with refuse_host_reads(), pytest.raises(HostReadError):
        (x * 1).cpu()
    assert (x * 2).sum().item() == 2 * sum(range(32))


def test_whether_reads_are_refused_now():
    assert not is_refusing()
    with pytest.raises(KeyError), refuse_host_reads():
        assert is_refusing()
        raise KeyError
    assert not is_refusing()


def test_inside_a_compiled_step():
    model = wrapped(mlp())
    training = simple(model, adamw(model))

    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = training.step(batch)
        if loss > 1:  # the read
            loss = loss * 2
        return loss

    compiled = spmd.compile_step(step, model=model, optimizer=training.optimizer)
    with pytest.raises(HostReadError, match=rf"{__file__}:\d+ in step\. The read"):
        compiled(batches(1)[0])


def test_inside_a_backward_hook():
    model = wrapped(mlp())
    training = simple(model, adamw(model))

    def watch(gradient: torch.Tensor) -> None:
        print(gradient.abs().max().item())

    next(model.parameters()).register_hook(watch)
    compiled = spmd.compile_step(
        training.step, model=model, optimizer=training.optimizer
    )
    with pytest.raises(HostReadError, match=rf"{__file__}:\d+ in watch\. The read"):
        compiled(batches(1)[0])


class ReadsInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return gradient if gradient.sum() > 0 else -gradient


def test_inside_a_backward_formula():
    model = wrapped(nn.Linear(16, 16))

    def step(batch: torch.Tensor) -> None:
        ReadsInBackward.apply(model(batch)).sum().backward()

    with pytest.raises(HostReadError, match=rf"{__file__}:\d+ in backward\. The read"):
        spmd.compile_step(step, model=model)(batches(1)[0])


def masking(monkeypatch: pytest.MonkeyPatch) -> Any:
    module: Any = ModuleType("transformers.masking_utils")
    module.is_tracing = lambda *_: False
    module.find_packed_sequence_indices = lambda positions: positions
    monkeypatch.setitem(sys.modules, "transformers.masking_utils", module)
    return module


@pytest.mark.parametrize("packed", [False, True])
def test_the_hugging_face_helper_is_replaced_for_the_time(packed, monkeypatch):
    module = masking(monkeypatch)
    before = dict(vars(module))
    with pytest.raises(KeyError), without_hf_mask_read(packed=packed):
        assert module.is_tracing(1)
        found = module.find_packed_sequence_indices("positions")
        assert found == ("positions" if packed else None)
        raise KeyError
    assert dict(vars(module)) == before


def test_another_version_of_the_helper_is_left_alone(monkeypatch):
    module = masking(monkeypatch)
    del module.find_packed_sequence_indices
    before = dict(vars(module))
    with without_hf_mask_read(packed=False):
        assert dict(vars(module)) == before


def test_without_transformers_nothing_happens(monkeypatch):
    monkeypatch.delitem(sys.modules, "transformers.masking_utils", raising=False)
    with without_hf_mask_read(packed=False):
        assert "transformers.masking_utils" not in sys.modules


def test_nothing_is_executed_by_a_refused_read():
    sync()
    x = on_device(8, 4)
    num = torch_xla_graph.num_compiles()
    with refuse_host_reads(), pytest.raises(HostReadError):
        (x * 3.5).sum().item()
    assert torch_xla_graph.num_compiles() == num
