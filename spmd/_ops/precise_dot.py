"""A product in another than the default precision, as a module to call."""

from __future__ import annotations

import functools

import torch

from spmd._ops.tensor_type import tensor_type
from spmd._pjrt import client as pjrt

_PRECISION = {"high": "HIGH", "highest": "HIGHEST"}


@functools.lru_cache(maxsize=1024)
def dot_module(
    a: tuple[int, ...],
    b: tuple[int, ...],
    dtype: torch.dtype,
    dims: tuple[tuple[int, ...], ...],
    precision: str,
) -> bytes:
    """The product as HLO.

    Args:
        a: Shape of the first operand.
        b: Shape of the second.
        dtype: Of both.
        dims: What is contracted in `a` and `b`, what is a batch dim in `a` and `b`.
        precision: ``high`` or ``highest``.

    Returns:
        A serialised ``HloModuleProto``.
    """
    contract_a, contract_b, batch_a, batch_b = (list(d) for d in dims)
    shape = [a[d] for d in batch_a]
    shape += [n for d, n in enumerate(a) if d not in {*contract_a, *batch_a}]
    shape += [n for d, n in enumerate(b) if d not in {*contract_b, *batch_b}]
    left, right, product = (tensor_type(s, dtype) for s in (a, b, shape))
    word = _PRECISION[precision]
    return pjrt.hlo_from_stablehlo(f"""
        module @dot_general {{
          func.func public @main(%a: {left}, %b: {right}) -> {product} {{
            %x = stablehlo.dot_general %a, %b,
              batching_dims = {batch_a} x {batch_b},
              contracting_dims = {contract_a} x {contract_b},
              precision = [{word}, {word}] : ({left}, {right}) -> {product}
            return %x : {product}
          }}
        }}""")
