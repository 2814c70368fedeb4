"""Equal layers that hold their tensors stacked: one [layers, ...] for all of them.

A program of such layers has as many inputs, outputs and updates as one layer has. In
`state_dict()`, `load_state_dict` and checkpoints each layer has its own tensors, under
the names that it had.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from spmd._marking.mark import Annotation, get_sharding, remember
from spmd._marking.planning import is_planning
from spmd._program.value import STACKED
from spmd._stacked.twin import twin

Tensors = list[torch.Tensor]
Part = Callable[[torch.Tensor, int], torch.Tensor]
Told = tuple[bool, list[str], list[str], list[str]]
"""``strict`` and the lists of ``_load_from_state_dict`` of `torch.nn.Module`."""


class Stacked(nn.Module):
    """A list of layers; the first holds the tensors of all, [layers, ...].

    Seen from outside it is a list as before: its layers are made when one asks for
    them, and their tensors are views of the stacked ones.
    """

    @property
    def layer_names(self) -> tuple[str, ...]:
        """What the layers are called: ``("0", "1", ...)``."""
        return self.__dict__["_spmd_layers"]

    @property
    def template(self) -> nn.Module:
        """The layer that holds the tensors of all."""
        found = self._modules[STACKED]
        assert found is not None
        return found

    def layer(self, index: int) -> nn.Module:
        """One layer, its tensors views of the stacked ones as they are now.

        Args:
            index: Which.

        Returns:
            A module of its own; writing into its tensors writes into the stacked ones.
        """
        return self._twin(index, part)

    def _twin(self, index: int, own: Part) -> nn.Module:
        shell = self.__dict__["_shells"][index]
        return twin(shell, self.template, lambda stacked: own(stacked, index))

    @contextmanager
    def apart(self, own: Part | None = None) -> Iterator[dict[str, nn.Module]]:
        """Inside, the list has its layers as children, as if they were not stacked.

        Args:
            own: Gives what a layer has of a stacked tensor (default: a view).

        Yields:
            The layers by name.
        """
        names = enumerate(self.layer_names)
        layers = {n: self._twin(i, own or part) for i, n in names}
        before = dict(self._modules)
        try:
            refill(self._modules, layers)
            yield layers
        finally:
            refill(self._modules, before)

    def __len__(self) -> int:
        """Number of layers."""
        return len(self.layer_names)

    def __iter__(self) -> Iterator[Any]:
        """The layers, see `layer`."""
        return (self.layer(i) for i in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        """A layer, or several of them as a list, see `layer`."""
        if isinstance(index, slice):
            return nn.ModuleList(self.layer(i) for i in range(len(self))[index])
        if not -len(self) <= index < len(self):
            raise IndexError(f"index {index} is out of range of {len(self)} layers")
        return self.layer(range(len(self))[index])

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """The state of each layer under its own name, see `torch.nn.Module`.

        Args:
            *args: For `torch.nn.Module.state_dict`.
            **kwargs: For it.

        Returns:
            Views of the stacked tensors; of those on the XLA device copies, made in one
            go, unless ``keep_vars`` is given.
        """
        with self.apart() as layers:
            found = super().state_dict(*args, **kwargs)
        if kwargs.get("keep_vars") or is_planning():
            return found
        known: dict[str, Annotation | None] = {}
        for name, layer in layers.items():
            path = f"{kwargs.get('prefix', '')}{name}"
            known.update({f"{path}.{k}": get_sharding(t) for k, t in _saved(layer)})
            keys = (key for key in found if key.startswith(f"{path}."))
            known.update({key: None for key in keys if key not in known})
        found.update(_copied({k: found[k] for k in known if k in found}, known))
        return found

    def apply(self, fn: Callable[[nn.Module], None]) -> Any:
        """Call a function with each layer, see `torch.nn.Module.apply`.

        Args:
            fn: Called with every module; may write into tensors.

        Returns:
            Itself.
        """
        with torch.no_grad(), self.apart():
            return super().apply(fn)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        """Stack what each layer takes from the state, for the children to load."""
        told = (strict, missing_keys, unexpected_keys, error_msgs)
        if not any(key.startswith(f"{prefix}{STACKED}.") for key in state_dict):
            self._restack(state_dict, prefix, told)
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *told)

    def _restack(self, state_dict: dict[str, Any], prefix: str, told: Told) -> None:
        tables = []
        for i, name in enumerate(self.layer_names):
            inside = f"{prefix}{name}."
            keys = [key for key in state_dict if key.startswith(inside)]
            own = {key: state_dict.pop(key) for key in keys}
            hollow = self._twin(i, _hollow)
            _load(hollow, own, inside, told)
            tables.append(dict(_saved(hollow)))
        for key, whole in _saved(self.template):
            parts = [table[key] for table in tables]
            state_dict[f"{prefix}{STACKED}.{key}"] = _filled(parts, whole)

    def __repr__(self) -> str:
        """One layer, and how many there are."""
        return nn.Module.__repr__(self)

    def extra_repr(self) -> str:
        """How many layers there are."""
        return f"{len(self)} layers, tensors [{len(self)}, ...]"

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError(
            f"the tensors of these {len(self)} layers are stacked for a loop; change "
            f"the list before it is wrapped, or leave scan_layers out"
        )

    append = extend = insert = pop = _refuse
    __setitem__ = __delitem__ = __iadd__ = _refuse


def layer_names(module: nn.Module) -> tuple[str, ...]:
    """What the layers are called whose tensors a list holds stacked.

    Args:
        module: Any module.

    Returns:
        Nothing for one that is no such list.
    """
    return vars(module).get("_spmd_layers", ())


@contextmanager
def unstacked(module: nn.Module) -> Iterator[None]:
    """Inside, a model has the layers of its lists as if they were not stacked.

    Their tensors are views, or stand-ins of their own where the stack is on meta.

    Args:
        module: The model, which may hold layers stacked.

    Yields:
        Nothing.
    """

    def own(stacked: torch.Tensor, index: int) -> torch.Tensor:
        is_meta = stacked.device.type == "meta"
        return _hollow(stacked) if is_meta else part(stacked, index)

    with ExitStack() as stack:
        for one in [m for m in module.modules() if isinstance(m, Stacked)]:
            stack.enter_context(one.apart(own))
        yield


def layers_of(module: nn.Module, name: str) -> list[str] | None:
    """What the parts of a stacked tensor are called in the model.

    Args:
        module: The model.
        name: Of a parameter or buffer: ``layers.*.up.weight``.

    Returns:
        ``layers.0.up.weight`` and so on; None for a tensor that is not stacked.
    """
    path, found, inside = f".{name}".partition(f".{STACKED}.")
    if not found:
        return None
    path = path.removeprefix(".")
    names = layer_names(module.get_submodule(path))
    return [join(path, f"{layer}.{inside}") for layer in names]


def per_layer(
    module: nn.Module, named: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[tuple[str, torch.Tensor]]:
    """Name each layer's part of stacked tensors as the model named it.

    Args:
        module: The model, which may hold layers stacked.
        named: Tensors by the name of their parameter or buffer.

    Yields:
        Names and views: ``layers.0.up.weight`` for ``layers.*.up.weight``.
    """
    for name, tensor in named:
        names = layers_of(module, name)
        if names is None:
            yield name, tensor
        else:
            yield from ((n, part(tensor, i)) for i, n in enumerate(names))


def part(stacked: torch.Tensor, index: int) -> torch.Tensor:
    """What one layer has of a stacked tensor.

    Args:
        stacked: [layers, ...].
        index: Which layer.

    Returns:
        A view [...], annotated as the tensor is.
    """
    known = get_sharding(stacked)
    value = stacked[index]
    return value if known is None else remember(value, known.mesh, known.spec[1:])


def _hollow(stacked: torch.Tensor, _: int = 0) -> torch.Tensor:
    """What a layer has, without data."""
    hollow = torch.empty(stacked.shape[1:], dtype=stacked.dtype, device="meta")
    if isinstance(stacked, nn.Parameter):
        return nn.Parameter(hollow, stacked.requires_grad)
    return hollow


def _load(
    module: nn.Module,
    state: dict[str, Any],
    prefix: str,
    told: Told,
) -> None:
    """Have a hollow module take tensors from a state; what it lacks stays hollow."""
    metadata = {"assign_to_params_buffers": True}
    module._load_from_state_dict(state, prefix, metadata, *told)
    for name, child in module._modules.items():
        if child is not None:
            inside = f"{prefix}{name}."
            own = {k: v for k, v in state.items() if k.startswith(inside)}
            _load(child, own, inside, told)


def _saved(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """What a state has of a module, under the names that it has inside."""
    for path, child in module.named_modules(remove_duplicate=False):
        for key, parameter in child._parameters.items():
            if parameter is not None:
                yield join(path, key), parameter
        for key, buffer in child._buffers.items():
            if buffer is not None and key not in child._non_persistent_buffers_set:
                yield join(path, key), buffer


def _filled(parts: Tensors, whole: torch.Tensor) -> torch.Tensor:
    """The stack of what was loaded; of a layer that got nothing, what it had."""
    if all(p.device.type == "meta" for p in parts):
        return whole.detach()
    given = next(p for p in parts if p.device.type != "meta")
    return torch.stack(
        [
            (whole[i] if p.device.type == "meta" else p).detach().to(given.device)
            for i, p in enumerate(parts)
        ]
    )


def _copied(
    views: dict[str, Any], known: dict[str, Annotation | None]
) -> dict[str, Any]:
    """Parts of tensors on the XLA device as data, by one graph instead of many."""
    on_device = {
        k: v for k, v in views.items() if torch.is_tensor(v) and v.device.type == "xla"
    }
    if not on_device:
        return views
    from spmd._torch_xla import graph as torch_xla_graph
    from spmd._torch_xla import seam

    made: dict[int, torch.Tensor] = {}
    for key, view in on_device.items():
        if id(view) in made:
            continue
        made[id(view)] = value = view.detach().clone()
        split = known[key]
        if split is not None:
            seam.mark(value, split.mesh, split.spec)
            remember(value, split.mesh, split.spec)
    torch_xla_graph.execute(list(made.values()))
    return {k: made.get(id(view), view) for k, view in views.items()}


def refill(table: dict[str, Any], entries: dict[str, Any]) -> None:
    """Give a table other entries; those who share it see them.

    Args:
        table: Of a module.
        entries: What it has from now on.
    """
    table.clear()
    table.update(entries)


def join(path: str, key: str) -> str:
    """Two parts of a name with a dot, unless the first is empty.

    Args:
        path: First part.
        key: Second part.
    """
    return f"{path}.{key}" if path else key
