"""Tell whether two traced graphs are the same program.

torch_xla's own hash of a graph is not enough: it has been seen to differ for graphs
whose HLO is the same (gradients clipped by torch, zeroed at the start of the step),
which would then be compiled once more.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence

import torch

from spmd._torch_xla import graph as torch_xla_graph
from spmd._torch_xla import trace as torch_xla_trace

_NAME = re.compile(r"%[A-Za-z_][\w-]*(?:\.\d+)?|\b[A-Za-z_][\w-]*\.\d+")


def graph_digest(outputs: Sequence[torch.Tensor]) -> str:
    """What a graph computes, and which of its inputs it may reuse, as a digest.

    Args:
        outputs: Traced values; inside `_torch_xla_graph.donating`.

    Returns:
        Equal for graphs whose HLO differs in the numbering of names only.
    """
    text = torch_xla_trace.hlo_text(outputs)
    values = torch_xla_graph.traced_inputs(outputs).values
    donated = [i for i, v in enumerate(values) if torch_xla_graph.is_donated(v)]
    body = renumbered(text.partition("\n")[2])  # the first line is the module's name
    return hashlib.sha256(f"{donated}{body}".encode()).hexdigest()


def renumbered(text: str) -> str:
    """Number the names in HLO text by their first appearance.

    Args:
        text: HLO.

    Returns:
        The same for two texts that name the same things differently.

    Example:
        >>> renumbered("%add.7 = f32[] add(%p0.1, %p0.1)")
        '%0 = f32[] add(%1, %1)'
    """
    numbers: dict[str, str] = {}

    def number(match: re.Match[str]) -> str:
        return numbers.setdefault(match[0].removeprefix("%"), f"%{len(numbers)}")

    return _NAME.sub(number, text)
