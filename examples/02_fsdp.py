"""Train a small language model with FSDPv2 on 8 CPU devices and let it write.

    python examples/02_fsdp.py                      # what `make demo` runs
    python examples/02_fsdp.py --data a.txt b.txt   # read your own text

A Llama-style decoder reads the help texts that every Python ships, byte by byte.
`FSDPv2` splits weights, gradients, optimizer state and batch over the devices; the step
is traced once and replayed. At the end the very same step is compiled for 8 H100, which
nobody needs to have, and a report says what they would do.
"""

import argparse
import json
import math
import os
from pathlib import Path
from pydoc_data.topics import topics

# torch_xla reads both when it is imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import torch
import torch.nn.functional as F
from matplotlib.figure import Figure
from torch import nn

import profiling
import spmd
from fsdpv2 import FSDPv2

DIM, HIDDEN = 128, 352  # width of the model, and inside its gated MLPs
HEADS, SEQ = 4, 128  # attention heads of 32 features; bytes of context
BATCH = 32  # rows a step, 4 on each of 8 devices
LR = 4e-3  # highest learning rate; a tenth of the steps warms up, then a cosine to 10%
EVAL_EVERY = 50  # steps between two validation losses
TEMPERATURE = 0.7  # of the sample; lower plays safer
TARGET = "h100:1x8"  # what the step is inspected for; see `spmd targets`
OUT = Path("runs/02_fsdp")

parser = argparse.ArgumentParser(description="Train a small language model.")
parser.add_argument("--steps", type=int, default=300)
parser.add_argument("--layers", type=int, default=4)
parser.add_argument("--sample", type=int, default=300, help="bytes to write")
parser.add_argument("--data", type=Path, nargs="+", help="text files to read")
args = parser.parse_args()
files = [file.read_bytes() for file in args.data or ()]
parts = files or [topic.encode() for topic in topics.values()]
text = torch.tensor(list(b"\n\n".join(parts)))  # [num_bytes], each in 0..255
if len(text) < 20 * SEQ:
    parser.error(f"--data has {len(text)} bytes; {20 * SEQ} or more are needed")


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
        squares = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.q, self.k, self.v, self.o = squares
        self.gate, self.up = (nn.Linear(DIM, HIDDEN, bias=False) for _ in range(2))
        self.down = nn.Linear(HIDDEN, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)  # [batch, seq, dim]
        qkv = (f(y).unflatten(-1, (HEADS, -1)) for f in (self.q, self.k, self.v))
        q, k, v = (t.transpose(1, 2) for t in qkv)  # [batch, heads, seq, 32]
        y = F.scaled_dot_product_attention(rotate(q), rotate(k), v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))  # [batch, seq, dim] again
        y = self.norm2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def windows(text: torch.Tensor, rows: int) -> torch.Tensor:
    """Random pieces of the text, [rows, seq + 1]."""
    return text[torch.randint(len(text) - SEQ, (rows, 1)) + torch.arange(SEQ + 1)]


def loss_of(batch: torch.Tensor) -> torch.Tensor:
    logits = model(batch[:, :-1])  # [batch, seq, 256]
    return F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def train_step(batch: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    loss = loss_of(batch)  # [batch, seq + 1] to a scalar
    loss.backward()
    grad_norm = model.clip_grad_norm_(1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss, grad_norm


spmd.init(cpu_devices=8)  # virtual devices: they share this machine's cores and memory
torch.manual_seed(0)
layers = [nn.Embedding(256, DIM), *(Block() for _ in range(args.layers))]
layers += [nn.RMSNorm(DIM), nn.Linear(DIM, 256, bias=False)]  # logits of each byte
model = FSDPv2(nn.Sequential(*layers), auto_wrap_policy="Block")
optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.99))
step = spmd.compile_step(train_step, model=model, optimizer=optimizer)
print(f"{len(text):,} bytes of text, {model.mesh}; the first step is compiled")

split = len(text) // 10  # the first tenth only validates
held_out = spmd.shard_batch(windows(text[:split], 4 * BATCH), model.mesh)
validated, log = {}, OUT / "steps.jsonl"
log.unlink(missing_ok=True)  # of a run before this one
with profiling.StepMetrics(tokens=BATCH * SEQ, json_lines=log) as metrics:
    for i in range(1, args.steps + 1):
        cosine = 0.55 + 0.45 * math.cos(math.pi * i / args.steps)
        optimizer.param_groups[0]["lr"] = LR * min(10 * i / args.steps, cosine)
        batch = spmd.shard_batch(windows(text[split:], BATCH), model.mesh)
        metrics.step(*step(batch))  # waits for the devices at every tenth step only
        if i % EVAL_EVERY == 0 or i == args.steps:
            with metrics.paused(), torch.no_grad():
                validated[i] = loss_of(held_out).item()
            print(f"validate step: {i}  loss: {validated[i]:.4f}")

rows = [json.loads(line) for line in log.read_text().splitlines()]
axes = (figure := Figure(layout="constrained")).subplots()
axes.plot([row["step"] for row in rows], [row["loss"] for row in rows], label="train")
axes.plot(*zip(*validated.items(), strict=True), "o-", label="validation")
axes.set(xlabel="step", ylabel="loss (nats per byte)")
axes.legend()
figure.savefig(OUT / "loss.png", dpi=150)
print(f"\nLoss curve: {OUT / 'loss.png'}, every step: {log}")
print(f"\nPrompt:\n{bytes(text[:SEQ]).decode(errors='replace')}\n\nSample:")
context = text[:SEQ].repeat(8, 1)  # [devices, seq]: each device takes a row
for _ in range(args.sample):
    with torch.no_grad():
        logits = model(spmd.shard_batch(context, model.mesh))[:, -1]  # [devices, 256]
    odds = (logits / TEMPERATURE).softmax(-1).cpu()
    context = torch.cat((context[:, 1:], torch.multinomial(odds, 1)), dim=1)
    byte = int(context[0, -1])  # of the first device
    print(chr(byte) if 32 <= byte < 127 or byte == 10 else "·", end="", flush=True)

print("\n")
spmd.sharding_table(model, optimizer).print()
print(f"\nThe same step on {TARGET}:\n")  # compiled for GPUs that are not here
shape = torch.empty(BATCH, SEQ + 1, dtype=torch.int64, device="meta")
program = spmd.trace(train_step, shape, model=model, optimizer=optimizer)
schedule = profiling.compile(program, TARGET)
schedule.show(top=3)
print(f"\nReport: {schedule.save_html(OUT / 'inspect.html')}")
