"""Milliseconds for a whole training step of a decoder: spmd's replay beside plain jax.

    python benchmarks/bench_decoder.py

Both train the same model from the same weights on the same tokens, with parameters and
batch split over the same devices; losses are compared first. The two take turns, and
the fastest and the middle of the rounds count.
"""

import argparse
import math
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

# Read when torch_xla and jax are imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torch.nn.functional as F
import torch_xla
from jax.sharding import NamedSharding, PartitionSpec
from rich.console import Console
from rich.table import Table
from torch import nn

import spmd
from fsdpv2 import FSDPv2, transformer_auto_wrap_policy

DEVICES = 8  # virtual CPU devices; they share the cores of this machine
HEADS = 8
LR, B1, B2, EPS, DECAY = 1e-3, 0.9, 0.999, 1e-8, 0.01  # AdamW's, torch's defaults
Arrays = dict[str, Any]


class Block(nn.Module):
    def __init__(self, dim: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.RMSNorm(dim, eps=1e-6) for _ in range(2))
        self.q, self.k, self.v, self.o = (linear(dim, dim) for _ in range(4))
        self.gate, self.up = linear(dim, 2 * dim), linear(dim, 2 * dim)
        self.down = linear(2 * dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)  # [batch, seq, dim]
        q, k, v = (
            f(y).unflatten(-1, (HEADS, -1)).transpose(1, 2)  # [batch, heads, seq, .]
            for f in (self.q, self.k, self.v)
        )
        scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
        later = torch.ones(scores.shape[-2:], device=x.device).triu(1) > 0
        odds = scores.masked_fill(later, -1e9).softmax(-1)
        x = x + self.o((odds @ v).transpose(1, 2).flatten(2))
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, *, layers: int, vocab: int, dim: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Block(dim) for _ in range(layers))
        self.norm = nn.RMSNorm(dim, eps=1e-6)
        self.head = linear(dim, vocab)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)  # [batch, seq] -> [batch, seq, dim]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))  # [batch, seq, vocab]


def linear(inputs: int, outputs: int) -> nn.Linear:
    return nn.Linear(inputs, outputs, bias=False)


