"""examples/05_tensor_parallel.py: the same training, and the textbook's collectives."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import nn

import spmd
from tests.examples.test_examples import run
from tests.on_device import sync
from tests.profiling.compilers import need


def test_it_trains_and_moves_what_the_textbook_says(tmp_path: Path) -> None:
    need("h100:1x8")
    options = "--steps 10 --layers 1".split()
    result = run("05_tensor_parallel.py", *options, folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    first = re.search(r"step: +0  loss: (\S+)  unsharded: (\S+)\n", result.stdout)
    last = re.search(r"step: +10  loss: (\S+)\n", result.stdout)
    assert first and last
    assert float(first[1]) == pytest.approx(float(first[2]), rel=1e-5)
    assert float(last[1]) < float(first[1]) - 1.0
    row = r"^(fsdp|tensor|fsdp, tensor) +([a-z ]+?) +(all-\w+|\S+-\S+) +(\d+) +(\d+)  "
    rows = re.findall(row, result.stdout, re.MULTILINE)
    assert [(axes, role, int(number)) for axes, role, _, number, _ in rows] == [
        ("tensor", "activation", 6),  # all-gather: four of the layer, embedding, head
        ("tensor", "activation", 6),  # reduce-scatter
        ("tensor", "activation", 3),  # the loss
        ("fsdp", "scalar", 2),
        ("fsdp", "weight gather", 15),
        ("fsdp", "gradient reduction", 8),
        ("fsdp, tensor", "gradient reduction", 3),
    ]
    assert all(textbook == compiled for *_, textbook, compiled in rows)
    assert max(len(line) for line in result.stdout.splitlines()) <= 80
    assert not list(tmp_path.iterdir())


def test_loss_and_every_gradient_are_the_unsharded_models(
    load: Callable[[str], ModuleType],
) -> None:
    example = load("05_tensor_parallel.py")
    torch.manual_seed(0)
    plain = example.Decoder(1)
    tokens, labels = torch.randint(256, (2, 4, example.SEQ))

    def gradients(
        model: nn.Module, *batch: torch.Tensor
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        loss = model(*batch)
        return loss, list(torch.autograd.grad(loss, list(model.parameters())))

    wanted_loss, wanted = gradients(plain, tokens, labels)
    model = spmd.to_device(copy.deepcopy(plain))
    spmd.shard_module(model, example.MESH, example.PLAN)
    batch = spmd.shard_batch((tokens, labels), example.MESH, ("fsdp", None))
    with spmd.sharding_preserving():
        loss, found = gradients(model, *batch)
    sync()
    torch.testing.assert_close(loss.cpu(), wanted_loss)
    names = [name for name, _ in plain.named_parameters()]
    for name, own, whole in zip(names, found, wanted, strict=True):
        gap = (own.cpu() - whole).abs().max()
        assert gap <= 2e-6 * max(1.0, whole.abs().max()), f"{name}: {gap}"
        assert whole.abs().max() > 1e-4, name
