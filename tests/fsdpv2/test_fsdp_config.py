import json

import pytest
import torch

from fsdpv2 import FSDPv2, MixedPrecision, WrapPolicy, from_fsdp_config
from tests.fsdpv2.layers import FLAT, stack


def test_the_dictionary_that_transformers_documents():
    config = {
        "fsdp_transformer_layer_cls_to_wrap": ["Layer"],
        "xla": True,
        "xla_fsdp_v2": True,
        "xla_fsdp_grad_ckpt": True,
    }
    options = from_fsdp_config(config)
    assert options == {
        "auto_wrap_policy": WrapPolicy(("Layer",)),
        "remat": "full",
    }
    model = FSDPv2(stack(), FLAT, **options)
    assert all(isinstance(layer, FSDPv2) for layer in model.layers)


def test_what_the_trainer_adds():
    """Its arguments drop ``fsdp_`` and put their defaults in."""
    made = {
        "transformer_layer_cls_to_wrap": ["A"],
        "min_num_params": 0,
        "xla": True,
        "xla_fsdp_v2": True,
        "xla_fsdp_grad_ckpt": False,
        "version": 1,
    }
    assert from_fsdp_config(made) == {"auto_wrap_policy": WrapPolicy(("A",))}


@pytest.mark.parametrize(
    "config, options",
    [
        ({}, {}),
        ({"xla": True, "xla_fsdp_v2": True, "min_num_params": 0}, {}),
        ({"min_num_params": 9}, {"auto_wrap_policy": WrapPolicy((), 9)}),
        (
            {"transformer_layer_cls_to_wrap": "A, B"},
            {"auto_wrap_policy": WrapPolicy(("A", "B"))},
        ),
        ({"activation_checkpointing": True}, {"remat": "full"}),
        ({"fsdp_backward_prefetch": "backward_pre", "use_orig_params": True}, {}),
        (
            {"xla_fsdp_settings": {"compute_dtype": "bfloat16"}},
            {"mixed_precision": MixedPrecision(reduce=torch.bfloat16)},
        ),
        (
            {
                "xla_fsdp_settings": {
                    "compute_dtype": torch.bfloat16,
                    "fp32_reduce_scatter": True,
                }
            },
            {"mixed_precision": MixedPrecision()},
        ),
    ],
)
def test_each_key(config, options, tmp_path):
    assert from_fsdp_config(config) == options
    if "torch" not in repr(config):
        path = tmp_path / "fsdp.json"
        path.write_text(json.dumps(config), encoding="utf-8")
        assert from_fsdp_config(path) == from_fsdp_config(str(path)) == options


@pytest.mark.parametrize(
    "config, text",
    [
        ({"xla_fsdp_v2": False}, "first FSDP, which has a process for each device"),
        ({"offload_params": True}, "offload_params=True is not there: parameters stay"),
        ({"xla_fsdp_grad_chkpt": 1}, "key 'xla_fsdp_grad_chkpt'.*xla_fsdp_grad_ckpt"),
        ({"xla_fsdp_settings": {"dtype": 1}}, r"settings'\]: unknown key 'dtype'"),
        ({"xla_fsdp_settings": {"compute_dtype": "half8"}}, "'half8' is no dtype"),
    ],
)
def test_what_there_is_not(config, text):
    with pytest.raises(ValueError, match=text):
        from_fsdp_config(config)
