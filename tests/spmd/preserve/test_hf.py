import torch
from transformers.models.falcon.modeling_falcon import FalconAttention
from transformers.pytorch_utils import Conv1D

from spmd._preserve.hf import transformers_layers
from tests.spmd.hf_models import CASES


def test_linear_layers_of_gpt2():
    layer, x = Conv1D(6, 4), torch.randn(2, 3, 4)
    wanted = layer(x)
    with transformers_layers():
        torch.testing.assert_close(layer(x), wanted)


def test_heads_of_falcon_in_each_of_its_layouts():
    for name in ("falcon", "falcon-groups", "falcon-heads"):
        model = CASES[name].build(num_hidden_layers=1)
        (attention,) = (m for m in model.modules() if isinstance(m, FalconAttention))
        x = torch.randn(2, 3, attention.query_key_value.weight.shape[0])
        wanted = attention._split_heads(x)
        with transformers_layers():
            found = attention._split_heads(x)
        assert all(map(torch.equal, found, wanted)), name


def test_methods_come_back():
    before = Conv1D.forward, FalconAttention._split_heads
    with transformers_layers():
        assert Conv1D.forward is not before[0]
        assert FalconAttention._split_heads is not before[1]
    assert (Conv1D.forward, FalconAttention._split_heads) == before
