"""Gradients that are added up inside each host first: the same values, in two sums."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

import spmd
from fsdpv2 import FSDPv2, MixedPrecision
from spmd import Mesh, Plan
from spmd._marking.mark import Annotation
from spmd._ops.host_sums import Rows, hosts_last, parted, rows_of
from spmd._program.stablehlo import module_text
from tests.on_device import sync

HOSTS = Mesh.hybrid(ici={"fsdp": 2, "tensor": 2}, dcn={"replica": 2})
ONE_HOST = Mesh(HOSTS.sizes)
ROWS, SEQ, DIM = 8, 4, 16
BETWEEN = (HOSTS.data_axes, "tensor", None)  # [batch, seq, dim]


class Model(nn.Module):
    """Every way in which a parameter meets all positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.position = nn.Parameter(torch.randn(SEQ, DIM))
        self.norms = nn.ModuleList((nn.LayerNorm(DIM), nn.RMSNorm(DIM)))
        self.scale = nn.Parameter(torch.tensor(0.5))
        self.gate = nn.Parameter(torch.randn(1, 1, DIM))
        self.down = nn.Linear(DIM, 4)
        self.up = nn.Linear(4, DIM, bias=False)
        self.mixed = nn.Linear(DIM, 32)
        self.between, self.inside = nn.Identity(), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.between(x + self.position)
        for norm in self.norms:
            x = self.between(norm(x) * self.gate)
        x = x + self.scale * self.up(self.down(x).tanh())
        return self.inside(self.mixed(x)).square().mean(-1)


def plan_on(mesh: Mesh) -> Plan:
    return Plan(
        {
            "mixed.weight": ("tensor", "fsdp"),
            "mixed.bias": ("tensor",),
            "down.weight": (None, "fsdp"),
            "up.weight": ("fsdp", None),
            "down.bias": (None,),
            "position": (None, None),
            "scale": (),
            "gate": (None, None, None),
            "norms.**": (None,),
        },
        outputs={
            "between": BETWEEN,
            "inside": (mesh.data_axes, None, "tensor"),
        },
    )


def values() -> torch.Tensor:
    return torch.randn(ROWS, SEQ, DIM, generator=torch.Generator().manual_seed(1))


def step_of(model: nn.Module):
    def step(x: torch.Tensor) -> torch.Tensor:
        loss = model(x).mean()
        loss.backward()
        return loss

    return step


def wrapped(mesh: Mesh, model: nn.Module | None = None, **options) -> FSDPv2:
    model = Model() if model is None else model
    plan = plan_on(mesh)
    return FSDPv2(model, mesh, plan=plan, min_shard_elements=1024, **options)


@functools.cache
def alone() -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss and gradients on the CPU."""
    model = Model()
    loss = step_of(model)(values())
    return loss.detach(), {n: p.grad for n, p in model.named_parameters()}


def text(mesh: Mesh, **options) -> str:
    with spmd.meta_parameters():
        model = wrapped(mesh, **options)
    x = torch.empty(ROWS, SEQ, DIM, device="meta")
    return module_text(spmd.trace(step_of(model), x, model=model, mesh=mesh).module)


@pytest.mark.parametrize("options", [{}, {"remat": "full"}], ids=["plain", "remat"])
def test_loss_and_every_gradient_are_the_whole_models(options):
    model = wrapped(HOSTS, **options)
    step = spmd.compile_step(step_of(model), model=model)
    found = step(spmd.shard_batch(values(), HOSTS))
    sync()
    loss, gradients = alone()
    torch.testing.assert_close(found.cpu(), loss)
    named = {n: p.grad.cpu() for n, p in model.module.named_parameters()}
    assert named.keys() == gradients.keys()
    for name, gradient in gradients.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(named[name], gradient, msg=name)


def test_in_mixed_precision_they_are_as_on_one_host():
    def gradients(mesh: Mesh) -> dict[str, torch.Tensor]:
        model = wrapped(mesh, mixed_precision=MixedPrecision())
        spmd.compile_step(step_of(model), model=model)(spmd.shard_batch(values(), mesh))
        sync()
        return {n: p.grad.cpu() for n, p in model.module.named_parameters()}

    expected = gradients(ONE_HOST)
    for name, gradient in gradients(HOSTS).items():
        worst = (gradient - expected[name]).abs().max()
        assert worst <= 0.01 * expected[name].abs().max(), name


@pytest.mark.parametrize("precision", [None, MixedPrecision()], ids=["f32", "bf16"])
def test_each_such_gradient_is_two_sums(precision):
    """Of norms 3, the gate's two uses, scale, positions, 2 biases, 2 products."""
    found = text(HOSTS, mixed_precision=precision)
    assert found.count("optimization_barrier") == 3 + 2 + 1 + 1 + 2 + 2


