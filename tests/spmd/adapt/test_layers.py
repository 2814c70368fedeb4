"""Layers that no longer flatten give the same."""

from __future__ import annotations

import pytest
import torch

from spmd._adapt.layers import unflatten
from spmd._adapt.rule import Adapted
from tests.spmd.adapted import check_adapted
from tests.spmd.hf_models import CASES, HIDDEN

LAYERS = {f"model.decoder.layers.{i}": Adapted("", "unflatten") for i in range(2)}


@pytest.mark.parametrize("before", [True, False], ids=["before", "behind"])
def test_norms_before_or_behind(before):
    model = CASES["opt"].build(do_layer_norm_before=before)
    check_adapted(model, CASES["opt"].batch(), LAYERS)


def test_with_a_mask():
    batch = CASES["opt"].batch()
    mask = torch.ones_like(batch["input_ids"])
    mask[1, 20:] = 0
    check_adapted(CASES["opt"].build(), {**batch, "attention_mask": mask}, LAYERS)


def test_the_mlp_is_given_what_it_was_flattened_from():
    layer = CASES["opt"].build().get_submodule("model.decoder.layers.0")
    unflatten(layer, name="layer")
    seen = []
    layer.fc1.register_forward_hook(lambda _m, _a, output: seen.append(output.ndim))
    layer(torch.zeros(2, 3, HIDDEN))
    assert seen == [3]


def test_dropout_is_applied_in_training():
    layer = CASES["opt"].build(dropout=0.5).get_submodule("model.decoder.layers.0")
    unflatten(layer, name="layer")
    x = torch.ones(2, 3, HIDDEN)
    assert not torch.equal(layer.train()(x), layer(x))
    assert torch.equal(layer.eval()(x), layer(x))
