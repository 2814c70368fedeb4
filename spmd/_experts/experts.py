"""`split_experts`: hold and compute mixture-of-experts layers so that they split.

transformers' ways to compute experts do not: ``grouped_mm`` and ``eager`` ask the host
how many tokens each expert has, and ``batched_mm`` copies an expert's weights for each
token, which over split experts adds up copies of weights. Here every expert computes
every token, and a token's result is the sum over experts by its routing weights. Shapes
are static, no token is dropped, and what crosses devices is the sum over experts and
intermediate features: one all-reduce of [tokens, hidden] forward and one backward.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import nn

from spmd._experts.layout import TokenLayout
from spmd._experts.product import plus, product
from spmd._experts.rule import (
    DOWN,
    GATED,
    HALVES,
    UP,
    ExpertRows,
    expert_rows,
    is_experts,
)
from spmd._fused.fused import HOOKS, check_free, cut, forget
from spmd._fused.output import joined
from spmd._fused.state import Pieces, hold_in_pieces, pieces_of
from spmd._meshes.mesh import Mesh
from spmd._preserve.dot import Dims


class DenseExperts(nn.Module):
    """Experts, each of which computes every token.

    Args:
        experts: A module of experts of transformers 5.

    Attributes:
        layer: Name of the class that it was.
    """

    act_fn: Callable[[torch.Tensor], torch.Tensor]
    post_expert_norm: Callable[[torch.Tensor], torch.Tensor]
    _gate: Callable[[nn.Module, torch.Tensor], torch.Tensor]

    def __init__(self, experts: nn.Module) -> None:
        super().__init__()
        own = vars(self)
        kept = {k: v for k, v in vars(experts).items() if k not in own}
        own.update(kept)  # what its own gate reads: alpha, limit
        self.layer = type(experts).__name__
        self.training = experts.training
        self._modules.update(experts._modules)
        self._gate = getattr(type(experts), "_apply_gate", _apply_gate)
        shapes = _shapes(experts)
        self._transposed = bool(getattr(experts, "is_transposed", False))
        held = _pieces(experts, shapes, transposed=self._transposed)
        for name, parameter in experts._parameters.items():
            pieces = next((p for p in held if p.name == name), None)
            if parameter is None or pieces is None:
                self.register_parameter(name, parameter)
            else:
                for key, piece in cut(parameter, pieces).items():
                    self.register_parameter(key, piece)
        hold_in_pieces(self, held)

    def forward(
        self, hidden: torch.Tensor, indices: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """Mix what the experts make of each token.

        Args:
            hidden: Tokens [tokens, hidden].
            indices: Which experts each is sent to [tokens, top_k].
            weights: How much each counts [tokens, top_k].

        Returns:
            [tokens, hidden].
        """
        down = self._of(DOWN)[0]
        tokens, num = hidden.shape[0], down.shape[0]
        features = 1 if self._transposed else 2
        layout = TokenLayout.of(down, hidden, features=features)
        chosen = indices.unsqueeze(-1) == torch.arange(num, device=indices.device)
        share = torch.where(chosen, weights.unsqueeze(-1), 0.0).sum(1)
        share = layout.meet(share, layout.expert)  # [..., expert]
        hidden = layout.meet_hidden(hidden)
        inner = self._inner(hidden, layout)
        inner = layout.split(inner, layout.expert, layout.features)
        mixed = layout.part(self._mix(inner, share.to(inner.dtype), layout))
        return mixed.reshape(tokens, -1).to(hidden.dtype)

    def _inner(self, hidden: torch.Tensor, layout: TokenLayout) -> torch.Tensor:
        """[..., expert, intermediate]."""
        names = [n for n in HALVES if n in self._parameters]
        if GATED in self._parameters:
            return self._gate(self, self._up(hidden, [GATED], layout))
        both = self._up(hidden, names, layout)
        if names == [UP]:
            return self.act_fn(both)
        return self._gate(self, joined([x.squeeze(-2) for x in both.split(1, -2)]))

    def _up(
        self, hidden: torch.Tensor, names: Sequence[str], layout: TokenLayout
    ) -> torch.Tensor:
        """[..., expert, out], or [..., expert, names, out].

        As one product, whose gradient is reduced over devices once.
        """
        weights, biases = zip(*map(self._of, names), strict=True)
        last = 2 if len(names) == 1 else 3
        within = last - 1 if self._transposed else last
        dims = Dims((hidden.ndim - 1,), (within,))
        out = product(hidden, weights, dims, axes=layout.axes)
        return out if biases[0] is None else plus(out, biases, axes=layout.axes)

    def _mix(
        self, inner: torch.Tensor, share: torch.Tensor, layout: TokenLayout
    ) -> torch.Tensor:
        """The sum over experts, in one product with that over features."""
        weight, bias = self._of(DOWN)
        axes = layout.axes
        within = 1 if self._transposed else 2
        expert, feature = inner.ndim - 2, inner.ndim - 1
        if getattr(self, "has_post_expert_norm", False):
            dims = Dims((feature,), (within,), (expert,), (0,))
            each = product(inner, [weight], dims, axes=axes)
            each = each.movedim(0, -2)  # [..., expert, hidden]
            each = each if bias is None else plus(each, [bias], axes=axes)
            return (self.post_expert_norm(each) * share.unsqueeze(-1)).sum(-2)
        weighted = inner * share.unsqueeze(-1)
        dims = Dims((expert, feature), (0, within))
        mixed = product(weighted, [weight], dims, axes=axes)
        if bias is None:
            return mixed
        dims = Dims((share.ndim - 1,), (0,))
        return mixed + product(share, [bias], dims, axes=axes)

    def _of(self, name: str) -> tuple[torch.Tensor, torch.Tensor | None]:
        weight = self._parameters[name]
        assert weight is not None
        return weight, self._parameters.get(f"{name}_bias")

    def extra_repr(self) -> str:
        """What the module says of itself."""
        shapes = {k: list(v.shape) for k, v in self.named_parameters(recurse=False)}
        return f"dense {self.layer}: {shapes}"


def split_experts(module: nn.Module, names: Iterable[str]) -> None:
    """Have modules of experts computed so that they split, in place.

    ``gate_up_proj`` is held as ``gate_proj`` and ``up_proj``, where it is one behind
    the other; `state_dict()`, `load_state_dict` and checkpoints keep the name and shape
    that it had. An optimizer has to be made after this: one that holds what is no
    parameter any more refuses to step.

    Args:
        module: The root; its parameters on any device, not annotated yet.
        names: Of the modules of experts. Those that are so already are passed over.

    Raises:
        ValueError: A module that holds no experts in the form of transformers 5, or
            that is shared, annotated or hooked.
    """
    found = {name: module.get_submodule(name) for name in names}
    found = {k: m for k, m in found.items() if not isinstance(m, DenseExperts)}
    for name, experts in found.items():
        _check(module, name, experts)
    for name, experts in found.items():
        made = DenseExperts(experts)
        path, _, key = name.rpartition(".")
        setattr(module.get_submodule(path), key, made)
        forget(experts, {p.name: tuple(p.sizes) for p in pieces_of(made)}, name)


def rows_of(
    experts: nn.Module,
    mesh: Mesh,
    *,
    fsdp: str | None = "fsdp",
    tensor: str | None = "tensor",
    expert: str | None = "expert",
) -> ExpertRows:
    """Shapes and specs of a module of experts; see `expert_rows`.

    Args:
        experts: The module, before or after `split_experts`, on any device.
        mesh: The mesh.
        fsdp: Axis for the hidden features.
        tensor: Axis for the intermediate features.
        expert: Axis for the experts.

    Returns:
        Shapes, specs and notes.

    Raises:
        ValueError: No experts, or a number of them that does not divide.
    """
    shapes = _shapes(experts)
    return expert_rows(
        shapes,
        mesh,
        fsdp=fsdp,
        tensor=tensor,
        expert=expert,
        transposed=getattr(experts, "is_transposed", None),
        interleaved=_interleaved(experts),
    )


def _check(module: nn.Module, name: str, experts: nn.Module) -> None:
    where = f"split_experts: {name} ({type(experts).__name__})"
    shapes = _shapes(experts)
    if not is_experts(shapes) or not hasattr(experts, "has_gate"):
        raise ValueError(
            f"{where} holds no experts in the form of transformers 5: {GATED} or {UP}, "
            f"and {DOWN}, of three dims each; it has {shapes}"
        )
    if any(experts._buffers.values()) or any(getattr(experts, hook) for hook in HOOKS):
        raise ValueError(
            f"{where} has buffers or hooks; split it before they are added"
        )
    own = {id(p) for p in experts.parameters(recurse=False)}
    for other, parameter in module.named_parameters(remove_duplicate=False):
        if id(parameter) in own and other.rpartition(".")[0] != name:
            raise ValueError(f"{where} shares a parameter with {other}; untie them")
    for key, parameter in experts._parameters.items():
        if parameter is not None and key.startswith(GATED):
            check_free(parameter, f"{where}: its {key}")


def _shapes(experts: nn.Module) -> dict[str, tuple[int, ...]]:
    held = {n: tuple(p.shape) for n, p in experts.named_parameters(recurse=False)}
    for pieces in pieces_of(experts):
        first, *_ = pieces.sizes
        shape = list(held[first])
        shape[pieces.dim] = sum(pieces.sizes.values())
        held = {k: v for k, v in held.items() if k not in pieces.sizes}
        held[pieces.name] = tuple(shape)
    return held


def _interleaved(experts: nn.Module) -> bool:
    return not getattr(experts, "is_concatenated", True)


def _pieces(
    experts: nn.Module, shapes: dict[str, tuple[int, ...]], *, transposed: bool
) -> list[Pieces]:
    held = []
    for key in (GATED, f"{GATED}_bias"):
        if key in shapes and not _interleaved(experts):
            dim = 2 if transposed and len(shapes[key]) == 3 else 1
            suffix = key.removeprefix(GATED)
            half = shapes[key][dim] // 2
            held.append(Pieces(key, dim, {name + suffix: half for name in HALVES}))
    return held


def _apply_gate(self: Any, both: torch.Tensor) -> torch.Tensor:
    gate, up = both.chunk(2, dim=-1)
    return self.act_fn(gate) * up
