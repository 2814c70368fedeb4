"""Train a small language model with FSDPv2 on 8 CPU devices and let it write.

    python examples/02_fsdp.py                      # what `make demo` runs
    python examples/02_fsdp.py --data a.txt b.txt   # read your own text

A Llama-style decoder reads the help texts that every Python ships, byte by byte. One
line shards it, `FSDPv2(...)`: parameters, gradients and optimizer state are split over
the devices, and so is the batch. The rest is an ordinary PyTorch step, which is traced
once and replayed. At the end the very same step is compiled for 8 H100, which nobody
needs to have, and a report says what they would do.
"""

import argparse
import csv
import math
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any

# torch_xla reads both when it is imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import torch
import torch.nn.functional as F
import torch_xla.debug.metrics as metrics
from matplotlib.figure import Figure
from torch import nn

import profiling
import spmd
from fsdpv2 import FSDPv2, transformer_auto_wrap_policy

DEVICES = 8  # virtual CPU devices; they share the cores and memory of this machine
DIM, HIDDEN = 128, 352  # width of the model, and inside its gated MLPs
HEADS = 4  # attention heads of 32 features
SEQ = 128  # bytes of context
BATCH = 32  # rows a step, 4 on each device
LR = 4e-3  # highest learning rate; a tenth of the steps warms up, then a cosine to 10%
CLIP = 1.0  # longest gradient
EVAL_EVERY = 50  # steps between two validation losses
TEMPERATURE = 0.7  # of the sample; lower plays safer
TARGET = "h100:1x8"  # what the step is inspected for; see `spmd targets`

Step = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

linear = partial(nn.Linear, bias=False)


def rotate(x: torch.Tensor) -> torch.Tensor:
    """Turn pairs of features by an angle that grows with the position."""
    a, b = x.chunk(2, dim=-1)  # [batch, heads, seq, 16] each
    frequencies = 10000 ** -torch.arange(0, 1, 2 * HEADS / DIM, device=x.device)  # [16]
    angles = torch.arange(SEQ, device=x.device)[:, None] * frequencies  # [seq, 16]
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.q, self.k, self.v, self.o = (linear(DIM, DIM) for _ in range(4))
        self.gate, self.up = linear(DIM, HIDDEN), linear(DIM, HIDDEN)
        self.down = linear(HIDDEN, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)  # [batch, seq, dim]
        qkv = (f(y).unflatten(-1, (HEADS, -1)) for f in (self.q, self.k, self.v))
        q, k, v = (t.transpose(1, 2) for t in qkv)  # [batch, heads, seq, 32]
        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))  # [batch, seq, dim] again
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Decoder(nn.Module):
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, DIM)  # a row for each byte
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(DIM)
        self.head = linear(DIM, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)  # [batch, seq] -> [batch, seq, dim]
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))  # [batch, seq, 256]


def windows(text: torch.Tensor, rows: int) -> torch.Tensor:
    """Random pieces of the text, [rows, seq + 1]."""
    starts = torch.randint(len(text) - SEQ, (rows, 1))
    return text[starts + torch.arange(SEQ + 1)]


