"""What `auto_plan` has models compute in another way, so that it splits."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from torch import nn

from spmd._adapt.heads import repeatable
from spmd._adapt.layers import FLATTENING
from spmd._adapt.positions import num_positions
from spmd._adapt.rule import Adapted
from spmd._auto.heads import Piece
from spmd._auto.layout import Axes
from spmd._auto.model import Matrix, Model
from spmd._auto.rows import Rows, Said
from spmd._names.collapse import star_form


def adapt_layers(model: Model, axes: Axes, rows: Rows) -> None:
    """Have layers keep [batch, seq, embed] that would flatten it.

    Args:
        model: The model.
        axes: The axes.
        rows: Is added to.
    """
    source = f"layers of {model.kind}"
    for block in model.blocks:
        kind = type(model.root.get_submodule(block)).__name__
        if axes.ways > 1 and kind in FLATTENING:
            rows.adapted[block] = Said(Adapted("", "unflatten"), source)
            text = f"{star_form(block)}: its MLP is given [batch, seq, embed] as it is"
            rows.notes.append(Said(f"{text}, not flattened", source))


def fit_positions(model: Model, axes: Axes, rows: Rows) -> Axes:
    """Look whether a sequence of the model's own, as that of an image, divides.

    Args:
        model: The model.
        axes: The axes.
        rows: Is added to, where the sequence is to be padded or is not split.

    Returns:
        The axes, which do not split the sequence where it can be neither divided nor
        padded.
    """
    if not axes.sequence:
        return axes
    for name, module in model.root.named_modules():
        num, kind = num_positions(module), type(module).__name__
        if num is None:
            continue
        source = f"positions of {kind}"
        # Patches are few, and a convolution makes them: split, they would be exchanged.
        embeddings = f"{name}.embeddings" if name else "embeddings"
        rows.outputs[embeddings] = Said(axes.whole, source)
        if num % axes.ways:
            if "dropout" in model.root.get_submodule(embeddings)._modules:
                # Padding is the step between: a loop of layers keeps for each what
                # enters the first, and would gather what they give were that whole.
                rows.outputs[f"{embeddings}.dropout"] = Said(axes.whole, source)
                rows.outputs[embeddings] = Said(axes.between, source)
            rows.adapted[name] = Said(Adapted("", "pad_positions", axes.ways), source)
            text = (
                f"{name or kind}: {num} positions do not divide over {axes.tensor}="
                f"{axes.ways}, so {-num % axes.ways} are added behind the embeddings, "
                f"to which none attends, and taken away behind the last norm"
            )
            rows.notes.append(Said(text, source))
        return axes
    for name, module in model.root.named_modules():
        num, kind = _num_image_positions(module), type(module).__name__
        if num is not None and num % axes.ways:
            text = (
                f"{name or kind}: {num} positions do not divide over {axes.tensor}="
                f"{axes.ways}, and {model.kind} is not known well enough to pad them: "
                f"the sequence is not split, as without sequence_parallel. Sizes that "
                f"split it: {divisors(num)}"
            )
            rows.notes.append(Said(text, f"positions of {kind}"))
            return replace(axes, sequence=False)
    return axes


def _num_image_positions(module: nn.Module) -> int | None:
    """Positions of embeddings of patches."""
    if not any(isinstance(child, nn.Conv2d) for child in module.modules()):
        return None
    table = module._parameters.get("position_embeddings")
    if table is not None and table.ndim == 3 and table.shape[0] == 1:
        return table.shape[1]
    num: Any = getattr(module, "num_positions", None)
    return num if isinstance(num, int) else None


def num_repeated(model: Model, matrix: Matrix, piece: Piece, axes: Axes) -> int | None:
    """How many key and value heads are to be made from the weights of a few.

    Args:
        model: The model.
        matrix: What makes them.
        piece: The part of its output features that they are.
        axes: The axes.

    Returns:
        The fewest that divide over the tensor axis; None for an attention whose heads
        cannot be repeated.
    """
    attention = model.root.get_submodule(matrix.parent)
    if not repeatable(attention):
        return None
    return math.lcm(piece.num_units, axes.ways)


def divisors(num_units: int) -> str:
    """The divisors of a number, as text."""
    return ", ".join(str(n) for n in range(1, num_units + 1) if num_units % n == 0)
