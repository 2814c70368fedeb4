"""Split a language model two ways at once by a plan, train it, and count what moves.

    python examples/05_tensor_parallel.py

8 CPU devices make a mesh of 2 x 4. Over "fsdp" the batch and every weight are split, as
with FSDP. Over "tensor" each layer is split as in Megatron-LM: by heads and hidden
features inside, by sequence between (sequence parallelism). The plan is written by hand
and the model knows nothing of it. At the end the step that was trained is compiled for
8 H100, which nobody needs to have, and what it moves is held against the textbook.
"""

import argparse
import copy
import os
from collections import Counter
from functools import partial
from pydoc_data.topics import topics  # the help texts that every Python ships

# torch_xla reads both when it is imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import torch
import torch.nn.functional as F
from torch import nn

import profiling
import spmd

MESH = spmd.Mesh({"fsdp": 2, "tensor": 4})  # 8 devices, neighbours along "tensor"
DIM, HIDDEN, HEADS = 128, 512, 8  # 2 of the heads for each of the 4 along "tensor"
SEQ, BATCH = 128, 16  # bytes of context, rows a step
linear = partial(nn.Linear, bias=False)
TARGET = "h100:1x8"  # what the step is compiled for; see `spmd targets`

WIDE = ("layers.*.q", "layers.*.k", "layers.*.v", "layers.*.up", "head")
NARROW = ("layers.*.o", "layers.*.down")  # their products are added up over "tensor"
COLUMN, ROW = ("tensor", "fsdp"), ("fsdp", "tensor")  # of a weight [out, in]
INSIDE = ("fsdp", None, "tensor")  # of [batch, seq, features]: features are split
BETWEEN = ("fsdp", "tensor", None)  # the sequence is split
PLAN = spmd.Plan(
    {
        **{f"{name}.weight": COLUMN for name in (*WIDE, "embed")},
        **{f"{name}.weight": ROW for name in NARROW},
        "**.norm*.weight": (None,),  # whole on every device
    },
    inputs=dict.fromkeys(NARROW, INSIDE),
    # Logits are split on the vocabulary, and stay so through the loss.
    outputs={
        **dict.fromkeys(WIDE, INSIDE),
        **dict.fromkeys((*NARROW, "embed"), BETWEEN),
    },
)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.q, self.k, self.v, self.o = (linear(DIM, DIM) for _ in range(4))
        self.up, self.down = linear(DIM, HIDDEN), linear(HIDDEN, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm1(x)  # [batch, seq, dim]
        qkv = (f(y).unflatten(-1, (HEADS, -1)) for f in (self.q, self.k, self.v))
        q, k, v = (t.transpose(1, 2) for t in qkv)  # [batch, heads, seq, 16]
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(y.transpose(1, 2).flatten(2))  # [batch, seq, dim] again
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Decoder(nn.Module):  # the causal mask is all it knows of positions
    def __init__(self, layers: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, DIM)  # a row for each byte
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.norm = nn.RMSNorm(DIM)
        self.head = linear(DIM, 256)

    def forward(self, tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens)  # [batch, seq] -> [batch, seq, dim]
        for layer in self.layers:
            x = layer(x)
        logits = self.head(self.norm(x))  # [batch, seq, 256]
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten())


def show(schedule: profiling.Schedule, layers: int) -> None:
    """Print how many arrays move, by axes and role, beside the textbook."""
    # Korthikanti et al., 2022 (sequence parallelism), Zhao et al., 2023 (FSDP)
    pairs, weights = 4 * layers + 2, 6 * layers + 2  # 2: of embedding and head
    textbook: dict[tuple[str, ...], tuple[int, str]] = {
        ("tensor", "activation", "all-gather"): (pairs, "4 a layer + 2"),
        ("tensor", "activation", "reduce-scatter"): (pairs, "4 a layer + 2"),
        ("tensor", "activation", "all-reduce"): (3, "of the loss"),
        ("fsdp", "scalar", "all-reduce"): (2, "of the loss"),
        # A table is needed in the forward pass alone.
        ("fsdp", "weight gather", "all-gather"): (2 * weights - 1, "2 a weight"),
        ("fsdp", "gradient reduction", "reduce-scatter"): (weights, "1 a weight"),
        ("fsdp, tensor", "gradient reduction", "all-reduce"): (2 * layers + 1, "norms"),
    }
    found = Counter[tuple[str, ...]]()
    for c in schedule.collectives:
        for moved in c.moved:  # a collective may carry several arrays
            found[", ".join(c.axes), moved.role, c.kind] += c.num_runs
    line = "{:12} {:18} {:14} {:>8} {:>8}  {}"
    print(f"\nArrays that move in a step, compiled for {TARGET}")
    print(line.format("over", "what", "by", "textbook", "compiled", ""))
    for key in dict.fromkeys((*textbook, *found)):
        number, why = textbook.get(key, (0, "not in the textbook"))
        print(line.format(*key, number, found[key], why))


def main() -> None:
    parser = argparse.ArgumentParser(description="Train a model split two ways.")
    parser.add_argument("--steps", type=int, default=60, help="of training")
    parser.add_argument("--layers", type=int, default=2, help="of the model")
    args = parser.parse_args()
    spmd.init(cpu_devices=8)
    text = torch.tensor(list("\n\n".join(topics.values()).encode()))  # [num_bytes]
    torch.manual_seed(0)
    plain = Decoder(args.layers)
    model = spmd.shard_module(spmd.to_device(copy.deepcopy(plain)), MESH, PLAN)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def train_step(tokens: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        loss = model(tokens, labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    step = spmd.compile_step(train_step, model=model, optimizer=optimizer)
    spmd.visualize(model.get_parameter("layers.0.up.weight"))
    for number in range(args.steps + 1):
        starts = torch.randint(len(text) - SEQ, (BATCH, 1))
        rows = text[starts + torch.arange(SEQ + 1)]  # [batch, seq + 1]
        pair = rows[:, :-1], rows[:, 1:]  # bytes, and those that follow them
        loss = step(*spmd.shard_batch(pair, MESH, ("fsdp", None)))
        if number % 10 == 0:
            whole = f"  unsharded: {plain(*pair).item():.5f}" if number == 0 else ""
            print(f"step: {number:3}  loss: {loss.item():.5f}{whole}", flush=True)
    batch = (torch.empty(BATCH, SEQ, dtype=torch.int64, device="meta"),) * 2
    given = {"model": model, "optimizer": optimizer, "mesh": MESH}
    program = spmd.trace(train_step, *batch, batch_spec=("fsdp", None), **given)
    show(profiling.compile(program, TARGET), args.layers)


if __name__ == "__main__":
    main()
