"""A decoder block with fused projections, and the step that gives its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

import spmd
from profiling import Schedule
from spmd import Mesh, Plan, Program
from spmd._fused.fused import split_fused
from spmd._fused.rule import Fused

MESH = Mesh({"fsdp": 2, "tensor": 4})
BATCH, SEQ, DIM, HEADS, HEAD = 4, 8, 32, 8, 4
COLUMNS = ("fsdp", None, "tensor")
WHOLE = ("fsdp", None, None)


class Block(nn.Module):
    """Query, key and value in one layer, and gate and up in one."""

    def __init__(self, kv_heads: int) -> None:
        super().__init__()
        self.sizes = [HEADS * HEAD, kv_heads * HEAD, kv_heads * HEAD]
        self.groups = HEADS // kv_heads
        self.norm, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv = nn.Linear(DIM, sum(self.sizes))
        self.o = nn.Linear(HEADS * HEAD, DIM, bias=False)
        self.gate_up = nn.Linear(DIM, 4 * DIM, bias=False)
        self.down = nn.Linear(2 * DIM, DIM)
        self.joined, self.hidden = nn.Identity(), nn.Identity()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            t.view(*t.shape[:2], -1, HEAD).transpose(1, 2)
            for t in self.qkv(self.norm(x)).split(self.sizes, dim=-1)
        )  # [batch, heads, seq, head]
        k, v = (
            t.unsqueeze(2).expand(-1, -1, self.groups, -1, -1).flatten(1, 2)
            for t in (k, v)
        )
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(self.joined(y.transpose(1, 2).flatten(2)))
        gate, up = self.gate_up(self.norm2(x)).chunk(2, dim=-1)
        return x + self.down(self.hidden(F.silu(gate) * up))


def parts(kv_heads: int) -> dict[str, Fused]:
    """What a plan would say of the block."""
    kv = kv_heads * HEAD
    return {
        "qkv": Fused("qkv", (("q", HEADS * HEAD), ("k", kv), ("v", kv))),
        "gate_up": Fused("gate_up", (("gate", 2 * DIM), ("up", 2 * DIM))),
    }


def plan(kv_heads: int, *, fused: bool = False) -> Plan:
    """Megatron's layout; key and value heads that do not divide stay whole."""
    column, vector = ("tensor", "fsdp"), ("tensor",)
    patterns: dict[str, Any] = {
        "norm*.*": (None,),
        "o.weight": ("fsdp", "tensor"),
        "down.weight": ("fsdp", "tensor"),
        "down.bias": (None,),
    }
    outputs: dict[str, Any] = dict.fromkeys(("o", "down", "norm*"), WHOLE)
    outputs |= dict.fromkeys(("joined", "hidden"), COLUMNS)
    splits = kv_heads % MESH.axis_size("tensor") == 0
    for name in ("qkv", "gate_up") if fused else ():
        patterns |= {f"{name}.weight": column}
        outputs |= {name: COLUMNS}
    for name in () if fused else ("qkv.q", "qkv.k", "qkv.v", "gate_up.*"):
        is_split = splits or name in ("qkv.q", "gate_up.*")
        patterns[f"{name}.weight"] = column if is_split else ("tensor", None)
        if name != "gate_up.*":
            patterns[f"{name}.bias"] = vector
        outputs[name] = COLUMNS if is_split else WHOLE
    if fused:
        patterns["qkv.bias"] = vector
    return Plan(patterns, outputs=outputs)


def on_meta(build: Callable[[], nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    with spmd.meta_parameters():
        return build()


def block(kv_heads: int, *, fused: bool = False) -> nn.Module:
    """The block on meta, sharded."""
    model = on_meta(lambda: Block(kv_heads))
    if not fused:
        split_fused(model, parts(kv_heads))
    spmd.shard_module(model, MESH, plan(kv_heads, fused=fused))
    with_gradients(model)
    return model


def with_gradients(model: nn.Module) -> None:
    """Have gradients split as their parameters are."""
    for name, parameter in model.named_parameters():
        known = spmd.get_sharding(parameter)
        if known is not None:
            mesh, spec = known.mesh, known.spec
            spmd.mark_sharding(parameter, mesh, spec, grad=spec, name=name)


def gradients(model: nn.Module) -> Callable[..., dict[str, torch.Tensor]]:
    """A step that gives the loss and every parameter's gradient."""

    def step(x: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = model(x).square().mean()
        loss.backward()
        named = dict(model.named_parameters())
        found = {n: p.grad.clone() for n, p in named.items() if p.grad is not None}
        assert found.keys() == named.keys()
        for parameter in model.parameters():
            parameter.grad = None
        return {"loss": loss, **found}

    return step


def tokens(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def traced(model: nn.Module, x: torch.Tensor, axes: Any = "fsdp") -> Program:
    spec = (axes, *[None] * (x.ndim - 1))
    return spmd.trace(gradients(model), x, model=model, batch_spec=spec)


def check_same(
    program: Program, model: nn.Module, x: torch.Tensor, *, scale: float = 1.0
) -> None:
    """Loss and every gradient of a program are those of a model on the CPU.

    To 2e-6 of the largest gradient, which is some dozens of roundings of 2^-24.
    """
    wanted = {k: v.detach().numpy() for k, v in gradients(model)(x).items()}
    runner = program.runner("cpu")
    runner.put({n: p.detach() for n, p in model.named_parameters()}, partial=True)
    got = runner.step({"x": x})
    size = max(abs(v).max() for k, v in wanted.items() if k != "loss")
    assert np.allclose(got["output.loss"], wanted.pop("loss"), rtol=1e-6)
    for name, value in wanted.items():
        gap = abs(np.asarray(got[f"output.{name}"]) - value).max()
        assert gap <= 2e-6 * scale * size, (name, gap, size)


def moved(schedule: Schedule) -> list[str]:
    """What moves besides weights, gradients and scalars, in words."""
    found = []
    for collective in schedule.collectives:
        for each in collective.moved:
            if each.role in ("activation", "reshard", "input"):
                axes = ",".join(collective.axes)
                found.append(f"{each.phase} {each.module} {collective.kind} {axes}")
    return sorted(found)
