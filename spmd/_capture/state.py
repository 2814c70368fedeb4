"""What a training step keeps between calls: each tensor with a name and a place.

A `Slot` is a place, not a tensor. Parameters, buffers and further tensors keep their
Python object and get new data; gradients and optimizer state are replaced.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from spmd._program.value import Role


@dataclass(frozen=True, slots=True)
class Slot:
    """One tensor that a step may read or update.

    Attributes:
        name: ``layers.0.weight``, ``grad[layers.0.weight]``,
            ``optimizer.exp_avg[layers.0.weight]``.
        role: ``parameter``, ``buffer`` (further tensors too), ``gradient`` or
            ``optimizer``.
        read: Gives the tensor that is there now.
        write: Puts new data there.
        put: Puts this Python object there.
        keeps: Whether `write` keeps the Python object.
        table: The table it is an entry of, where that stays the same one.
        key: Of the entry.
    """

    name: str
    role: Role
    read: Callable[[], torch.Tensor]
    write: Callable[[torch.Tensor], None]
    put: Callable[[torch.Tensor], None]
    keeps: bool = False
    table: dict[str, Any] | None = None
    key: str = ""


class StepState:
    """The state of a model and its optimizer.

    Args:
        model: The module that is trained.
        optimizer: Over the model's parameters, or None.
        extra: Further device tensors that the step reads or updates, by name.
    """

    def __init__(
        self,
        model: nn.Module | None,
        optimizer: Optimizer | None,
        extra: Mapping[str, torch.Tensor],
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.extra = dict(extra)
        self.parameters: list[tuple[str, torch.Tensor]] = []
        self.modules: list[nn.Module] = []
        self._settings: dict[int, _Settings] = {}
        self.refresh()

    def refresh(self) -> None:
        """Look for parameters and modules that were added or replaced."""
        model = self.model
        self.parameters = list(model.named_parameters()) if model is not None else []
        seen = {id(p) for _, p in self.parameters}
        for g, group in enumerate(self.groups):
            for i, parameter in enumerate(group["params"]):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    self.parameters.append((f"param_groups.{g}.{i}", parameter))
        self.modules = list(model.modules()) if model is not None else []

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups; none without an optimizer."""
        return self.optimizer.param_groups if self.optimizer is not None else []

    def tables(self) -> tuple[int, ...]:
        """Identity of the tables of the optimizer's state, which loading replaces."""
        optimizer = self.optimizer
        return () if optimizer is None else tuple(map(id, optimizer.state.values()))

    def slots(self, *, bound: bool = False) -> list[Slot]:
        """Every tensor on the device that is there now, each once.

        Args:
            bound: Of places that are faster, and good as long as `tables` is the same.

        Returns:
            In the order of `places`.
        """
        found, seen = [], set()
        for slot in self.places(bound=bound):
            tensor = slot.read()
            if tensor.device.type == "xla" and id(tensor) not in seen:
                seen.add(id(tensor))
                found.append(slot)
        return found

    def places(self, *, bound: bool = False) -> Iterator[Slot]:
        """Every place with a tensor, on whatever device; tied ones repeatedly.

        Args:
            bound: See `slots`.

        Yields:
            Parameters, buffers, gradients, optimizer state, further tensors.
        """
        for name, parameter in self.parameters:
            yield _parameter(name, parameter)
        if self.model is not None:
            for prefix, module in self.model.named_modules():
                for key, buffer in module._buffers.items():
                    if buffer is not None:
                        name = f"{prefix}.{key}" if prefix else key
                        yield _in_table(name, module._buffers, key)
        for name, parameter in self.parameters:
            if parameter.grad is not None:
                yield _gradient(name, parameter)
        yield from self._optimizer_slots(bound=bound)
        for name in self.extra:
            yield _in_table(name, self.extra, name)

    def _optimizer_slots(self, *, bound: bool) -> Iterator[Slot]:
        optimizer = self.optimizer
        if optimizer is None:
            return
        for name, parameter in self.parameters:
            table = optimizer.state.get(parameter, {})
            for key in sorted(k for k, v in table.items() if torch.is_tensor(v)):
                held = table if bound else None
                label = f"optimizer.{key}[{name}]"
                yield _optimizer_entry(label, optimizer, parameter, key, held)

    def with_gradients(self, names: list[str]) -> list[torch.Tensor]:
        """Parameters whose gradients have these names.

        Args:
            names: Such as ``grad[layers.0.weight]``.

        Returns:
            The parameters.
        """
        if not names:
            return []
        wanted = set(names)
        return [p for n, p in self.parameters if f"grad[{n}]" in wanted]

    def key(self) -> tuple[Any, ...]:
        """What changes the graph: gradients present, modes, hyperparameters."""
        present = bytes([p.grad is not None for _, p in self.parameters])
        trains = bytes([p.requires_grad for _, p in self.parameters])
        modes = bytes([m.training for m in self.modules])
        groups: tuple[Any, ...] = ()
        num_states = 0
        if self.optimizer is not None:
            groups = tuple(map(self._group_key, itertools.count(), self.groups))
            num_states = sum(map(len, self.optimizer.state.values()))
        return (present, trains, modes, groups, num_states)

    def _group_key(self, index: int, group: dict[str, Any]) -> tuple[Any, ...]:
        """What of a parameter group changes the graph."""
        known = self._settings.get(index)
        if known is None or not known.are_those_of(group):
            self._settings[index] = known = _Settings.of(group)
        return known.key


