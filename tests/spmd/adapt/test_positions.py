"""An encoder that pads its positions gives the same."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from spmd._adapt.adapt import adapt
from spmd._adapt.positions import num_positions
from spmd._adapt.rule import Adapted
from tests.spmd.adapted import check_adapted
from tests.spmd.hf_models import CASES

FOUR = {"vit": Adapted("", "pad_positions", 4)}


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("multiple", [1, 4, 32])
def test_loss_and_gradients(attention, multiple):
    model = CASES["vit"].build()
    model.set_attn_implementation(attention)
    found = {"vit": Adapted("", "pad_positions", multiple)}
    check_adapted(model, CASES["vit"].batch(), found)


def test_layers_see_a_multiple_and_the_user_does_not():
    model = CASES["vit"].build()
    adapt(model, FOUR)
    seen = []
    for layer in model.vit.layers:
        layer.register_forward_hook(lambda _m, _a, output: seen.append(output.shape))
    out = model.vit(CASES["vit"].batch()["pixel_values"])
    assert seen == [(4, 20, 64), (4, 20, 64)]
    assert out.last_hidden_state.shape == (4, 17, 64)


def test_another_length_than_the_tables():
    """10 x 10 patches, for which the table is interpolated."""
    pixels = torch.randn(2, 3, 80, 80)
    model = CASES["vit"].build().eval()
    wanted = model(pixels, interpolate_pos_encoding=True).logits
    adapt(model, FOUR)
    got = model(pixels, interpolate_pos_encoding=True).logits
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-5)


def test_a_mask_of_the_users_own():
    model = CASES["vit"].build()
    adapt(model, FOUR)
    layer = model.vit.layers[0]
    model.vit.embeddings(CASES["vit"].batch()["pixel_values"])
    with pytest.raises(
        ValueError, match=r"vit: its sequence is padded .* takes no att"
    ):
        layer(torch.zeros(1, 20, 64), torch.zeros(1, 1, 20, 20))


def test_which_it_knows():
    model = CASES["vit"].build()
    assert num_positions(model.vit) == 17
    assert num_positions(model) is None
    assert num_positions(nn.Linear(2, 2)) is None
    assert num_positions(CASES["bert"].build().bert) is None
