"""Small Hugging Face models from configs, each with a batch that fits it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

VOCAB, HIDDEN, INNER, HEADS = 128, 64, 96, 8
ROWS, SEQ = 4, 32

_DECODER = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": 4,
    "max_position_embeddings": 2 * SEQ,
    "use_cache": False,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ENCODER = {
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
_GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": HIDDEN,
    "n_head": HEADS,
    "n_positions": 2 * SEQ,
    "resid_pdrop": 0.0,
    "embd_pdrop": 0.0,
    "attn_pdrop": 0.0,
    "use_cache": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_OPT = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "word_embed_proj_dim": HIDDEN,
    "ffn_dim": INNER,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 2 * SEQ,
    "dropout": 0.0,
    "use_cache": False,
}
_FALCON = {
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_attention_heads": HEADS,
    "ffn_hidden_size": INNER,
    "attention_dropout": 0.0,
    "hidden_dropout": 0.0,
    "use_cache": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_IMAGES = {"image_size": 32, "patch_size": 8, "num_labels": 8}


@dataclass(frozen=True, slots=True)
class Case:
    """A class of transformers, its config, and what it is given.

    Attributes:
        model: Name of the class.
        config: Name of the config's class.
        options: For the config.
        images: Takes images instead of tokens.
    """

    model: str
    config: str
    options: Mapping[str, Any]
    images: bool = False

    def make_config(self, **changes: Any) -> Any:
        """The config, with two layers unless said otherwise."""
        given = {"num_hidden_layers": 2, **self.options, **changes}
        return getattr(transformers, self.config)(**given)

    def build(self, **changes: Any) -> nn.Module:
        """The model with the same values every time."""
        torch.manual_seed(0)
        make: Callable[[Any], nn.Module] = getattr(transformers, self.model)
        model = make(self.make_config(**changes))
        with torch.no_grad():
            for parameter in model.parameters():  # biases and norms too
                parameter.add_(0.02 * torch.randn(parameter.shape))
        return model

    def batch(self) -> dict[str, torch.Tensor]:
        """Input and labels, the same every time."""
        generator = torch.Generator().manual_seed(1)
        if self.images:
            pixels = torch.randn(ROWS, 3, 32, 32, generator=generator)
            labels = torch.randint(8, (ROWS,), generator=generator)
            return {"pixel_values": pixels, "labels": labels}
        ids = torch.randint(3, VOCAB, (ROWS, SEQ), generator=generator)
        return {"input_ids": ids, "labels": ids.clone()}


def _decoder(name: str, **options: Any) -> Case:
    config = {"Gemma3": "Gemma3TextConfig"}.get(name, f"{name}Config")
    return Case(f"{name}ForCausalLM", config, {**_DECODER, **options})


def _falcon(**options: Any) -> Case:
    return Case("FalconForCausalLM", "FalconConfig", {**_FALCON, **options})


CASES = {
    "llama": _decoder("Llama"),
    "llama-few-kv": _decoder("Llama", num_key_value_heads=2),
    "qwen3": _decoder("Qwen3", head_dim=8),
    "gemma3": _decoder("Gemma3", head_dim=8, sliding_window=8),
    "mistral": _decoder("Mistral", sliding_window=8),
    "phi3": _decoder("Phi3"),
    "mixtral": _decoder("Mixtral", num_local_experts=4, num_experts_per_tok=2),
    "qwen3-moe": _decoder(
        "Qwen3Moe",
        num_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        head_dim=8,
    ),
    "gpt2": Case("GPT2LMHeadModel", "GPT2Config", _GPT2),
    "opt": Case("OPTForCausalLM", "OPTConfig", _OPT),
    "falcon": _falcon(),
    "falcon-groups": _falcon(new_decoder_architecture=True, num_kv_heads=4),
    "falcon-heads": _falcon(
        multi_query=False, alibi=True, bias=True, parallel_attn=False
    ),
    "bert": Case(
        "BertForMaskedLM",
        "BertConfig",
        {**_ENCODER, "vocab_size": VOCAB, "max_position_embeddings": 2 * SEQ},
    ),
    "vit": Case(
        "ViTForImageClassification", "ViTConfig", {**_ENCODER, **_IMAGES}, True
    ),
}