KEY_WORDS = (
    "which parameters have a gradient",
    "which parameters require a gradient",
    "training or evaluation mode of a module",
    "optimizer hyperparameters",
    "what the optimizer's state holds",
    "how a tensor of the state is laid out",
)
"""What each part of `StepState.key` says, for messages; and of `Layouts.of`."""


_SCHEDULED = {
    "params",
    "lr",
    # what schedulers note down for themselves
    "initial_lr",
    "max_lr",
    "min_lr",
    "swa_lr",
    "base_momentum",
    "max_momentum",
}


@dataclass(frozen=True, slots=True)
class _Settings:
    """Of a parameter group.

    Attributes:
        names: Of all its entries.
        kept: Names of those that change the graph.
        values: Theirs.
        fixed: Whether none of the values can change in place.
        num_parameters: How many parameters it has.
        key: What is compared with the key of another group.
    """

    names: tuple[str, ...]
    kept: tuple[str, ...]
    values: tuple[Any, ...]
    fixed: bool
    num_parameters: int
    key: tuple[Any, ...]

    @classmethod
    def of(cls, group: dict[str, Any]) -> _Settings:
        kept = tuple(k for k in group if k not in _SCHEDULED)
        values = tuple(group[k] for k in kept)
        texts = [_hashable(value) for value in values]
        num = len(group["params"])
        fixed = all(map(_is_hashable, values))
        key = (("params", num), *zip(kept, texts, strict=True))
        return cls(tuple(group), kept, values, fixed, num, key)

    def are_those_of(self, group: dict[str, Any]) -> bool:
        """Whether a group is sure to have the same key, without comparing values."""
        return (
            self.fixed
            and self.names == tuple(group)
            and self.num_parameters == len(group["params"])
            and all(map(operator.is_, self.values, map(group.get, self.kept)))
        )


def _hashable(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return ("tensor", id(value))
    return value if _is_hashable(value) else repr(value)


def _is_hashable(value: Any) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _keep(tensor: torch.Tensor) -> None:
    """For places whose Python object never changes."""


def _parameter(name: str, parameter: torch.Tensor) -> Slot:
    def write(value: torch.Tensor) -> None:
        parameter.data = value

    return Slot(name, "parameter", lambda: parameter, write, _keep, True)


def _in_table(name: str, table: dict[str, Any], key: str) -> Slot:
    """An entry whose Python object the user may hold, so it stays."""

    def write(value: torch.Tensor) -> None:
        if table.get(key) is None:
            table[key] = value
        else:
            table[key].data = value

    def put(tensor: torch.Tensor) -> None:
        table[key] = tensor

    return Slot(name, "buffer", lambda: table[key], write, put, True, table, key)


def _gradient(name: str, parameter: torch.Tensor) -> Slot:
    def read() -> torch.Tensor:
        assert parameter.grad is not None
        return parameter.grad

    def write(value: torch.Tensor) -> None:
        parameter.grad = value

    return Slot(f"grad[{name}]", "gradient", read, write, write)


def _optimizer_entry(
    name: str,
    optimizer: Optimizer,
    parameter: torch.Tensor,
    key: str,
    held: dict[str, Any] | None,
) -> Slot:
    def table() -> dict[str, Any]:
        # Looked up each time: `load_state_dict` replaces `optimizer.state` as a whole.
        return optimizer.state[parameter] if held is None else held

    def read() -> torch.Tensor:
        return table()[key]

    def write(value: torch.Tensor) -> None:
        entries = table()
        before = entries.get(key)
        if before is not None and (attributes := vars(before)):  # annotations
            vars(value).update(attributes)
        entries[key] = value

    def put(tensor: torch.Tensor) -> None:
        table()[key] = tensor

    if held is not None:
        return Slot(
            name, "optimizer", lambda: held[key], write, put, table=held, key=key
        )
    return Slot(name, "optimizer", read, write, put)
