"""How many pieces a matrix may be split into: attention heads, or single features."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from spmd._auto.model import Matrix, Model

_QUERY = {"q_proj", "query", "q_lin", "q", "wq", "query_proj", "q_attn", "q_b_proj"}
_KEY = {"k_proj", "key", "k_lin", "k", "wk", "key_proj"}
_VALUE = {"v_proj", "value", "v_lin", "v", "wv", "value_proj"}
_TOGETHER = {"qkv_proj", "c_attn", "Wqkv", "qkv", "query_key_value", "W_pack"}
_GATED = {"gate_up_proj"}

_IN_TURN = {"BloomAttention", "GPTNeoXAttention", "GPTNeoXJapaneseAttention"}
"""Attention whose fused weight is query, key, value of one head after another."""
_BEHIND = {"GPT2Attention", "Phi3Attention", "MptAttention"}
"""Attention whose fused weight is all queries, then all keys, then all values."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the output features of a matrix.

    Attributes:
        name: Of the part; empty for the whole matrix.
        num_features: Its output features.
        num_units: Pieces that stay together: heads, or single features.
        noun: What a unit is.
        is_shared: It may stay whole where its units do not divide, because few heads
            of keys and values serve many of queries.
    """

    name: str
    num_features: int
    num_units: int
    noun: str
    is_shared: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """What the output features of a matrix are.

    Attributes:
        pieces: One, or several that are behind one another.
        remark: What is to be said of it; may be empty.
    """

    pieces: tuple[Piece, ...]
    remark: str = ""


def attention_scope(name: str) -> str | None:
    """The attention that a matrix belongs to.

    Args:
        name: Of the matrix.

    Returns:
        Name of the innermost module around it that is called attention, or None.

    Example:
        >>> attention_scope("encoder.layer.3.attention.self.query")
        'encoder.layer.3.attention'
        >>> attention_scope("encoder.layer.3.output.dense") is None
        True
    """
    parts = name.split(".")[:-1]
    for end in range(len(parts), 0, -1):
        if "attn" in parts[end - 1].lower() or "attention" in parts[end - 1].lower():
            return ".".join(parts[:end])
    return None


def is_projection(matrix: Matrix) -> bool:
    """Whether a matrix makes queries, keys or values.

    Args:
        matrix: Any.

    Returns:
        True for each of them, and for all in one.
    """
    names = _QUERY | _KEY | _VALUE | _TOGETHER
    return matrix.leaf in names and attention_scope(matrix.name) is not None


def layout_of(model: Model, matrix: Matrix) -> Layout | None:
    """What the output features of a matrix are that is to be split by columns.

    Args:
        model: The model.
        matrix: One of its matrices.

    Returns:
        None for a fused weight whose order is not known.
    """
    if matrix.leaf in _GATED:
        half = matrix.num_out // 2
        return Layout(tuple(_features(name, half) for name in ("gate", "up")))
    if attention_scope(matrix.name) is None:
        return Layout((_features("", matrix.num_out),))
    size = _head_size(model, matrix)
    if size is None or matrix.num_out % size:
        return Layout((_features("", matrix.num_out),))
    if matrix.leaf in _TOGETHER:
        return _fused(model, matrix, size)
    shared = matrix.leaf in _KEY | _VALUE
    return Layout((_heads("", matrix.num_out // size, size, is_shared=shared),))


def _fused(model: Model, matrix: Matrix, size: int) -> Layout | None:
    owner: Any = model.root.get_submodule(matrix.parent)
    kind = type(owner).__name__
    total = matrix.num_out // size
    num_shared = _first(owner, "num_key_value_heads", "num_kv_heads")
    if kind in _IN_TURN:
        return _in_turn(matrix, total // 3)
    if kind.startswith("Falcon"):
        if owner.new_decoder_architecture:
            return _in_turn(matrix, owner.num_kv_heads)
        if not owner.multi_query:
            return _in_turn(matrix, total // 3)
        num_shared = 1
    elif kind == "GPTBigCodeAttention":
        if not owner.multi_query:
            return _in_turn(matrix, total // 3)
        num_shared = 1
    elif kind not in _BEHIND:
        return None
    num_shared = num_shared or total // 3
    query = _heads("q", total - 2 * num_shared, size, is_shared=False)
    others = (_heads(n, num_shared, size, is_shared=True) for n in ("k", "v"))
    return Layout((query, *others))


def _in_turn(matrix: Matrix, num_groups: int) -> Layout:
    whole = Piece("", matrix.num_out, num_groups, "groups of heads")
    remark = "holds query, key and value of one head after another, so it splits as is"
    return Layout((whole,), remark)


def _features(name: str, num: int) -> Piece:
    return Piece(name, num, num, "features")


def _heads(name: str, num: int, size: int, *, is_shared: bool) -> Piece:
    noun = "key and value heads" if is_shared else "heads"
    return Piece(name, num * size, num, noun, is_shared)


def _head_size(model: Model, matrix: Matrix) -> int | None:
    """Features of a head, from the attention itself, else from a config."""
    scope = attention_scope(matrix.name) or ""
    path, config = matrix.parent, None
    while True:
        owner: Any = model.root.get_submodule(path)
        if path.startswith(scope):
            found = _first(
                owner, "head_dim", "attention_head_size", "key_value_proj_dim"
            )
            if found:
                return found
        config = config or getattr(owner, "config", None)
        if not path:
            break
        path = path.rpartition(".")[0]
    found = _first(config, "head_dim", "d_kv")
    num, hidden = _first(config, "num_attention_heads"), _first(config, "hidden_size")
    return found or (hidden // num if hidden and num else None)


def _first(owner: Any, *names: str) -> int | None:
    found = (getattr(owner, name, None) for name in names)
    return next((n for n in found if isinstance(n, int) and n > 0), None)