def test_not_where_splits_are_not_preserved():
    with spmd.sharding_preserving(False):
        assert "optimization_barrier" not in text(HOSTS)


def test_not_on_a_mesh_that_declares_no_hosts():
    assert "optimization_barrier" not in text(ONE_HOST)


@pytest.mark.parametrize(
    ("mesh", "axes", "ways"),
    [
        (HOSTS, ("replica", "fsdp"), 2),
        (HOSTS, ("fsdp",), 1),
        (ONE_HOST, ("replica", "fsdp"), 1),
        (Mesh({"fsdp": 4, "replica": 2}, dcn_axes="replica"), ("fsdp", "replica"), 8),
        (Mesh({"replica": 1, "fsdp": 8}, dcn_axes="replica"), ("replica", "fsdp"), 1),
    ],
)
def test_ways_that_keep_hosts_apart(mesh, axes, ways):
    assert Rows(mesh, axes).ways == ways


def test_rows_are_split_as_the_batch_is_or_by_the_data_axes():
    def annotated(*spec: object) -> torch.Tensor:
        meta = torch.empty((8,) * len(spec), device="meta")
        return spmd.mark_sharding(meta, HOSTS, spec)

    weight, plain = annotated("tensor", None), torch.zeros(8)
    assert rows_of([weight], [annotated("replica", None)]) == Rows(HOSTS, ("replica",))
    assert rows_of([weight], [plain]) == Rows(HOSTS, ("replica", "fsdp"))
    assert rows_of([plain], [plain]) is None


@pytest.mark.parametrize(
    ("spec", "rows", "is_parted"),
    [
        (("fsdp", None), 8, True),
        ((None, None), 8, True),
        (("tensor", "fsdp"), 8, False),  # tensor cannot split rows too
        ((("fsdp", "tensor"), None), 8, False),
        ((None, None), 7, False),  # a host would have half a row
    ],
)
def test_products_are_parted_where_an_axis_may_split_positions(spec, rows, is_parted):
    x = torch.ones(rows, 4, 16)
    with hosts_last(Rows(HOSTS, ("replica", "fsdp"))):
        found = parted(Annotation(HOSTS, spec), x, x)
    assert (found is not None) == is_parted
    assert parted(Annotation(HOSTS, spec), x, x) is None  # outside
    if found is not None:
        assert [t.shape for t in found] == [(2, rows // 2, 4, 16)] * 2


@pytest.mark.parametrize(
    "wide", [(4, 1, 3), (1, 5, 3), (3,), (1, 1, 1), (), (4, 5, 1)], ids=str
)
def test_sums_are_torchs(wide):
    """Whichever dims were broadcast; in a forward nothing is replaced."""

    def gradient(device: str) -> torch.Tensor:
        generator = torch.Generator().manual_seed(0)
        x = torch.randn(4, 5, 3, generator=generator).to(device)
        w = torch.randn(wide, generator=generator).to(device).requires_grad_()
        (x * w).square().sum().backward()
        assert w.grad is not None
        return w.grad.cpu()

    with hosts_last(Rows(HOSTS, ("replica", "fsdp"))):
        torch.testing.assert_close(gradient("xla"), gradient("cpu"))


def test_nothing_is_left_behind_by_an_error():
    with pytest.raises(KeyError), hosts_last(Rows(HOSTS, ("replica", "fsdp"))):
        raise KeyError
    assert "optimization_barrier" not in text(ONE_HOST)
