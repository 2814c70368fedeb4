"""A Llama of Hugging Face from its config alone: planned, trained, and seen on a pod.

    python examples/06_hf_llama.py                       # h100:2x8, under a minute
    python examples/06_hf_llama.py --target h100:1x8 --html report.html

Nothing is downloaded. `spmd.auto_plan` reads in a config how layers are split over
"tensor" and everything over "fsdp", and prints it before there is a model. FSDPv2 adds
what a training needs. A small model takes three steps on 8 CPU devices. Then the same
lines plan, wrap and trace one with the sizes of Llama 3 8B, which is never in memory,
and the target's own compiler says what each of its devices would hold and send.
"""

import argparse
import os
from collections.abc import Callable
from pathlib import Path
from pydoc_data.topics import topics  # the help texts that every Python ships
from typing import Any

# torch_xla reads both when it is imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

import fsdpv2
import profiling
import spmd

TENSOR = 4  # devices that share each layer; they stay inside a host
SMALL: dict[str, Any] = {
    "vocab_size": 256,  # bytes
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 2,
}
# github.com/meta-llama/llama-models, Llama 3 8B; of its 32 layers what --layers says
LARGE: dict[str, Any] = {
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}
Batch = dict[str, torch.Tensor]


def build(config: LlamaConfig, mesh: spmd.Mesh, plan: spmd.Plan) -> fsdpv2.FSDPv2:
    """A model that has specs and no memory yet."""
    with spmd.meta_parameters():
        model = AutoModelForCausalLM.from_config(config)
    spmd.shard_module(model, mesh, plan)
    return fsdpv2.FSDPv2(
        model,
        mesh,
        auto_wrap_policy={"LlamaDecoderLayer"},
        mixed_precision=torch.bfloat16,  # computes so; parameters stay float32
    )


def train_step(
    model: fsdpv2.FSDPv2, optimizer: torch.optim.Optimizer
) -> Callable[[Batch], torch.Tensor]:
    def step(batch: Batch) -> torch.Tensor:
        loss = model(**batch).loss  # [batch, seq] tokens to a scalar
        loss.backward()
        model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    return step


def train(sequence_parallel: bool) -> None:
    """Print the plan of the small model, and the loss of its first three steps."""
    mesh = spmd.Mesh({"fsdp": -1, "tensor": TENSOR})
    config = LlamaConfig(**SMALL, max_position_embeddings=128, use_cache=False)
    plan = spmd.auto_plan(config, mesh, sequence_parallel=sequence_parallel)
    plan.explain()

    torch.manual_seed(0)
    model = build(config, mesh, plan)
    fsdpv2.materialize(model)  # each piece where it is used
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = spmd.compile_step(
        train_step(model, optimizer), model=model, optimizer=optimizer
    )
    text = torch.tensor(list("\n\n".join(topics.values()).encode()))  # [num_bytes]
    print()
    for number in range(1, 4):
        starts = torch.randint(len(text) - 128, (16, 1))
        ids = text[starts + torch.arange(128)]  # [batch, seq]
        batch = spmd.shard_batch({"input_ids": ids, "labels": ids}, mesh)
        print(f"step: {number}  loss: {step(batch).item():.5f}", flush=True)


def inspect(
    target: profiling.Target, layers: int, **options: Any
) -> profiling.Schedule:
    """Compile a step of the large model for devices that are not here."""
    hosts = target.num_devices // target.near_devices  # or slices
    ici = {"fsdp": target.near_devices // TENSOR, "tensor": TENSOR}
    mesh = spmd.Mesh.hybrid(ici=ici, dcn={"replica": hosts})
    config = LlamaConfig(
        **LARGE, num_hidden_layers=layers, max_position_embeddings=2048, use_cache=False
    )
    model = build(config, mesh, spmd.auto_plan(config, mesh, **options))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    ids = torch.empty(mesh.size, 2048, dtype=torch.int64, device="meta")
    program = spmd.trace(
        train_step(model, optimizer),
        {"input_ids": ids, "labels": ids},
        model=model,
        optimizer=optimizer,
        mesh=mesh,
    )
    return profiling.compile(program, target)


def main() -> int:
    parser = argparse.ArgumentParser(description="Plan, train and inspect a Llama.")
    parser.add_argument("--target", default="h100:2x8", help="see `spmd targets`")
    parser.add_argument("--layers", type=int, default=2, help="of 32, on the target")
    text = "split the sequence over the tensor axis between layers"
    parser.add_argument("--sequence-parallel", action="store_true", help=text)
    parser.add_argument("--html", type=Path, help="write the report as a page")
    args = parser.parse_args()
    target = profiling.Target.parse(args.target)
    if target.near_devices % TENSOR:
        parser.error(f"--target {args.target}: {TENSOR} devices share a layer")
    spmd.init(cpu_devices=8)
    train(args.sequence_parallel)
    print(
        f"\n{args.layers} of the 32 layers of Llama 3 8B on {args.target}\n", flush=True
    )
    schedule = inspect(target, args.layers, sequence_parallel=args.sequence_parallel)
    schedule.show(top=5)
    if args.html is not None:
        print(f"\nreport: {schedule.save_html(args.html)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
