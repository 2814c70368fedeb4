"""How StableHLO writes the shape and dtype of a tensor."""

from __future__ import annotations

from collections.abc import Iterable

import torch

_ELEMENT = {
    torch.float64: "f64",
    torch.float32: "f32",
    torch.bfloat16: "bf16",
    torch.float16: "f16",
    torch.int64: "i64",
    torch.int32: "i32",
    torch.int16: "i16",
    torch.int8: "i8",
    torch.uint8: "ui8",
}


def tensor_type(shape: Iterable[int], dtype: torch.dtype) -> str:
    """The type of a tensor.

    Args:
        shape: Its sizes.
        dtype: Its dtype.

    Returns:
        StableHLO.

    Raises:
        TypeError: A dtype that has no name here.

    Example:
        >>> tensor_type((4, 16), torch.bfloat16)
        'tensor<4x16xbf16>'
    """
    if dtype not in _ELEMENT:
        raise TypeError(
            f"{dtype} {list(shape)}: one of {', '.join(str(d) for d in _ELEMENT)} is "
            f"needed"
        )
    return f"tensor<{'x'.join((*map(str, shape), _ELEMENT[dtype]))}>"
