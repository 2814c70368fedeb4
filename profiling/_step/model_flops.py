"""FLOPs that a model needs, of those that its step does: without recomputation.

Two rules. What says that it is a copy of a product that ran before is none of the
model's: XLA's rematerialisation names its clones ``.remat`` after the original (which
it drops where a clone replaces it everywhere), jax names a checkpoint's second forward
``rematted_computation``. And the gradient of a product ``C = A B`` takes two of the
same size, ``dA = dC B'`` and ``dB = A' dC``: what a step's backward multiplies beyond
twice its forward has been computed before. The second rule finds a checkpoint that
nothing marks, as torch's; it is applied to the step as a whole, since XLA merges
products of several layers' parts and then names one of them.

Where a step has no phases (inference, names lost) every product counts. Where gradients
are missing (frozen weights), recomputation that nothing marks counts up to that room.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from profiling._hlo.module import Instruction
from profiling._hlo.op_name import parse_op_name
from profiling._timeline.flops import Matmul

_CLONE = ".remat"
_CHECKPOINT = "rematted_computation"


def model_flops(done: Iterable[tuple[Instruction, Matmul, float]]) -> tuple[float, str]:
    """Count the model's own.

    Args:
        done: In the order of the schedule, the instruction that ran, what it
            multiplied, and how often.

    Returns:
        FLOPs of one step, and the dtype that most of all products are in
        (``"bfloat16"`` without any).
    """
    phases: dict[str, float] = defaultdict(float)
    dtypes: dict[str, float] = defaultdict(float)
    originals: dict[str, Instruction] = {}
    for instruction, matmul, times in done:
        flops = matmul.flops * times
        dtypes[matmul.dtype] += flops
        op_name = matmul.instruction.metadata.op_name
        original = originals.setdefault(
            instruction.name.partition(_CLONE)[0], instruction
        )
        if original is not instruction or _CHECKPOINT in op_name:
            continue
        phase = parse_op_name(op_name).phase
        phases[phase or parse_op_name(instruction.metadata.op_name).phase] += flops
    backward = phases.pop("backward", 0.0)
    forward = phases.get("forward", 0.0)
    kept = min(backward, 2 * forward) if forward else backward
    dtype = max(dtypes, key=lambda name: dtypes[name], default="bfloat16")
    return sum(phases.values()) + kept, dtype
