"""What is said of an operation to xprof, which reads no HLO for its tables itself.

Names of stats are those of XLA's public `xplane_schema.cc`; categories are the words
that xprof has for the instructions of a GPU.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from profiling._collectives.async_pairs import collective_kind
from profiling._hlo.module import Instruction, Module
from profiling._profile.names import HOLDING
from profiling._profile.xplane import Value
from profiling._timeline.flops import matmul, vector_flops
from profiling._timeline.traffic import traffic

_FUSIONS = {
    "kLoop": "loop fusion",
    "kInput": "input fusion",
    "kOutput": "output fusion",
    "kCustom": "custom fusion",
}
_FORMATS = frozenset(("copy", "transpose", "reshape", "bitcast", "bitcast-convert"))
_TYPE = re.compile(r"[a-z_][a-z0-9_]*")
_OPERANDS = 8


def op_text(instruction: Instruction) -> str:
    """An instruction in one line, in the form of XLA's text.

    Args:
        instruction: Any.

    Returns:
        Result, opcode and operands; of the rest only what a fusion is.
    """
    given = [f"{o.shape} %{o.name}" for o in instruction.operands[:_OPERANDS]]
    if len(instruction.operands) > _OPERANDS:
        given.append(f"... {len(instruction.operands) - _OPERANDS} more")
    kind, rest = instruction.attributes.fusion_kind, ""
    if kind and instruction.called:
        rest = f", kind={kind}, calls=%{instruction.called[0]}"
    return (
        f"%{instruction.name} = {instruction.shape} "
        f"{instruction.opcode}({', '.join(given)}){rest}"
    )


def op_stats(module: Module, instruction: Instruction) -> dict[str, Value]:
    """Category, place, FLOPs and bytes of an instruction.

    Args:
        module: Where it is.
        instruction: Any that an execution runs.

    Returns:
        By xprof's names. FLOPs are those of products and of other arithmetic; bytes
        those of operands and results, of slices and updates only the part that moves.
    """
    metadata = instruction.metadata
    flops = round(sum(map(_flops, _inside(module, instruction))))
    found: dict[str, Value] = {
        "hlo_category": _category(instruction),
        "flops": flops,
        "bytes_accessed": round(_bytes(module, instruction)),
    }
    if metadata.op_name:
        found["tf_op"] = framework_op(metadata.op_name, instruction.opcode)
    if metadata.source_file and metadata.source_line:
        found["source"] = f"{metadata.source_file}:{metadata.source_line}"
    if stack := module.stack(metadata):
        found["source_stack"] = "\n".join(
            f"{frame.file}:{frame.line} {frame.function}" for frame in stack
        )
    return found


def framework_op(op_name: str, opcode: str) -> str:
    """Name and type of a framework's operation, as xprof reads them.

    xprof takes for the name what is before the first colon, and for the type what is
    behind it, if that is a word.

    Args:
        op_name: Of an instruction's metadata; XLA joins several with ``;`` or ``:``.
        opcode: Of the instruction: the type where the name has none.

    Returns:
        The text.

    Example:
        >>> framework_op("forward/0/addmm", "dot")
        'forward/0/addmm:addmm'
        >>> framework_op("(backward/1/mm:forward/mean)", "all-reduce")
        '(backward/1/mm;forward/mean):all_reduce'
    """
    last = op_name.rpartition("/")[2]
    kind = last if _TYPE.fullmatch(last) else opcode.replace("-", "_")
    return f"{op_name.replace(':', ';')}:{kind}"


def _category(instruction: Instruction) -> str:
    if instruction.opcode == "fusion":
        return _FUSIONS.get(instruction.attributes.fusion_kind, "fusion")
    if instruction.opcode in _FORMATS:
        return "data formatting"
    return instruction.opcode


def _inside(module: Module, instruction: Instruction) -> Iterator[Instruction]:
    """The instruction itself, or what a fusion's body does."""
    if instruction.opcode != "fusion":
        yield instruction
        return
    for name in instruction.called:
        for inner in module.computation(name).instructions:
            yield from _inside(module, inner)


def _is_free(instruction: Instruction) -> bool:
    """Whether all of its work is that of others: what it holds, or what began it."""
    opcode = instruction.opcode
    return opcode in HOLDING or opcode.endswith(("-done", "-update"))


def _flops(instruction: Instruction) -> float:
    if _is_free(instruction) or collective_kind(instruction.opcode):
        return 0.0
    product = matmul(instruction)
    return vector_flops(instruction) if product is None else product.flops


def _bytes(module: Module, instruction: Instruction) -> float:
    if _is_free(instruction):
        return 0.0
    if collective_kind(instruction.opcode):
        return instruction.num_operand_bytes + instruction.shape.num_bytes
    return traffic(module, instruction, sectors=False).memory
