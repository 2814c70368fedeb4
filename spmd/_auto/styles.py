"""Which matrices are split by columns and which by rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from spmd._auto.heads import attention_scope, is_projection
from spmd._auto.model import Matrix, Model
from spmd._names.pattern import matching

Style: TypeAlias = Literal["column", "row", "whole"]

_WORDS: dict[str, Style] = {
    "colwise": "column",
    "colwise_rep": "column",
    "colwise_gather_output": "column",
    "packed_colwise": "column",
    "rowwise": "row",
    "rowwise_rep": "row",
    "rowwise_split_input": "row",
    "packed_rowwise": "row",
    "replicate": "whole",
    "replicated_with_grad_allreduce": "whole",
    "sequence_parallel": "whole",
    "mla_kv_a_proj": "whole",
    "all_reduce": "whole",
    "local_params": "whole",
    "moe_tp_experts": "whole",
    "moe_identity_expert": "whole",
}
"""Hugging Face's words in a `tp_plan`, for matrices."""


@dataclass(frozen=True, slots=True)
class Styled:
    """How one matrix is split, and who says so.

    Attributes:
        style: By output features, by input features, or not at all.
        source: Such as ``tp_plan of LlamaForCausalLM``.
    """

    style: Style
    source: str


def styles(model: Model) -> tuple[dict[str, Styled], tuple[str, ...]]:
    """Say how the matrices inside the repeated layers are split.

    Args:
        model: The model.

    Returns:
        By name; matrices that are not in it stay whole. And what is to be said of it.
    """
    found, notes = _planned(model)
    named = set(found)
    for block, own in model.blocks.items():
        if not named.intersection(own):
            found.update(_recognised(model, block))
    return found, notes


def _planned(model: Model) -> tuple[dict[str, Styled], tuple[str, ...]]:
    """What the model's own plan says."""
    plan: Any = getattr(model.root, "tp_plan", None) or {}
    source = f"tp_plan of {model.kind}"
    found: dict[str, Styled] = {}
    unknown: dict[str, str] = {}
    for pattern, word in plan.items():
        for name in matching(pattern, tuple(model.matrices)):
            if word not in _WORDS:
                unknown.setdefault(str(word), name)
            found[name] = Styled(_WORDS.get(word, "whole"), source)
    notes = tuple(
        f"{source}: the word {word!r} for {name} is not known here; such matrices stay "
        f"whole over the tensor axis"
        for word, name in unknown.items()
    )
    return found, notes


def _recognised(model: Model, block: str) -> Iterator[tuple[str, Styled]]:
    """Attention by the names of its projections, the rest by what fits together."""
    matrices = [model.matrices[name] for name in model.blocks[block]]
    projections = [m for m in matrices if is_projection(m)]
    scopes = {attention_scope(m.name) for m in projections}
    kinds = {type(m.module).__name__ for m in matrices}
    kind = type(model.root.get_submodule(block)).__name__
    source = f"recognised: {kind} ({', '.join(sorted(kinds))})"
    rest: list[Matrix] = []
    for matrix in matrices:
        if matrix in projections:
            yield matrix.name, Styled("column", source)
        elif attention_scope(matrix.name) in scopes:
            yield matrix.name, Styled("row", source)
        else:
            rest.append(matrix)
    hidden = projections[0].num_in if projections else None
    for matrix, style in _paired(rest, hidden):
        yield matrix.name, Styled(style, source)


def _paired(
    matrices: Iterable[Matrix], hidden: int | None
) -> Iterator[tuple[Matrix, Style]]:
    """Matrices [hidden, inner] whose result goes into one [inner, hidden].

    Where inner is hidden, the last of them takes what the others make.
    """
    rest = list(matrices)
    for i, matrix in enumerate(rest):
        form = matrix.num_in, matrix.num_out
        partners = [j for j, m in enumerate(rest) if (m.num_out, m.num_in) == form]
        partners = [j for j in partners if j != i]
        if not partners:
            continue
        if hidden is None or matrix.num_in == matrix.num_out:
            yield matrix, "column" if i < max(partners) else "row"
        elif hidden in form:
            yield matrix, "column" if matrix.num_in == hidden else "row"
