"""`split_fused`: hold the parts of a fused linear layer apart, in place.

Split into as many pieces as an axis has devices, the weight of ``c_attn`` (query, key
and value behind one another) gives pieces that hold parts of several, and the compiler
moves what they compute. Held apart, each part is split by itself, on whole heads, and
may have a spec of its own: few key and value heads stay whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import torch
from torch import nn
from torch.nn.parameter import UninitializedParameter

from spmd._fused.output import joined
from spmd._fused.rule import Fused
from spmd._fused.state import Pieces, hold_in_pieces, pieces_of
from spmd._marking.attributes import copy_attributes
from spmd._marking.mark import get_sharding
from spmd._marking.promise import promised
from spmd._marking.replaced import replaced

HOOKS = (
    "_forward_hooks",
    "_forward_pre_hooks",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
)


class FusedLinear(nn.Module):
    """A linear layer whose parts are layers of their own, as its children.

    Args:
        layer: A `torch.nn.Linear`, a layer derived from it, or GPT-2's Conv1D.
        fused: Its parts.

    Attributes:
        layer: Name of the class that it was.
    """

    def __init__(self, layer: nn.Module, fused: Fused) -> None:
        super().__init__()
        self.layer = type(layer).__name__
        self.training = layer.training
        held = []
        for key, parameter in layer._parameters.items():
            if parameter is not None:
                dim = fused.dim if key == "weight" else 0
                sizes = {f"{name}.{key}": size for name, size in fused.parts}
                held.append(Pieces(key, dim, sizes))
        taken = {}
        for pieces in held:
            taken.update(cut(cast(nn.Parameter, getattr(layer, pieces.name)), pieces))
        for name, size in fused.parts:
            own = {k: taken.get(f"{name}.{k}") for k in layer._parameters}
            self.add_module(name, _like(layer, own, size))
        hold_in_pieces(self, held)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The outputs of the parts, behind one another.

        Args:
            x: [..., in].

        Returns:
            [..., out], which hands the parts on to whoever takes it apart.
        """
        return joined([part(x) for part in self._modules.values() if part is not None])

    @property
    def weight(self) -> torch.Tensor:
        """The weight as a whole, for who asks for its shape, dtype or values."""
        return self._whole("weight")

    @property
    def bias(self) -> torch.Tensor | None:
        """The bias as a whole."""
        held = any(pieces.name == "bias" for pieces in pieces_of(self))
        return self._whole("bias") if held else None

    def _whole(self, key: str) -> torch.Tensor:
        pieces = next(p for p in pieces_of(self) if p.name == key)
        return torch.cat([self.get_parameter(n) for n in pieces.sizes], pieces.dim)

    def extra_repr(self) -> str:
        """What the module says of itself."""
        return f"parts of one {self.layer}"


def split_fused(module: nn.Module, fused: Mapping[str, Fused]) -> None:
    """Hold the parts of fused layers apart, in place.

    ``attn.c_attn.weight`` becomes ``attn.c_attn.q.weight`` and so on, while
    `state_dict()`, `load_state_dict` and checkpoints keep the name, order and shape
    that it had. An optimizer has to be made after this: one that holds what is no
    parameter any more refuses to step.

    Args:
        module: The root; its parameters on any device, not annotated yet.
        fused: By the name of the layer. Those that are in these parts already are
            passed over.

    Raises:
        ValueError: A layer of another kind or with other sizes, one that is tied,
            shared, annotated or hooked, or that is in other parts already.
    """
    checked = {name: _checked(module, name, rule) for name, rule in fused.items()}
    layers = {name: layer for name, layer in checked.items() if layer is not None}
    _check_alone(module, layers)
    for name, layer in layers.items():
        made = FusedLinear(layer, fused[name])
        path, _, key = name.rpartition(".")
        setattr(module.get_submodule(path), key, made)
        forget(layer, {p.name: tuple(p.sizes) for p in pieces_of(made)}, name)


