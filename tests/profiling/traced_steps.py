"""Traced training steps of small models, for any mesh: what the compilers are given."""

from __future__ import annotations

import functools
import warnings
from typing import Any

import jax
import torch
from torch import nn

import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh, Plan, Program
from tests.fsdpv2.decoder import Decoder

VOCAB, SEQ = 128, 16
FSDP = Mesh({"fsdp": 8})
REPLICA = Mesh.hybrid(ici={"fsdp": 8}, dcn={"replica": 2})
TENSOR = Mesh({"fsdp": 4, "tensor": 2})
LAYER = {"decoder": "Block", "llama": "LlamaDecoderLayer", "gpt2": "GPT2Block"}
PLANS = {
    "decoder": Plan(
        {
            "layers.*.attention.q.weight": ("tensor", "fsdp"),
            "layers.*.attention.k.weight": ("tensor", "fsdp"),
            "layers.*.attention.v.weight": ("tensor", "fsdp"),
            "layers.*.attention.o.weight": ("fsdp", "tensor"),
            "layers.*.ffn.gate.weight": ("tensor", "fsdp"),
            "layers.*.ffn.up.weight": ("tensor", "fsdp"),
            "layers.*.ffn.down.weight": ("fsdp", "tensor"),
            "head.weight": ("tensor", "fsdp"),
        },
        outputs={"layers.*": ("fsdp", None, None)},
    ),
    "llama": Plan(
        {
            "model.layers.*.self_attn.q_proj.weight": ("tensor", "fsdp"),
            "model.layers.*.self_attn.k_proj.weight": ("tensor", "fsdp"),
            "model.layers.*.self_attn.v_proj.weight": ("tensor", "fsdp"),
            "model.layers.*.self_attn.o_proj.weight": ("fsdp", "tensor"),
            "model.layers.*.mlp.gate_proj.weight": ("tensor", "fsdp"),
            "model.layers.*.mlp.up_proj.weight": ("tensor", "fsdp"),
            "model.layers.*.mlp.down_proj.weight": ("fsdp", "tensor"),
            "lm_head.weight": ("tensor", "fsdp"),
        },
        outputs={"model.layers.*": ("fsdp", None, None)},
    ),
    "gpt2": Plan(  # its weights are [in, out]
        {
            "transformer.h.*.attn.c_attn.weight": ("fsdp", "tensor"),
            "transformer.h.*.attn.c_proj.weight": ("tensor", "fsdp"),
            "transformer.h.*.mlp.c_fc.weight": ("fsdp", "tensor"),
            "transformer.h.*.mlp.c_proj.weight": ("tensor", "fsdp"),
        },
        outputs={"transformer.h.*": ("fsdp", None, None)},
    ),
}


def model_of(kind: str) -> nn.Module:
    """A model of two layers whose parameters have no memory."""
    with spmd.meta_parameters():
        if kind == "decoder":
            return Decoder(VOCAB, seq=SEQ)
        import transformers

        if kind == "llama":
            config: Any = transformers.LlamaConfig(
                vocab_size=VOCAB,
                hidden_size=64,
                intermediate_size=128,
                num_hidden_layers=2,
                num_attention_heads=4,
                num_key_value_heads=4,
                max_position_embeddings=SEQ,
                use_cache=False,
            )
        else:
            config = transformers.GPT2Config(
                vocab_size=VOCAB,
                n_positions=SEQ,
                n_embd=64,
                n_layer=2,
                n_head=4,
                use_cache=False,
                bos_token_id=0,
                eos_token_id=0,
            )
        return transformers.AutoModelForCausalLM.from_config(config)


@functools.cache
def program_of(
    kind: str, mesh: Mesh, *, clip: bool = True, dtype: str = "float32"
) -> Program:
    """A step of AdamW with clipped gradients; `tensor` splits as `PLANS` says."""
    model = model_of(kind).to(getattr(torch, dtype))
    if "tensor" in mesh.axis_names:
        with warnings.catch_warnings():  # FSDPv2 splits what the plan leaves whole
            warnings.simplefilter("ignore", UserWarning)
            model = spmd.shard_module(model, mesh, PLANS[kind], strict=False)
    wrapped = FSDPv2(model, mesh, min_shard_elements=1, auto_wrap_policy={LAYER[kind]})
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = wrapped(**batch)[0]
        loss.backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(wrapped.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    ids = jax.ShapeDtypeStruct((2 * mesh.size, SEQ), "int64")
    batch = {"input_ids": ids, "labels": ids}
    return spmd.trace(step, batch, model=wrapped, optimizer=optimizer, mesh=mesh)


def hugging_face(kind: str) -> nn.Module:
    """Two layers of a further family of models."""
    import transformers

    classes: dict[str, Any] = {
        "qwen3": transformers.Qwen3Config,
        "mixtral": transformers.MixtralConfig,
        "qwen3_moe": transformers.Qwen3MoeConfig,
    }
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    if kind == "qwen3_moe":
        experts = {"num_experts": 4, "num_experts_per_tok": 2}
        experts |= {"moe_intermediate_size": 32, "decoder_sparse_step": 1}
    config = classes[kind](
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        max_position_embeddings=SEQ,
        use_cache=False,
        **({} if kind == "qwen3" else experts),
    )
    config._experts_implementation = "batched_mm"
    with spmd.meta_parameters():
        return transformers.AutoModelForCausalLM.from_config(config)


def plain_program(model: nn.Module, layer: str = "", **options: Any) -> Program:
    """A step of AdamW under FSDP; `options` are FSDPv2's."""
    names = {type(m).__name__ for m in model.modules()}
    layer = layer or next(n for n in names if n.endswith("DecoderLayer"))
    wrapped = FSDPv2(
        model, FSDP, min_shard_elements=1, auto_wrap_policy={layer}, **options
    )
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=1e-3)

    def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = wrapped(**batch)[0]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    ids = jax.ShapeDtypeStruct((2 * FSDP.size, SEQ), "int64")
    batch = {"input_ids": ids, "labels": ids}
    return spmd.trace(step, batch, model=wrapped, optimizer=optimizer, mesh=FSDP)
