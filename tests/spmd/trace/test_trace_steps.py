"""What may be in a traced step."""

import pytest
import torch
from torch import nn

import spmd
from fsdpv2 import FSDPv2
from spmd._program.stablehlo import module_text
from tests.spmd import tracing
from tests.spmd.tracing import (
    DIM,
    MESH,
    adamw,
    described,
    step_of,
    wrapped,
)


def names(program, role):
    return [v.name for v in program.inputs if v.role == role]


OPTIMIZERS = {
    "SGD": {"momentum": 0.9},
    "Adam": {},
    "Muon": {},
    "RMSprop": {},
    "RAdam": {},
    "NAdam": {},
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_optimizers(kind):
    model = wrapped()
    parameters = [p for p in model.parameters() if p.ndim == 2]
    optimizer = getattr(torch.optim, kind)(parameters, lr=0.1, **OPTIMIZERS[kind])
    program = spmd.trace(
        step_of(model, optimizer), described(), model=model, optimizer=optimizer
    )
    state = names(program, "optimizer")
    updated = {v.name for v in program.outputs if v.updates is not None}
    assert set(state) <= updated
    assert len(state) % 5 == 0 and state
    assert names(program, "learning_rate")
    assert not optimizer.state


def test_scanned_layers(monkeypatch):
    from torch_xla.experimental import scan
    from torch_xla.experimental.scan_layers import scan_layers

    # torch_xla's own needs torchax.
    monkeypatch.setattr(scan, "shard_as", lambda *tensors: tensors)

    class Scanned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(tracing.Mlp() for _ in range(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scan_layers(self.layers, x, is_layer_pure=True)

    with spmd.meta_parameters():
        model = FSDPv2(Scanned(), MESH, min_shard_elements=1)
    optimizer = adamw(model)

    def step(x):
        loss = model(x).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x = torch.ones(8, DIM)
    program = spmd.trace(step, x, model=model, optimizer=optimizer)
    assert len(names(program, "parameter")) == 9
    assert max(a.size for a in program.constants.values()) == 1
    assert "stablehlo.while" in module_text(program.module)
    places = {
        (n.partition("/")[0], file) for n, file, _ in tracing.locations(program, "dot")
    }
    assert places == {("forward", __file__), ("backward", __file__)}
