"""What a compiler's ``op_name`` says: phase, module and operation.

Three dialects are read. Our own traces write ``PHASE/MODULE.PATH/operation``, in a loop
behind the calls that XLA inlined, ``scan/call.7/PHASE/MODULE.PATH/operation``. jax
writes nested scopes, ``jit(step)/transpose(jvp(Model))/layer_0/dot_general``, in which
``transpose`` marks what a backward pass computes (jax's `source_info_util.py` and
`interpreters/ad.py`). torch_xla's own runs write ``scope.1/scope.2/aten__mm``, if at
all.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass

from profiling._collectives.collective import Phase


@dataclass(frozen=True, slots=True)
class Scope:
    """Where an operation is from.

    Attributes:
        phase: Empty if the name does not say.
        module: Path of the module, with dots; empty if unknown or outside all.
        operation: The framework's operation.
    """

    phase: Phase = ""
    module: str = ""
    operation: str = ""


_PHASES: dict[str, Phase] = {p: p for p in ("forward", "backward", "update")}
_SCOPE = re.compile(r"(?P<how>\w+)\((?P<of>.*)\)")
_WRAPPERS = frozenset(
    ("jit", "pjit", "jvp", "transpose", "vmap", "remat", "checkpoint", "shard_map")
)
# Segments by which jax writes structure, not the user's modules.
_STRUCTURE = re.compile(
    r"while|body|cond|scan|closed_call|core_call|remat\d*|checkpoint\w*|"
    r"rematted_computation|custom_jvp_call|custom_vjp_call\w*|pjit|shard_map|"
    r"branch_\d+_fun|jit|named_call"
)
# Calls that XLA has inlined: a loop's body, and what it calls.
_INLINED = re.compile(r"(?:scan|call|while|body|closed_call)(?:\.\d+)?")
_COUNTER = re.compile(r"\.\d+$")


@functools.lru_cache(maxsize=65_536)
def parse_op_name(text: str) -> Scope:
    """Read the scopes of an instruction.

    Args:
        text: ``op_name`` of its metadata; of several, which XLA joins by ``;``, the
            first that tells a phase.

    Returns:
        What it says.

    Example:
        >>> parse_op_name("backward/layers.0.ffn/mm")
        Scope(phase='backward', module='layers.0.ffn', operation='mm')
        >>> parse_op_name("scan/call.7/backward/layers.0.ffn/mm")
        Scope(phase='backward', module='layers.0.ffn', operation='mm')
        >>> parse_op_name("jit(step)/transpose(jvp(Net))/layer_0/dot_general")
        Scope(phase='backward', module='Net.layer_0', operation='dot_general')
        >>> parse_op_name("Net.1/layer.3/aten__mm.12")
        Scope(phase='', module='Net.layer', operation='mm')
    """
    found = [_one(part) for part in text.split(";")]
    return next((scope for scope in found if scope.phase), found[0])


def _one(text: str) -> Scope:
    parts = _split(text)
    if not parts:
        return Scope()
    *scopes, last = parts
    operation = last.removeprefix("aten__").removeprefix("xla__")
    if operation != last:
        names = [_COUNTER.sub("", scope) for scope in scopes]
        return Scope("", ".".join(names), _COUNTER.sub("", operation))
    at = next((i for i, s in enumerate(scopes) if not _INLINED.fullmatch(s)), 0)
    if scopes and scopes[at] in _PHASES:
        return Scope(_PHASES[scopes[at]], ".".join(scopes[at + 1 :]), last)
    return _of_jax(scopes, last)


def _of_jax(scopes: list[str], operation: str) -> Scope:
    phase: Phase = ""
    modules: list[str] = []
    for scope in scopes:
        while match := _SCOPE.fullmatch(scope):
            if match["how"] not in _WRAPPERS:
                break
            if match["how"] == "transpose":
                phase = "backward"
            elif match["how"] == "jvp" and not phase:
                phase = "forward"
            scope = "" if match["how"] in ("jit", "pjit") else match["of"]
        modules += [s for s in scope.split("/") if s and not _STRUCTURE.fullmatch(s)]
    return Scope(phase, ".".join(modules), operation)


def _split(text: str) -> list[str]:
    """Parts between slashes that stand in no brackets."""
    parts, depth, start = [], 0, 0
    for i, c in enumerate(text):
        if c == "(":
            depth += 1
        elif c == ")":
            depth -= 1
        elif c == "/" and depth <= 0:
            parts.append(text[start:i])
            start = i + 1
    parts.append(text[start:])
    return [part for part in parts if part]
