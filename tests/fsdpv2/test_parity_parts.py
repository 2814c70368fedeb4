"""Fused projections and experts inside layers that are computed again, or scanned."""

from collections import Counter

import numpy as np
import pytest
import torch
import transformers

import profiling
import spmd
from fsdpv2 import FSDPv2
from spmd import Mesh
from spmd._plans.module import take_apart
from spmd._stacked.layers import layers_of, per_layer
from tests.on_device import sync
from tests.spmd.fused_block import moved, on_meta

VOCAB, LAYERS = 64, 2
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "use_cache": False,
}
KINDS = {
    "phi3": (
        transformers.Phi3Config,
        {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 0},
        Mesh({"fsdp": 2, "tensor": 4}),
        {"self_attn.o_proj all-reduce tensor", "mlp.down_proj all-reduce tensor"},
    ),
    "mixtral": (
        transformers.MixtralConfig,
        {"num_local_experts": 4},
        Mesh({"fsdp": 2, "expert": 2, "tensor": 2}),
        {
            "self_attn.o_proj all-reduce tensor",
            "mlp.experts all-gather expert",
            "mlp.experts all-to-all expert",
            "mlp.experts reduce-scatter expert",
            "mlp.experts all-reduce tensor",
        },
    ),
}
OPTIONS = {"remat": {"remat": "full"}, "scan": {"scan_layers": True}}


def build(kind):
    make, more, _, _ = KINDS[kind]
    return transformers.AutoModelForCausalLM.from_config(make(**SIZES, **more))


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_and_what_it_moves(kind, options):
    sync()
    _, _, mesh, wanted = KINDS[kind]
    model = on_meta(lambda: build(kind))
    plan = spmd.auto_plan(model, mesh)
    spmd.shard_module(model, mesh, plan)
    wrapped = FSDPv2(model, mesh, min_shard_elements=1, **OPTIONS[options])
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=1.0)
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(VOCAB, (4, 16), generator=generator)

    def step(ids):
        loss = wrapped(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    program = spmd.trace(step, ids, model=wrapped, optimizer=optimizer)
    torch.manual_seed(0)
    plain = build(kind)
    take_apart(plain, plan)
    loss = plain(input_ids=ids, labels=ids).loss
    loss.backward()
    runner = program.runner("cpu")
    given = {n: p.detach() for n, p in plain.named_parameters()}
    names = {n: layers_of(wrapped, n) or [n] for n, _ in wrapped.named_parameters()}
    for name, layers in names.items():
        parts = [given[n] for n in layers]
        value = torch.stack(parts) if name != layers[0] else parts[0]
        runner.put({name: value}, partial=True)
    got = runner.step({"ids": ids}, learning_rate=1.0)
    assert np.allclose(got["output"], loss.item(), rtol=1e-6)
    size = max(p.grad.abs().max().item() for p in plain.parameters())
    after = {n: torch.from_numpy(np.array(runner.get(n))) for n in names}
    after = dict(per_layer(wrapped, after.items()))
    for name, parameter in plain.named_parameters():
        wanted_after = parameter.detach() - parameter.grad
        gap = (after[name] - wanted_after).abs().max()
        assert gap <= 2e-6 * size, name  # a step of SGD, less than rounding of weights

    found = Counter(moved(profiling.compile(program, "h100:1x8")))
    layers = 1 if options == "scan" else LAYERS
    first = "*" if options == "scan" else "0"
    forward = {
        m.partition("layers.")[2].partition(".")[2]: n
        for m, n in found.items()
        if m.startswith(f"forward model.layers.{first}.")
    }
    assert set(forward) == wanted and set(forward.values()) == {1}
    others = {m for m in found if m.startswith("forward model.layers.1.")}
    assert len(others) == len(wanted) * (layers - 1)