def loss_of(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])  # [batch, seq, 256]
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def make_step(model: FSDPv2, optimizer: torch.optim.Optimizer) -> Step:
    def train_step(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        loss = loss_of(model, batch)  # [batch, seq + 1] to a scalar
        loss.backward()
        grad_norm = model.clip_grad_norm_(CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss, grad_norm

    return train_step


def train(
    model: FSDPv2, optimizer: torch.optim.Optimizer, text: torch.Tensor, *, steps: int
) -> Iterator[dict[str, Any]]:
    """Yield the figures of each step; the first tenth of the text only validates."""
    split = len(text) // 10
    held_out = spmd.shard_batch(windows(text[:split], 4 * BATCH), model.mesh)
    train_step = make_step(model, optimizer)
    compiled = spmd.compile_step(train_step, model=model, optimizer=optimizer)
    for step in range(1, steps + 1):
        start = time.perf_counter()
        cosine = 0.55 + 0.45 * math.cos(math.pi * step / steps)
        lr = LR * min(10 * step / steps, cosine)
        optimizer.param_groups[0]["lr"] = lr
        batch = spmd.shard_batch(windows(text[split:], BATCH), model.mesh)
        loss, grad_norm = compiled(batch)  # the first call traces and compiles
        row = {"step": step, "loss": loss.item(), "grad_norm": grad_norm.item()}
        row |= {"lr": lr, "tps": BATCH * SEQ / (time.perf_counter() - start)}
        row["compiles"] = metrics.counter_value("UncachedCompile")  # programs so far
        with torch.no_grad():
            due = step % EVAL_EVERY == 0 or step == steps
            row["val_loss"] = loss_of(model, held_out).item() if due else None
        yield row


def inspect(model: FSDPv2, optimizer: torch.optim.Optimizer, out: Path) -> None:
    """Compile the step that was trained for GPUs that are not here."""
    batch = torch.empty(BATCH, SEQ + 1, dtype=torch.int64, device="meta")
    program = spmd.trace(
        make_step(model, optimizer), batch, model=model, optimizer=optimizer
    )
    try:
        schedule = profiling.compile(program, TARGET)
    except profiling.CompileError as error:
        print(f"not inspected for {TARGET}: {error}")
        return
    schedule.show(top=3)
    print(f"\nReport: {schedule.save_html(out / 'inspect.html')}")


@torch.no_grad()
def generate(model: FSDPv2, prompt: torch.Tensor, num: int) -> Iterator[str]:
    """Continue a prompt of [seq] bytes; one length of context, so one program."""
    context = prompt.repeat(DEVICES, 1)  # [devices, seq]: each device takes a row
    for _ in range(num):
        logits = model(spmd.shard_batch(context, model.mesh))[:, -1]  # [devices, 256]
        odds = (logits / TEMPERATURE).softmax(-1).cpu()
        chosen = torch.multinomial(odds, 1)  # [devices, 1]
        context = torch.cat((context[:, 1:], chosen), dim=1)
        byte = int(chosen[0])  # of the first device
        yield chr(byte) if 32 <= byte < 127 or byte == 10 else "·"  # 10: end of line


def print_step(row: dict[str, Any]) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    gib = pages * os.sysconf("SC_PAGE_SIZE") / 2**30
    line = (
        "step: {step:3}  loss: {loss:.4f}  grad_norm: {grad_norm:.3f}  tps: {tps:6,.0f}"
    )
    print(line.format(**row), f" memory: {gib:.2f}GiB host RSS", flush=True)
    if row["val_loss"] is not None:
        print("validate step: {step:3}  loss: {val_loss:.4f}".format(**row))


def save_curve(rows: list[dict[str, Any]], out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    with (out / "loss.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.set(xlabel="step", ylabel="loss (nats per byte)")
    axes.plot([r["step"] for r in rows], [r["loss"] for r in rows], label="training")
    validated = [(r["step"], r["val_loss"]) for r in rows if r["val_loss"] is not None]
    axes.plot(*zip(*validated, strict=True), "o-", label="validation")
    axes.legend()
    figure.savefig(out / "loss.png", dpi=150)
    print(f"\nLoss curve: {out / 'loss.png'}, {out / 'loss.csv'}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a small language model.")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, default=300, help="bytes to write")
    parser.add_argument("--data", type=Path, nargs="+", help="text files to read")
    parser.add_argument("--out", type=Path, default=Path("runs/02_fsdp"))
    args = parser.parse_args()
    files = [f.read_bytes() for f in args.data or ()]
    parts = files or [topic.encode() for topic in topics.values()]
    text = torch.tensor(list(b"\n\n".join(parts)))  # [num_bytes], each in 0..255
    if len(text) < 20 * SEQ:
        parser.error(f"--data has {len(text)} bytes; {20 * SEQ} or more are needed")

    spmd.init(cpu_devices=DEVICES)
    torch.manual_seed(args.seed)
    mesh = spmd.Mesh({"fsdp": -1})  # one axis over all devices
    policy = transformer_auto_wrap_policy({"Block"})
    model = FSDPv2(Decoder(args.layers), mesh, auto_wrap_policy=policy)
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99))

    size = sum(p.numel() for p in model.parameters())
    print(f"{size:,} parameters, {len(text):,} bytes of text, {mesh}")
    print("The first step takes longer: it is traced and compiled, later ones are not.")
    rows = []
    for row in train(model, optimizer, text, steps=args.steps):
        print_step(row)
        rows.append(row)
    save_curve(rows, args.out)

    prompt = text[:SEQ]  # from the part that only validates
    print(f"\nPrompt:\n{bytes(prompt).decode(errors='replace')}\n\nSample:")
    for letter in generate(model, prompt, args.sample):
        print(letter, end="", flush=True)
    print("\n")
    spmd.sharding_table(model, optimizer).print()
    print(f"\nThe same step on {TARGET}:\n")
    inspect(model, optimizer, args.out)


if __name__ == "__main__":
    main()
