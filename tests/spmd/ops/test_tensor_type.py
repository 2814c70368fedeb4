"""Types of tensors in StableHLO."""

import pytest
import torch

from spmd._ops.tensor_type import tensor_type


def test_types():
    assert tensor_type((2, 3), torch.float32) == "tensor<2x3xf32>"
    assert tensor_type((), torch.int64) == "tensor<i64>"


def test_a_dtype_without_a_name():
    with pytest.raises(TypeError, match=r"complex64 \[2\]: one of torch.float64"):
        tensor_type((2,), torch.complex64)