def _checked(module: nn.Module, name: str, fused: Fused) -> nn.Module | None:
    """The layer, or None if it is in these parts already."""
    layer = module.get_submodule(name)
    where = f"split_fused: {name} ({type(layer).__name__})"
    if isinstance(layer, FusedLinear):
        held = next(iter(pieces_of(layer)))
        sizes = zip(layer._modules, held.sizes.values(), strict=True)
        if tuple(sizes) != fused.parts or held.dim != fused.dim:
            raise ValueError(
                f"{where} is in parts already: {dict(held.sizes)}; it cannot also be "
                f"in {dict(fused.parts)}"
            )
        return None
    weight = layer._parameters.get("weight")
    known = isinstance(layer, nn.Linear) or type(layer).__name__ == "Conv1D"
    if not known or weight is None or set(layer._parameters) - {"weight", "bias"}:
        raise ValueError(
            f"{where} is no plain linear layer: a torch.nn.Linear or a Conv1D with a "
            f"weight, and a bias at most, is needed"
        )
    if isinstance(weight, UninitializedParameter) or any(layer.buffers()):
        raise ValueError(f"{where} has buffers, or a weight without a shape yet")
    if any(layer.children()) or any(getattr(layer, hook) for hook in HOOKS):
        raise ValueError(
            f"{where} has submodules or hooks, as adapters and annotated outputs have; "
            f"split it before they are added"
        )
    dim = 0 if isinstance(layer, nn.Linear) else 1
    names = [part for part, _ in fused.parts]
    if fused.dim != dim or fused.num_features != weight.shape[dim]:
        raise ValueError(
            f"{where}: the parts {dict(fused.parts)} along dim {fused.dim} have "
            f"{fused.num_features} features; its weight is {list(weight.shape)}, with "
            f"the output features in dim {dim}"
        )
    if len(set(names)) < len(names) or min(n for _, n in fused.parts) < 1:
        raise ValueError(f"{where}: names repeat, or a part is empty: {fused.parts}")
    for key, parameter in layer._parameters.items():
        if parameter is not None:
            check_free(parameter, f"{where}: its {key}")
    return layer


def check_free(parameter: nn.Parameter, where: str) -> None:
    """Refuse a parameter that something was said about already.

    Args:
        parameter: To be cut into pieces.
        where: What to call it.

    Raises:
        ValueError: It is annotated, or its values are promised.
    """
    if get_sharding(parameter) is not None:
        raise ValueError(
            f"{where} {list(parameter.shape)} is annotated already; take it apart "
            f"first, and annotate the parts"
        )
    if promised(parameter) is not None:
        raise ValueError(
            f"{where} {list(parameter.shape)} waits for values that were promised to "
            f"it as a whole; take it apart first, then materialize or load"
        )


def _check_alone(module: nn.Module, layers: Mapping[str, nn.Module]) -> None:
    """Refuse layers, and weights, that are somewhere else in the model too."""
    for other, tensor in module.named_parameters(remove_duplicate=False):
        for name, layer in layers.items():
            if any(tensor is own for own in layer._parameters.values()):
                if other.rpartition(".")[0] != name:
                    raise ValueError(
                        f"split_fused: {name} shares a parameter with {other}, which "
                        f"would no longer be tied to it; split neither, or untie them"
                    )


def cut(parameter: nn.Parameter, pieces: Pieces) -> dict[str, nn.Parameter]:
    """Parameters that hold the pieces of one.

    Args:
        parameter: On any device; it is not changed.
        pieces: How to cut it.

    Returns:
        By name; with the attributes that it has.
    """
    with torch.no_grad():
        taken = pieces.take(parameter.detach())
        made = {
            name: copy_attributes(
                parameter, nn.Parameter(part.clone(), parameter.requires_grad)
            )
            for name, part in taken.items()
        }
    if parameter.grad is not None:
        for name, gradient in pieces.take(parameter.grad).items():
            made[name].grad = gradient.clone()
    return made


def _like(
    layer: nn.Module, parameters: dict[str, nn.Parameter | None], size: int
) -> nn.Module:
    """A layer of the same class with fewer output features."""
    made = type(layer).__new__(type(layer))
    nn.Module.__init__(made)
    own = vars(made)
    own.update({k: v for k, v in vars(layer).items() if k not in own})
    for name in ("out_features", "nf"):  # Linear's, Conv1D's
        if hasattr(layer, name):
            setattr(made, name, size)
    made.training = layer.training
    for key, parameter in parameters.items():
        made.register_parameter(key, parameter)
    return made


def forget(layer: nn.Module, names: Mapping[str, tuple[str, ...]], path: str) -> None:
    """Have optimizers refuse to update what is no parameter any more.

    Args:
        layer: What was replaced.
        names: For each of its parameters what it became.
        path: Name of the layer.
    """
    for key, pieces in names.items():
        parameter = layer._parameters[key]
        assert parameter is not None
        now = f"{', '.join(pieces)} in {path}"
        replaced(parameter, name=f"{path}.{key}", by=now)
