"""See what two hosts of 8 H100 would do with Llama 3 8B, on a machine without any.

    python examples/03_inspect_a_pod.py                      # h100:2x8, about a minute
    python examples/03_inspect_a_pod.py --target v5e:4x4     # a TPU slice, 4 layers

The model is built from its sizes alone and never has data. One training step of it is
traced for the mesh, compiled by the target's own compiler, and written as a report:
what each device holds, which tensors move over which axis, and what of that is exposed.
"""

import argparse
import os
import time
from pathlib import Path

# torch_xla reads both when it is imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM

import profiling
import spmd
from fsdpv2 import FSDPv2, transformer_auto_wrap_policy

# github.com/meta-llama/llama-models, Llama 3 8B
SIZES = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
}
LAYERS = 32
# A TPU's compiler takes about ten seconds for each layer of an unrolled step, so the
# default there is a shallow model. A layer does the same in a deep one, but there the
# embedding and the head weigh less.
TPU_LAYERS = 4
SEQ = 2048  # tokens of a row; one row for each device. Attention scores of all layers
# are kept for the backward pass, and they grow with its square


def mesh_for(target: profiling.Target) -> spmd.Mesh:
    """Weights are split inside a host or slice, which are copies of each other."""
    domains = target.num_devices // target.near_devices
    if domains == 1:
        return spmd.Mesh({"fsdp": target.num_devices})
    return spmd.Mesh.hybrid(ici={"fsdp": target.near_devices}, dcn={"replica": domains})


def build(layers: int, mesh: spmd.Mesh) -> nn.Module:
    """Llama without data, each decoder layer wrapped."""
    config = LlamaConfig(
        **SIZES, num_hidden_layers=layers, max_position_embeddings=SEQ, use_cache=False
    )
    with spmd.meta_parameters():  # buffers, such as the rotary table, have values
        model = LlamaForCausalLM(config).to(torch.bfloat16)
    policy = transformer_auto_wrap_policy({"LlamaDecoderLayer"})
    return FSDPv2(model, mesh, auto_wrap_policy=policy)


def trace(layers: int, mesh: spmd.Mesh) -> spmd.Program:
    """One AdamW step as a program."""
    model = build(layers, mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)

    def train_step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = model(**batch).loss  # [batch, seq] tokens to a scalar
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    ids = torch.empty(mesh.size, SEQ, dtype=torch.int64, device="meta")  # [batch, seq]
    return spmd.trace(
        train_step,
        {"input_ids": ids, "labels": ids},
        model=model,
        optimizer=optimizer,
        mesh=mesh,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Inspect Llama 3 8B on a pod.")
    parser.add_argument("--target", default="h100:2x8", help="see `spmd targets`")
    parser.add_argument(
        "--layers", type=int, help=f"default {LAYERS}, TPU {TPU_LAYERS}"
    )
    parser.add_argument("--out", type=Path, default=Path("out"), help="a folder")
    args = parser.parse_args()

    target = profiling.Target.parse(args.target)
    layers = args.layers or (TPU_LAYERS if target.kind == "tpu" else LAYERS)
    mesh = mesh_for(target)
    spmd.init(cpu_devices=1)  # traced here, compiled for the target

    start = time.perf_counter()
    program = trace(layers, mesh)
    print(f"traced {layers} layers for {mesh} in {time.perf_counter() - start:.1f} s")

    args.out.mkdir(parents=True, exist_ok=True)
    name = f"llama3_8b_{layers}_layers_{args.target.replace(':', '_')}"
    path = program.save(args.out / f"{name}.spmd")
    start = time.perf_counter()
    schedule = profiling.compile(program, target)
    print(f"compiled for {target.text} in {time.perf_counter() - start:.1f} s\n")
    schedule.show()
    report = schedule.save_html(args.out / f"{name}.html")
    if layers != LAYERS:
        print(f"\nThis is {layers} of {LAYERS} layers; --layers {LAYERS} is the whole.")
    print(f"\nreport: {report}\nagain:  spmd inspect {path} --target {target.text}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
