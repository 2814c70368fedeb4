"""Floating-point operations of one instruction: matmuls, FFTs, and the rest.

A multiplication and an addition are two. Complex numbers multiply with four real
multiplications and as many additions.
"""

from __future__ import annotations

import functools
import math
import re
from dataclasses import dataclass

import numpy as np

from profiling._hlo.attributes import PLAIN_STEP
from profiling._hlo.module import Instruction
from profiling._hlo.shape import BITS, Shape

_GEMM = re.compile(r"__cublas\$(?:gemm|lt\$matmul|lt\$groupedMatmul)|__triton_gemm")
_CONV = re.compile(r"__cudnn\$conv")
_ATTENTION = re.compile(r"__cudnn\$fmha")
_CONTRACTING = re.compile(r'"lhs_contracting_dimensions":\[([^\]]*)\]')
_SCORES = re.compile(
    r'"intermediate_tensor_shape":\{[^{}]*?"dimensions":\[([^\]]*)\]', re.DOTALL
)
_COST = re.compile(r'"cost_estimate":\{[^{}]*?"flops":\s*"?(\d+)')
_EXACT = re.compile(r'"operand_precision":\["HIGHEST"')
_MOST_PAIRS = 1 << 22
_FREE = frozenset(
    """
    add-dependency after-all bitcast broadcast constant copy domain get-tuple-element
    iota opt-barrier parameter partition-id replica-id reshape transpose tuple slice
    dynamic-slice dynamic-update-slice concatenate pad gather reverse
    """.split()
)


@dataclass(frozen=True, slots=True)
class Matmul:
    """The products and sums of one instruction.

    Attributes:
        flops: Of one execution.
        dtype: As `Target.peak_flops` takes it; float32 is multiplied as tfloat32,
            XLA's default precision, where the instruction does not ask for more.
        instruction: What says where it comes from.
    """

    flops: float
    dtype: str
    instruction: Instruction


def matmul(instruction: Instruction) -> Matmul | None:
    """Count a matmul's operations.

    Args:
        instruction: Anything but a fusion, whose body has what counts.

    Returns:
        None for what is no matmul, and for custom calls that do not say.
    """
    counted = _count(instruction)
    if not counted:
        return None
    wide = max(
        (o.shape.dtype for o in instruction.operands[:2] if not o.shape.is_tuple),
        key=lambda name: BITS.get(name, 0),
        default="f32",
    )
    times = 4 if wide.startswith("c") else 1
    return Matmul(times * counted, _dtype(instruction, wide), instruction)


def _count(instruction: Instruction) -> float:
    opcode, operands = instruction.opcode, instruction.operands
    if opcode in ("dot", "scaled-dot", "ragged-dot") and operands:
        lhs = operands[0].shape.dims
        dims = instruction.attributes.lhs_contracting or (len(lhs) - 1,)
        return 2.0 * instruction.shape.num_elements * math.prod(lhs[d] for d in dims)
    if opcode == "convolution":
        return _convolution(instruction)
    if opcode == "custom-call":
        return _custom_call(instruction)
    return 0.0


def _custom_call(instruction: Instruction) -> float:
    target = instruction.attributes.custom_call_target
    config = instruction.attributes.backend_config
    result = next(instruction.shape.leaves(), instruction.shape)
    if _GEMM.match(target):
        found = _CONTRACTING.search(config)
        lhs = instruction.operands[0].shape.dims
        dims = _numbers(found[1]) if found else (len(lhs) - 1,)
        return 2.0 * result.num_elements * math.prod(lhs[d] for d in dims)
    if _CONV.match(target):
        return _convolution(instruction)
    if _ATTENTION.match(target) and (found := _SCORES.search(config)):
        # Scores are [batch, heads, queries, keys]: forward multiplies q by k and the
        # scores by v, backward computes scores anew and four gradients.
        scores = math.prod(_numbers(found[1]))
        products = 5 if "Backward" in target else 2
        return 2.0 * products * scores * instruction.operands[0].shape.dims[-1]
    cost = _COST.search(config)  # of a Pallas kernel
    return float(cost[1]) if cost else 0.0


