"""Where the tensors of a training are, and what each is called in a checkpoint.

Keys are those of the unwrapped model: ``model.layers.0.weight``, and for the state of
its optimizer ``optimizer.layers.0.weight.exp_avg``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from spmd._names.tree import named_leaves

_WRAPPERS = re.compile(
    r"(^|\.)(_orig_mod|_orig_module|_fsdp_wrapped_module|_checkpoint_wrapped_module)"
    r"(?=\.|$)"
)
_PARALLEL = (nn.DataParallel, nn.parallel.DistributedDataParallel)


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor of a training.

    Attributes:
        key: What it is called in a checkpoint.
        read: Gives the tensor that is there now.
        put: Puts another tensor there.
        keeps: Whether the Python object there is to stay, with other data.
    """

    key: str
    read: Callable[[], torch.Tensor]
    put: Callable[[torch.Tensor], None]
    keeps: bool = True


@dataclass(frozen=True, slots=True)
class Places:
    """The tensors of a training.

    Attributes:
        first: Each tensor once.
        aliases: Further keys of the same tensors, and the first one's.
    """

    first: tuple[Place, ...]
    aliases: dict[str, str]

    @classmethod
    def of(cls, found: Iterator[Place]) -> Places:
        """Find those that are the same tensor.

        Args:
            found: Tied ones repeatedly.
        """
        first: dict[int, Place] = {}
        aliases = {}
        for place in found:
            known = first.setdefault(id(place.read()), place)
            if known is not place:
                aliases[place.key] = known.key
        return cls(tuple(first.values()), aliases)


def model_places(model: nn.Module, prefix: str = "model") -> Iterator[Place]:
    """Parameters and buffers, those that ``state_dict()`` has.

    Args:
        model: Any module, wrapped or not.
        prefix: First part of the keys.

    Yields:
        Tied ones repeatedly.
    """
    for path, module in named_modules(model):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                key = join(prefix, join(path, name))
                yield _entry(key, module._parameters, name)
        for name, buffer in module._buffers.items():
            if buffer is not None and name not in module._non_persistent_buffers_set:
                key = join(prefix, join(path, name))
                yield _entry(key, module._buffers, name)


def named_modules(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """All modules by the name that they have in the unwrapped model.

    Args:
        model: Any module, wrapped or not.

    Yields:
        Shared ones repeatedly.
    """
    parallel = [n for n, m in model.named_modules() if isinstance(m, _PARALLEL)]
    for path, module in model.named_modules(remove_duplicate=False):
        for outer in sorted(parallel, key=len, reverse=True):
            inner = join(outer, "module")
            if path == inner or path.startswith(f"{inner}."):
                path = join(outer, path[len(inner) + 1 :]).rstrip(".")
        yield _WRAPPERS.sub("", path).lstrip("."), module


def parameter_names(model: nn.Module) -> dict[int, str]:
    """What each parameter is called, by its identity.

    Args:
        model: Any module, wrapped or not.
    """
    found: dict[int, str] = {}
    for path, module in named_modules(model):
        for name, parameter in module._parameters.items():
            if parameter is not None:
                found.setdefault(id(parameter), join(path, name))
    return found


def optimizer_names(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """Names of the parameters of each group.

    Args:
        model: Whose names they have.
        optimizer: The optimizer.

    Returns:
        ``param_groups.0.3`` for one that is none of the model's.
    """
    names = parameter_names(model)
    return [
        [
            names.get(id(p), f"param_groups.{g}.{i}")
            for i, p in enumerate(group["params"])
        ]
        for g, group in enumerate(optimizer.param_groups)
    ]


def optimizer_places(model: nn.Module, optimizer: Optimizer) -> Iterator[Place]:
    """Tensors of an optimizer's state.

    Args:
        model: Whose names they have.
        optimizer: The optimizer.

    Yields:
        Each once.
    """
    names = optimizer_names(model, optimizer)
    for group, found in zip(optimizer.param_groups, names, strict=True):
        for parameter, name in zip(group["params"], found, strict=True):
            table = optimizer.state.get(parameter, {})
            for entry in sorted(k for k, v in table.items() if torch.is_tensor(v)):
                key = f"optimizer.{name}.{entry}"
                yield _state_entry(key, optimizer, parameter, entry)


def extra_places(extra: Mapping[str, Any]) -> Iterator[Place]:
    """Tensors in what the user saves besides.

    Args:
        extra: Modules, tensors, and containers of tensors, by name.

    Yields:
        Tied ones repeatedly.
    """
    for name, value in extra.items():
        if isinstance(value, nn.Module):
            yield from model_places(value, f"extra.{name}")
            continue
        for path, leaf in named_leaves(value):
            if isinstance(leaf, torch.Tensor):
                yield _fixed(f"extra.{name}{_dots(path)}", leaf)


def join(path: str, name: str) -> str:
    """Two parts of a name with a dot, unless one is empty.

    Args:
        path: First part.
        name: Second part.
    """
    return f"{path}.{name}" if path and name else path or name


def _dots(path: str) -> str:
    return re.sub(r"\['?(.*?)'?\]", r".\1", path)


def _entry(key: str, table: dict[str, Any], name: str) -> Place:
    def put(tensor: torch.Tensor) -> None:
        table[name] = tensor

    return Place(key, lambda: table[name], put)


def _fixed(key: str, tensor: torch.Tensor) -> Place:
    def put(_: torch.Tensor) -> None:
        raise AssertionError(f"{key} cannot be another tensor")

    return Place(key, lambda: tensor, put)


def _state_entry(
    key: str, optimizer: Optimizer, parameter: torch.Tensor, entry: str
) -> Place:
    def put(tensor: torch.Tensor) -> None:
        optimizer.state[parameter][entry] = tensor

    return Place(key, lambda: optimizer.state[parameter][entry], put, keeps=False)
