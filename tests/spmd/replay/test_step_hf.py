"""Hugging Face models as compiled steps: exact, and without their read on the host."""

from typing import Any

import pytest
import torch
import transformers

import spmd
from fsdpv2 import FSDPv2
from spmd._torch_xla import graph as torch_xla_graph
from tests.spmd.training import MESH, Training, adamw, check_exact, wrapped

CONFIGS: dict[str, Any] = {
    "llama": transformers.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        use_cache=False,
    ),
    "gpt2": transformers.GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, n_positions=32, use_cache=False
    ),
}


def build(kind: str) -> FSDPv2:
    torch.manual_seed(0)
    return wrapped(transformers.AutoModelForCausalLM.from_config(CONFIGS[kind]))


def batch_of(*names: str, seed: int = 0) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(64, (8, 16), generator=generator)
    mask = torch.ones_like(tokens)
    mask[1, 12:] = 0
    positions = torch.arange(16).expand(8, 16).clone()
    positions[2, 8:] -= 8  # two sequences packed into one row
    known = {
        "input_ids": tokens,
        "labels": tokens,
        "attention_mask": mask,
        "position_ids": positions,
    }
    return spmd.shard_batch({n: known[n] for n in names}, MESH)


@pytest.mark.parametrize("kind", CONFIGS)
def test_training_is_exact(kind):
    def make() -> Training:
        model = build(kind)
        optimizer = adamw(model)

        def step(batch: dict[str, torch.Tensor]) -> torch.Tensor:
            loss = model(**batch).loss
            loss.backward()
            model.clip_grad_norm_(1.0)
            optimizer.step()
            optimizer.zero_grad()
            return loss

        data = [batch_of("input_ids", "labels", seed=i) for i in range(3)]
        return Training(model, optimizer, step, data)

    model = check_exact(make).model
    if kind == "gpt2":  # dropout of 0.1 included
        assert model.lm_head.weight is model.transformer.wte.weight


@pytest.mark.parametrize(
    "more",
    [(), ("attention_mask",), ("position_ids",), ("attention_mask", "position_ids")],
)
def test_the_mask_is_made_without_reading_positions(more):
    model = build("llama").eval()

    @torch.no_grad()
    def step(batch: dict[str, torch.Tensor]) -> Any:
        return model(**batch)

    batch = batch_of("input_ids", "labels", *more)
    wanted = step(batch)  # reads, and sees that a row is packed
    wanted = wanted.loss.item(), wanted.logits.cpu()
    compiled = spmd.compile_step(step, model=model)
    found = compiled(batch)
    assert type(found).__name__ == "CausalLMOutputWithPast"
    torch.testing.assert_close(found.logits.cpu(), wanted[1])
    assert found.loss.item() == pytest.approx(wanted[0], rel=1e-6)


def test_the_helper_is_as_before_outside_the_step():
    masking = transformers.masking_utils
    before = masking.is_tracing, masking.find_packed_sequence_indices
    model = build("llama")
    spmd.compile_step(lambda batch: model(**batch).loss, model=model)(
        batch_of("input_ids", "labels")
    )
    assert (masking.is_tracing, masking.find_packed_sequence_indices) == before


def test_a_cache_in_the_result_is_refused():
    model = build("llama").eval()

    @torch.no_grad()
    def step(batch: dict[str, torch.Tensor]) -> Any:
        return model(**batch, use_cache=True)

    compiled = spmd.compile_step(step, model=model)
    text = r"returns output.cache, a DynamicCache that holds tensors"
    with pytest.raises(spmd.CaptureError, match=text):
        compiled(batch_of("input_ids"))


def test_one_tensor_as_two_arguments_is_two_inputs():
    model = build("llama")

    @torch.no_grad()
    def step(input_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return model(input_ids=input_ids, labels=labels).loss

    first, second = (batch_of("input_ids", seed=i)["input_ids"] for i in (0, 1))
    wanted = [step(first, first).item(), step(first, second).item()]
    compiled = spmd.compile_step(step, model=model)
    num = torch_xla_graph.num_compiles()
    found = [compiled(first, first).item(), compiled(first, second).item()]
    assert found == pytest.approx(wanted, rel=1e-6) and found[0] != found[1]
    assert compiled.num_graphs == 1 and torch_xla_graph.num_compiles() <= num + 2