def _convolution(instruction: Instruction) -> float:
    """2 x results x (pairs of kernel and operand elements that each one sums up).

    Example: a TPU multiplies [8, 64, 16] by [8, 16, 32] as a convolution over the
    batch, with a window of 8 that only ever covers one of 8 dilated elements: 2 x 16
    for each of 8 x 64 x 32 results, not 2 x 8 x 16.
    """
    attributes = instruction.attributes
    lhs, kernel = (o.shape for o in instruction.operands[:2])
    result = next(instruction.shape.leaves(), instruction.shape)
    at = attributes.kernel_output_dim
    features = kernel.dims[at] if 0 <= at < len(kernel.dims) else 1
    share = 1.0
    steps = attributes.window_steps or (PLAIN_STEP,) * len(attributes.window)
    for size, step, place in zip(
        attributes.window, steps, attributes.spatial, strict=False
    ):
        inside, outside = lhs.dims[place[0]], result.dims[place[1]]
        share *= _pairs(inside, outside, size, step) / max(1, size * outside)
    return 2.0 * result.num_elements * kernel.num_elements / features * share


@functools.lru_cache(maxsize=4096)
def _pairs(
    inside: int, outside: int, size: int, step: tuple[int, int, int, int, int]
) -> int:
    """Places of a window, over all results of one dim, that hold an operand's element.

    Args:
        inside: Elements of the operand.
        outside: Elements of the result.
        size: Of the window.
        step: Stride, padding before and after, dilation of operand and window.

    Returns:
        At most ``size * outside``.
    """
    stride, low, _, base, dilation = step
    if size * outside > _MOST_PAIRS:
        return size * outside
    at = np.arange(outside)[:, None] * stride + np.arange(size) * dilation - low
    return int(((at >= 0) & (at <= (inside - 1) * base) & (at % base == 0)).sum())


def fft_flops(instruction: Instruction) -> float:
    """Operations of an FFT: 5 n log2 n for each transform of n, as FFTW counts them.

    Args:
        instruction: The fft.

    Returns:
        Of one execution; a real one has half.
    """
    lengths = instruction.attributes.fft_length
    whole = max(instruction.shape, instruction.operands[0].shape, key=_elements)
    flops = 5.0 * whole.num_elements * math.log2(max(2, math.prod(lengths)))
    return flops / 2 if "R" in instruction.attributes.fft_kind else flops


def vector_flops(instruction: Instruction) -> float:
    """Operations outside of the matrix units: one for each element made or summed up.

    Args:
        instruction: Any but a fusion.

    Returns:
        Of one execution; 0 for what only moves data.
    """
    if instruction.opcode in _FREE:
        return 0.0
    if instruction.opcode == "fft":
        return fft_flops(instruction)
    if instruction.opcode in ("reduce", "reduce-window", "scatter", "sort"):
        return float(max((_elements(o.shape) for o in instruction.operands), default=0))
    return float(_elements(instruction.shape))


def _elements(shape: Shape) -> int:
    return shape.num_elements


def _dtype(instruction: Instruction, name: str) -> str:
    if name in ("f64", "c128"):
        return "float64"
    if name in ("f32", "c64"):
        exact = _EXACT.search(instruction.attributes.backend_config)
        return "float32" if exact else "tfloat32"
    for start, found in _DTYPES:
        if name.startswith(start):
            return found
    return "bfloat16"


_DTYPES = (
    ("bf16", "bfloat16"),
    ("f16", "float16"),
    ("f8", "float8"),
    ("f4", "float4"),
    ("s4", "int4"),
    ("u4", "int4"),
    ("s", "int8"),
    ("u", "int8"),
)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", text))
