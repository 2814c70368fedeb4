"""A model's state while it lives in jax arrays, and the way there and back.

A tensor whose values are on jax's devices is hollow: its Python object stands for a
meta tensor, so that nothing reads stale values, and its annotation stays. Reading it
raises; `HollowState.fill` fills it again.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Container, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.optimizer import Optimizer

from spmd._capture.prime import prime_optimizer
from spmd._capture.state import StepState
from spmd._jax.device_array import DeviceArray
from spmd._marking import promise
from spmd._marking.mark import get_sharding, mark_sharding
from spmd._trace.stand_in import exchange
from spmd._trace.values import as_numpy

Index = tuple[slice, ...]
Source = Callable[[Index], Any]


class HollowState:
    """The torch side of a step's state: full, or hollow while jax has the values.

    Args:
        state: Model, optimizer and further tensors.
    """

    def __init__(self, state: StepState) -> None:
        self._state = state
        self._devices: dict[str, torch.device] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._twins: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        self._gradients: dict[str, torch.Tensor] = {}
        self.is_hollow = False

    def take(self) -> dict[str, Source] | None:
        """Make every tensor hollow.

        Returns:
            Where the pieces of each come from, by name; `None` if nothing changed
            since `fill`, so that what jax has is still right.
        """
        tensors = self._tensors()
        same = {n: (id(t), t._version) for n, t in tensors.items()} == self._seen
        sources, same = {}, same and not any(map(promise.promised, tensors.values()))
        gradients = [name for name in tensors if name.startswith("grad[")]
        for name, tensor in tensors.items():
            promised = promise.promised(tensor)
            self._devices[name] = torch.device("cpu") if promised else tensor.device
            kept = tensor if name in gradients else self._hollowed(name, tensor)
            sources[name] = promised or _pieces(kept)
        for name in gradients:
            self._gradients[name] = tensors[name]
            self.set_gradient(name, present=True)
        self.is_hollow = True
        if self._state.optimizer is not None:
            before = set(tensors)
            fills = _first_values(self._state.optimizer)
            prime_optimizer(self._state.optimizer)
            for name, tensor in self._tensors().items():
                if name not in before:
                    key = name.removeprefix("optimizer.").partition("[")[0]
                    group = self._group_of(name)
                    sources[name] = _constant(fills[group][key], tensor)
        return None if same and self._seen else sources

    def _hollowed(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        twin = _hollow(tensor)
        self._twins[name] = tensor, twin
        return twin.detach()

    def let_go(self, *, besides: Container[str] = ()) -> None:
        """Let go of the values that `take` took: jax has them.

        Args:
            besides: Names of those that jax does not have yet.
        """
        for name, (tensor, _) in self._twins.items():
            if name not in besides:
                promise.kept(tensor)
        self._twins = {n: t for n, t in self._twins.items() if n in besides}
        self._gradients = {}

    def forget(self) -> None:
        """Somebody else has had the values since: what jax has is out of date."""
        self._seen = {}

    def undo(self) -> None:
        """Take back the last `take`: its values were not put anywhere."""
        self._give_back()
        for name, gradient in self._gradients.items():
            for parameter in self._state.with_gradients([name]):
                parameter.grad = gradient
        optimizer = self._state.optimizer
        for table in optimizer.state.values() if optimizer is not None else ():
            for key in [k for k, v in table.items() if _is_hollow(v)]:
                del table[key]
        self._gradients = {}
        self.is_hollow = False

    def _give_back(self) -> None:
        """Fill the tensors whose values were not put anywhere."""
        for tensor, twin in self._twins.values():
            exchange(tensor, twin)
        self._twins = {}

    def fill(
        self,
        values: Mapping[str, DeviceArray],
        waiting: Mapping[str, Source] | None = None,
    ) -> None:
        """Give every tensor its values again, where it was before.

        Args:
            values: By name.
            waiting: Where those come from that jax never had, by name.
        """
        given_back = set(self._twins)
        self._give_back()
        tensors = self._tensors()
        for name, tensor in tensors.items():
            found = None if name in given_back else values.get(name)
            device = self._devices.get(name, self._default_device())
            if found is not None and not name.startswith("grad["):
                _refill(tensor, found.torch(), device)
            elif waiting and name in waiting:
                if name in given_back and not promise.promised(tensor):
                    continue
                whole = tuple(slice(0, d) for d in tensor.shape)
                _refill(tensor, waiting[name](whole).contiguous(), device)
                promise.kept(tensor)
        for name in tensors:
            if name.startswith("grad[") and name in values:
                for parameter in self._state.with_gradients([name]):
                    parameter.grad = values[name].torch().to(parameter.device)
        self.is_hollow = False
        tensors = self._tensors()
        self._seen = {n: (id(t), t._version) for n, t in tensors.items()}

    def set_gradient(self, name: str, *, present: bool) -> None:
        """Have a parameter show, or not show, a hollow gradient.

        Args:
            name: ``grad[layers.0.weight]``.
            present: Whether it has one.
        """
        for parameter in self._state.with_gradients([name]):
            if not present:
                parameter.grad = None
            elif parameter.grad is None:
                parameter.grad = torch.empty_like(parameter)

    def _tensors(self) -> dict[str, torch.Tensor]:
        found, seen = {}, set()
        for slot in self._state.places():
            tensor = slot.read()
            if id(tensor) not in seen:
                seen.add(id(tensor))
                found[slot.name] = tensor
        return found

    def _default_device(self) -> torch.device:
        for name, _ in self._state.parameters:
            if name in self._devices:
                return self._devices[name]
        return torch.device("cpu")

    def _group_of(self, name: str) -> int:
        inner = name.partition("[")[2].removesuffix("]")
        parameter = dict(self._state.parameters)[inner]
        for i, group in enumerate(self._state.groups):
            if any(p is parameter for p in group["params"]):
                return i
        raise AssertionError(f"{name} has no parameter group")


def _hollow(tensor: torch.Tensor) -> torch.Tensor:
    """Make a tensor stand for a meta tensor; returns what it stood for."""
    twin = torch.empty_like(tensor, device="meta", requires_grad=False)
    if tensor.is_leaf and tensor.requires_grad:
        twin.requires_grad_()
    exchange(tensor, twin)
    return twin


def _is_hollow(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.device.type == "meta"


def _refill(tensor: torch.Tensor, value: torch.Tensor, device: torch.device) -> None:
    if device.type != "cpu":
        value = value.to(device)
    if tensor.requires_grad:
        value.requires_grad_()
    exchange(tensor, value)
    annotation = get_sharding(tensor)
    if annotation is not None and device.type == "xla":
        with torch.no_grad():
            mark_sharding(tensor, annotation.mesh, annotation.spec, grad=None)


def _pieces(tensor: torch.Tensor) -> Source:
    """Read pieces of a tensor, without a copy of the whole where it is split."""
    if tensor.device.type == "xla":
        from spmd._torch_xla import seam

        shards = seam.local_shards(tensor)
        found = {
            _key(part): data[tuple(slice(0, s.stop - s.start) for s in part)]
            for _, data, _, part in shards
        }
        whole = tuple((0, d) for d in tensor.shape)

        def read(index: Index) -> Any:
            if _key(index) in found:
                return found[_key(index)]
            if whole in found:
                return found[whole][index]
            return tensor.cpu()[index]

        return read
    return lambda index: tensor[index]


def _key(index: Index) -> tuple[tuple[int, int], ...]:
    return tuple((s.start, s.stop) for s in index)


def _constant(value: float, tensor: torch.Tensor) -> Source:
    """Pieces of a tensor of equal elements, made one at a time."""
    like = torch.full((), value, dtype=tensor.dtype)

    def read(index: Index) -> Any:
        shape = tuple(s.stop - s.start for s in index)
        return like.expand(shape)

    return read


def _first_values(optimizer: Optimizer) -> list[dict[str, float]]:
    """What each entry of an optimizer's state starts from, by parameter group.

    Found on a small parameter, since the state of a large one need never be whole on
    a host. Every optimizer of torch starts from equal elements.
    """
    small = copy.copy(optimizer)
    small.state = defaultdict(dict)
    small.param_groups = [
        {**group, "params": [nn.Parameter(torch.zeros(2, 2))]}
        for group in optimizer.param_groups
    ]
    prime_optimizer(small)
    found: list[dict[str, float]] = []
    for group in small.param_groups:
        state = small.state.get(group["params"][0], {})
        found.append({})
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                flat = as_numpy(value.float()).reshape(-1)
                if not np.all(flat == flat[0]):
                    raise ValueError(
                        f"{type(optimizer).__name__}: its state {key!r} does not start "
                        f"from equal elements, which runtime='jax' needs; call "
                        f"optimizer.step() once before compile_step"
                    )
                found[-1][key] = float(flat[0])
    return found
