"""FSDPv2 computes what the unsharded model does: the loss and every gradient."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh
from tests.fsdpv2.decoder import Decoder
from tests.on_device import piece_shapes, split_by, sync

NUM_STEPS = 5
VOCAB, SEQ, ROWS = 128, 16, 8
LOSS_TOLERANCE = 1e-5
# Of the largest entry of a gradient; the first step sees the very same weights.
FIRST_TOLERANCE, LATER_TOLERANCE = 1e-5, 1e-4
# AdamW divides by the size of each gradient: where one is rounding noise, torch's 1e-8
# would make a step of up to the learning rate out of it, in other directions here and
# there.
EPS = 1e-5
# A gradient whose largest entry is below this is rounding noise, as that of a key's
# bias is, which attention does not depend on.
NOISE = 1e-4


def llama() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=SEQ,
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config)


def gpt2() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=SEQ,
        n_embd=64,
        n_layer=2,
        n_head=4,
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    assert model.lm_head.weight is model.transformer.wte.weight
    return model


@dataclass(frozen=True, slots=True)
class Case:
    make: Callable[[], nn.Module]
    layer: str


CASES = {
    "decoder": Case(Decoder, "Block"),
    "llama": Case(llama, "LlamaDecoderLayer"),
    "gpt2": Case(gpt2, "GPT2Block"),
}
MESHES = [
    Mesh({"fsdp": 8}),
    Mesh({"replica": 2, "fsdp": 4}),
    Mesh({"replica": 4, "fsdp": 2}),
]


@dataclass(frozen=True, slots=True)
class Step:
    loss: torch.Tensor
    gradients: dict[str, torch.Tensor]


def build(name: str) -> nn.Module:
    torch.manual_seed(0)
    return CASES[name].make()


def batches() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shape = (ROWS, SEQ)
    return [torch.randint(VOCAB, shape, generator=generator) for _ in range(NUM_STEPS)]


def train(
    model: nn.Module, prepare: Callable[[torch.Tensor], torch.Tensor]
) -> list[Step]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, eps=EPS)
    steps = []
    for batch in batches():
        ids = prepare(batch)
        optimizer.zero_grad()
        loss = model(input_ids=ids, labels=ids)[0]
        loss.backward()
        gradients = {n: p.grad for n, p in model.named_parameters()}
        optimizer.step()
        sync() if loss.is_xla else None
        steps.append(
            Step(loss.detach().cpu(), {n: g.cpu() for n, g in gradients.items()})
        )
    return steps


@functools.cache
def unsharded(name: str) -> list[Step]:
    return train(build(name), lambda batch: batch)


def check_split(wrapped: FSDPv2) -> None:
    """Every matrix is in pieces, as many as the fsdp axis has devices."""
    ways = wrapped.mesh.axis_size("fsdp")
    num_split = 0
    for name, parameter in wrapped.named_parameters():
        spec = spmd.get_sharding(parameter).spec
        assert split_by(parameter, wrapped.mesh, spec), name
        want = list(parameter.shape)
        if parameter.numel() >= 4096:
            dim = spec.index("fsdp")
            want[dim] //= ways
            num_split += 1
        assert piece_shapes(parameter) == [tuple(want)] * 8, name
    assert num_split >= 9


def check(name: str, mesh: Mesh, policy: str | None) -> None:
    spmd.init()
    want = unsharded(name)
    wrapped = FSDPv2(build(name), mesh, auto_wrap_policy=policy)
    check_split(wrapped)
    spec = (wrapped.batch_axes, None)
    got = train(wrapped, lambda b: spmd.mark_sharding(b.to("xla"), mesh, spec))
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        assert abs(a.loss - b.loss) <= LOSS_TOLERANCE, f"step {i}"
        assert a.gradients.keys() == b.gradients.keys()
        for key, gradient in b.gradients.items():
            worst = (a.gradients[key] - gradient).abs().max()
            scale = gradient.abs().max()
            assert scale > 0
            tolerance = LATER_TOLERANCE if i else FIRST_TOLERANCE
            limit = tolerance * min(1.0, max(scale, NOISE))
            assert worst <= limit, f"step {i}, {key}: {worst} of {scale}"
    check_split(wrapped)


@pytest.mark.parametrize("nested", [False, True], ids=["whole", "layers"])
@pytest.mark.parametrize("mesh", MESHES[:2], ids=repr)
@pytest.mark.parametrize("name", CASES)
def test_loss_and_gradients_are_the_unsharded_models(name, mesh, nested):
    check(name, mesh, CASES[name].layer if nested else None)


@pytest.mark.slow
@pytest.mark.parametrize("nested", [False, True], ids=["whole", "layers"])
@pytest.mark.parametrize("name", CASES)
def test_with_more_replicas_than_shards(name, nested):
    check(name, MESHES[2], CASES[name].layer if nested else None)