def torch_training(
    model: nn.Module, tokens: torch.Tensor
) -> tuple[Callable[[torch.Tensor], torch.Tensor], FSDPv2, Any, torch.Tensor]:
    """A step over the devices, what it trains, and its batch."""
    mesh = spmd.Mesh({"fsdp": DEVICES})
    policy = transformer_auto_wrap_policy({"Block"})
    wrapped = FSDPv2(model, mesh, auto_wrap_policy=policy, min_shard_elements=1)
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=LR)

    def step(batch: torch.Tensor) -> torch.Tensor:
        logits = wrapped(batch).flatten(0, 1)
        loss = F.cross_entropy(logits, batch.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step, wrapped, optimizer, spmd.shard_batch(tokens, mesh)


def jax_training(
    model: nn.Module, tokens: torch.Tensor, *, layers: int
) -> tuple[Callable[..., Any], Arrays, jax.Array]:
    """The same step in jax, its state, and its batch.

    The step takes state, batch, rate, and further numbers that the rate is times.
    """
    auto = (jax.sharding.AxisType.Auto,)  # the compiler propagates, as for torch
    mesh = jax.make_mesh((DEVICES,), ("fsdp",), axis_types=auto)
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    whole = NamedSharding(mesh, PartitionSpec())

    def norm(x: Any, weight: Any) -> Any:
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * weight

    def block(p: Arrays, name: str, x: Any) -> Any:
        def dense(part: str, y: Any) -> Any:
            return y @ p[f"{name}.{part}.weight"].T

        def heads(part: str, y: Any) -> Any:
            split = dense(part, y).reshape(*y.shape[:2], HEADS, -1)
            return split.transpose(0, 2, 1, 3)

        y = norm(x, p[f"{name}.norm1.weight"])
        q, k, v = (heads(part, y) for part in "qkv")
        scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
        later = jnp.triu(jnp.ones(scores.shape[-2:]), 1) > 0
        odds = jax.nn.softmax(jnp.where(later, -1e9, scores), -1)
        x = x + dense("o", (odds @ v).transpose(0, 2, 1, 3).reshape(x.shape))
        y = norm(x, p[f"{name}.norm2.weight"])
        x = x + dense("down", jax.nn.silu(dense("gate", y)) * dense("up", y))
        return jax.lax.with_sharding_constraint(x, rows)

    def loss_of(p: Arrays, batch: Any) -> Any:
        x = p["embed.weight"][batch]
        for i in range(layers):
            x = block(p, f"layers.{i}", x)
        logits = norm(x, p["norm.weight"]) @ p["head.weight"].T
        logits = jax.lax.with_sharding_constraint(logits, rows)
        scores = jax.nn.log_softmax(logits)
        return -jnp.take_along_axis(scores, batch[..., None], -1).mean()

    def adamw(p: Any, g: Any, s: Any, rate: Any) -> tuple[Any, Any]:
        count, m, v = s["step"] + 1, s["m"] + (1 - B1) * (g - s["m"]), s["v"] * B2
        v = v + (1 - B2) * g * g
        p = p * (1 - rate * DECAY)
        size = rate / (1 - B1**count)
        root = jnp.sqrt(v) / jnp.sqrt(1 - B2**count) + EPS
        return p - size * m / root, {"step": count, "m": m, "v": v}

    def step(state: Arrays, batch: Any, rate: Any, *more: Any) -> tuple[Arrays, Any]:
        rate = math.prod(more, start=rate)
        loss, gradients = jax.value_and_grad(loss_of)(state["p"], batch)
        new = {
            n: adamw(p, gradients[n], state["s"][n], rate)
            for n, p in state["p"].items()
        }
        return {
            "p": {n: p for n, (p, _) in new.items()},
            "s": {n: s for n, (_, s) in new.items()},
        }, loss

    weights = {n: p.detach().numpy() for n, p in model.named_parameters()}
    state = {
        "p": {n: jax.device_put(w, rows) for n, w in weights.items()},
        "s": {
            n: {
                "step": jax.device_put(np.float32(0), whole),
                "m": jax.device_put(np.zeros_like(w), rows),
                "v": jax.device_put(np.zeros_like(w), rows),
            }
            for n, w in weights.items()
        },
    }
    shardings = jax.tree.map(lambda a: a.sharding, state)
    compiled = jax.jit(step, donate_argnums=0, out_shardings=(shardings, whole))
    return compiled, state, jax.device_put(tokens.numpy().astype(np.int32), rows)


def same_losses(found: list[float], wanted: list[float]) -> None:
    gap = max(abs(a - b) for a, b in zip(found, wanted, strict=True))
    assert gap < 1e-4, f"the two do not train alike: {found} and {wanted}"


def milliseconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return 1e3 * (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description="Time a step beside plain jax.")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--vocab", type=int, default=1024)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--batch", type=int, default=16, help="rows")
    parser.add_argument("--seq", type=int, default=128, help="tokens in a row")
    args = parser.parse_args()

    spmd.init(cpu_devices=DEVICES)
    jax.config.update("jax_num_cpu_devices", DEVICES)
    torch.manual_seed(0)
    model = Decoder(layers=args.layers, vocab=args.vocab, dim=args.dim)
    tokens = torch.randint(args.vocab, (args.batch, args.seq))
    jax_step, state, jax_batch = jax_training(model, tokens, layers=args.layers)
    fn, wrapped, optimizer, batch = torch_training(model, tokens)
    step = spmd.compile_step(fn, model=wrapped, optimizer=optimizer)

    def ours() -> float:
        return step(batch).item()

    def theirs() -> float:
        nonlocal state
        state, loss = jax_step(state, jax_batch, LR)
        return float(loss)

    same_losses([ours() for _ in range(4)], [theirs() for _ in range(4)])
    times: dict[str, list[float]] = {"plain jax": [], "spmd replay": []}
    for _ in range(args.rounds):
        times["spmd replay"].append(milliseconds(ours))
        times["plain jax"].append(milliseconds(theirs))

    table = Table(
        title=f"Training step of {args.layers} layers, vocabulary {args.vocab}, width "
        f"{args.dim}, batch {args.batch} x {args.seq}, {DEVICES} CPU devices;\n"
        f"milliseconds, measured here over {args.rounds} rounds taking turns"
    )
    for column in ("step", "fastest", "median", "fastest to jax", "median to jax"):
        table.add_column(column, justify="left" if column == "step" else "right")
    base = times["plain jax"]
    for name, taken in times.items():
        fast, middle = min(taken), statistics.median(taken)
        ratios = fast / min(base), middle / statistics.median(base)
        table.add_row(
            name, f"{fast:.1f}", f"{middle:.1f}", *(f"{r:.2f}" for r in ratios)
        )
    Console().print(table)
    torch_xla.sync()


if __name__ == "__main__":
    main()
