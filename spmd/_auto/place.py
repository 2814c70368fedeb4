"""Specs for what `auto_plan` recognised, and the sizes that they need."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import nn

from spmd._adapt.rule import Adapted
from spmd._auto.adapt import adapt_layers, divisors, fit_positions, num_repeated
from spmd._auto.heads import Layout, Piece, layout_of
from spmd._auto.layout import Axes
from spmd._auto.model import Matrix, Model
from spmd._auto.rows import Rows, Said
from spmd._auto.styles import Styled
from spmd._fused.rule import Experts, Fused
from spmd._names.collapse import collapse, star_form


@dataclass(frozen=True, slots=True)
class _Need:
    """A number that the size of the tensor axis has to divide."""

    name: str
    num_units: int
    noun: str


def place(model: Model, styles: dict[str, Styled], axes: Axes) -> Rows:
    """Decide the specs of a model's matrices, tables and activations.

    Args:
        model: The model.
        styles: Which matrices are split, and how.
        axes: The axes.

    Returns:
        What was decided; parameters that are not in it are not split by tensor.

    Raises:
        ValueError: A size of the tensor axis that some matrix does not take.
    """
    rows = Rows()
    axes = fit_positions(model, axes, rows)
    needs: list[_Need] = []
    for name, styled in styles.items():
        if axes.ways > 1 and name != model.head:
            placer = _Placer(model, model.matrices[name], styled.source, axes, rows)
            needs += placer.place(styled.style)
    _check(model, needs, axes)
    _vocabulary(model, styles, axes, rows)
    _experts(model, axes, rows)
    adapt_layers(model, axes, rows)
    source = f"layers of {model.kind}"
    for block in model.blocks:
        rows.outputs[block] = Said(axes.between, source)
    return rows


@dataclass(frozen=True, slots=True)
class _Placer:
    """Decides about one matrix."""

    model: Model
    matrix: Matrix
    source: str
    axes: Axes
    rows: Rows

    def place(self, style: str) -> list[_Need]:
        """Write rows; what they need is answered."""
        if style == "row":
            return self._row()
        layout = layout_of(self.model, self.matrix) if style == "column" else None
        if layout is not None:
            return self._columns(layout)
        if style == "column":
            kind = type(self.model.root.get_submodule(self.matrix.parent)).__name__
            self._note(
                f"holds query, key and value in an order that is not known of {kind}; "
                f"it stays whole over {self.axes.tensor!r}. Give it a pattern"
            )
        return []

    def _row(self) -> list[_Need]:
        name, matrix, axes = self.matrix.name, self.matrix, self.axes
        self._parameters(matrix.num_in, matrix.num_out, 1 - matrix.dim_out, name)
        self.rows.inputs[name] = Said(axes.columns, self.source)
        self.rows.outputs[name] = Said(axes.between, self.source)
        return [_Need(name, matrix.num_in, "input features")]

    def _columns(self, layout: Layout) -> list[_Need]:
        name = self.matrix.name
        if layout.remark:
            self._note(layout.remark)
        if len(layout.pieces) > 1:
            parts = tuple((p.name, p.num_features) for p in layout.pieces)
            fused = Fused("", parts, self.matrix.dim_out)
            self.rows.fused[name] = Said(fused, self.source)
        needs: list[_Need] = []
        for piece in layout.pieces:
            own = f"{name}.{piece.name}" if piece.name else name
            needs += self._column(piece, own)
        return needs

    def _column(self, piece: Piece, name: str) -> list[_Need]:
        axes, matrix = self.axes, self.matrix
        whole = piece.is_shared and piece.num_units % axes.ways > 0
        repeated = num_repeated(self.model, matrix, piece, axes) if whole else None
        dim = None if whole else matrix.dim_out
        self._parameters(matrix.num_in, piece.num_features, dim, name, repeated)
        spec = axes.whole if whole and repeated is None else axes.columns
        self.rows.outputs[name] = Said(spec, self.source)
        if not whole:
            return [] if piece.is_shared else [_Need(name, piece.num_units, piece.noun)]
        does = "so every device of that axis computes them all"
        if repeated is not None:
            does = (
                f"so every device of that axis holds their weights, and they are "
                f"repeated to {repeated}"
            )
            adapted = Adapted("", "repeat_heads", repeated)
            self.rows.adapted[matrix.parent] = Said(adapted, self.source)
        self._note(
            f"{piece.num_units} {piece.noun} do not divide over {axes.tensor}="
            f"{axes.ways}, {does}; sizes that split them: {divisors(piece.num_units)}",
            name,
        )
        return []

    def _parameters(
        self,
        num_in: int,
        num_out: int,
        dim: int | None,
        name: str,
        repeated: int | None = None,
    ) -> None:
        """Specs of weight and bias, with the tensor axis on one dim of the weight."""
        axes, dim_out = self.axes, self.matrix.dim_out
        shape = (num_out, num_in) if dim_out == 0 else (num_in, num_out)
        if repeated is not None:
            spec = axes.repeated(shape, dim_out)
        elif dim is None:
            spec = axes.matrix(shape, dim_out)
        else:
            spec = axes.weight(shape, dim)
        self.rows.parameters[f"{name}.weight"] = Said(spec, self.source)
        if self.matrix.module._parameters.get("bias") is not None:
            bias = (axes.tensor if dim == dim_out else None,)
            self.rows.parameters[f"{name}.bias"] = Said(bias, self.source)

    def _note(self, text: str, name: str | None = None) -> None:
        where = star_form(name or self.matrix.name)
        self.rows.notes.append(Said(f"{where}: {text}", self.source))


def _vocabulary(
    model: Model, styles: dict[str, Styled], axes: Axes, rows: Rows
) -> None:
    """Tables split by rows, and logits that stay split."""
    planned = model.head in styles
    source = styles[model.head].source if planned and model.head else "vocabulary"
    weight = None
    if model.table is not None:
        weight = model.root.get_submodule(model.table).get_parameter("weight")
    for name, module in model.root.named_modules():
        if isinstance(module, nn.Embedding) and module.weight is weight:
            rows.outputs[name] = Said(axes.between, source)
            if axes.ways > 1:
                spec = axes.weight(tuple(module.weight.shape), 0)
                rows.parameters[f"{name}.weight"] = Said(spec, source)
                _note_padding(name, module.num_embeddings, axes, rows, source)
    if model.head is None or axes.ways == 1:
        return
    matrix = model.matrices[model.head]
    shape = tuple(matrix.module.get_parameter("weight").shape)
    spec = axes.weight(shape, matrix.dim_out)
    rows.parameters[f"{model.head}.weight"] = Said(spec, source)
    if matrix.module._parameters.get("bias") is not None:
        rows.parameters[f"{model.head}.bias"] = Said((axes.tensor,), source)
    rows.outputs[model.head] = Said(axes.columns, source)
    _note_padding(model.head, matrix.num_out, axes, rows, source)


def _experts(model: Model, axes: Axes, rows: Rows) -> None:
    """Experts over their own axis, and what is inside of each over tensor."""
    if axes.expert is None and axes.ways == 1:
        return
    from spmd._experts.experts import rows_of
    from spmd._experts.rule import is_experts

    for name, module in model.root.named_modules():
        own = module.named_parameters(recurse=False)
        if not is_experts({key: tuple(p.shape) for key, p in own}):
            continue
        source = f"experts: {type(module).__name__}"
        try:
            found = rows_of(
                module,
                axes.mesh,
                fsdp=axes.fsdp,
                tensor=axes.tensor,
                expert=axes.expert,
            )
        except ValueError as error:
            raise ValueError(f"auto_plan: {name}: {error}") from None
        rows.experts[name] = Said(Experts("", tuple(found.shapes.items())), source)
        if axes.sequence:  # tells experts what they are given [batch * seq] of
            rows.inputs[name.rpartition(".")[0]] = Said(axes.between, source)
            text = (
                f"{star_form(name)}: beside pairs of gather and scatter, the gradient "
                f"of the routing weights [tokens, experts] is added up over "
                f"{axes.tensor!r} in backward"
            )
            rows.notes.append(Said(text, source))
        for key, spec in found.parameters.items():
            rows.parameters[f"{name}.{key}"] = Said(spec, source)
        rows.notes += [
            Said(f"{star_form(name)}: {note}", source) for note in found.notes
        ]


def _note_padding(name: str, size: int, axes: Axes, rows: Rows, source: str) -> None:
    short = -size % axes.ways
    if short:
        rows.notes.append(
            Said(
                f"{name}: {size} rows of the vocabulary do not divide over "
                f"{axes.tensor}={axes.ways}; XLA pads {short}",
                source,
            )
        )


def _check(model: Model, needs: list[_Need], axes: Axes) -> None:
    """Refuse a size of the tensor axis that does not fit, with those that do."""
    bad = [need for need in needs if need.num_units % axes.ways]
    if not bad:
        return
    groups: dict[tuple[str, int, str], list[str]] = {}
    for need in bad:
        key = star_form(need.name), need.num_units, need.noun
        groups.setdefault(key, []).append(need.name)
    lines = [
        f"  {', '.join(collapse(names))}: {units} {noun}"
        for (_, units, noun), names in groups.items()
    ]
    largest = math.gcd(*(need.num_units for need in needs))
    raise ValueError(
        f"auto_plan: {model.kind} does not fit {axes.tensor}={axes.ways}, which does "
        f"not divide\n" + "\n".join(lines) + f"\nSizes of {axes.tensor!r} that fit: "
        f"{divisors(largest)}"
    )
