"""Keep the names and shapes of parameters that are held in pieces.

`state_dict()` and `load_state_dict()` of such a module have what the module had before:
each parameter whole, under its own name, in its own order.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

_ATTRIBUTE = "_spmd_pieces"


@dataclass(frozen=True, slots=True)
class Pieces:
    """A parameter that is held in pieces.

    Attributes:
        name: What it is called in its module: ``weight``.
        dim: The dim along which it was cut.
        sizes: What its pieces are called there, in order, and their sizes along `dim`:
            ``{"q.weight": 64, "k.weight": 16, "v.weight": 16}``.
    """

    name: str
    dim: int
    sizes: Mapping[str, int]

    def ranges(self) -> Iterator[tuple[str, int, int]]:
        """Name, first index and size of each piece."""
        start = 0
        for name, size in self.sizes.items():
            yield name, start, size
            start += size

    def take(self, whole: torch.Tensor) -> dict[str, torch.Tensor]:
        """The pieces of a whole, by name; views of it.

        Args:
            whole: The parameter, or what goes with each number of it.
        """
        return {n: whole.narrow(self.dim, at, size) for n, at, size in self.ranges()}


def hold_in_pieces(module: nn.Module, held: Iterable[Pieces]) -> None:
    """Have a module's state under the names that it had.

    Args:
        module: Whose submodules and parameters are the pieces.
        held: What they are pieces of.
    """
    held = tuple(held)
    setattr(module, _ATTRIBUTE, held)
    # Of plain values, so that copies of the module do not refer to this one.
    module.register_state_dict_post_hook(partial(_join, held=held))
    module.register_load_state_dict_pre_hook(partial(_take, held=held))


def pieces_of(module: nn.Module) -> tuple[Pieces, ...]:
    """What a module holds in pieces.

    Args:
        module: Any module; what is below it is not looked at.
    """
    return vars(module).get(_ATTRIBUTE, ())


def _join(
    module: nn.Module,
    state: dict[str, Any],
    prefix: str,
    local_metadata: Any,
    *,
    held: tuple[Pieces, ...],
) -> None:
    for pieces in held:
        names = [prefix + name for name in pieces.sizes]
        if all(name in state for name in names):
            parts = [state.pop(name) for name in names]
            state[prefix + pieces.name] = torch.cat(parts, pieces.dim)


def _take(
    module: nn.Module,
    state: dict[str, Any],
    prefix: str,
    local_metadata: Any,
    strict: bool,
    missing_keys: list[str],
    unexpected_keys: list[str],
    error_msgs: list[str],
    *,
    held: tuple[Pieces, ...],
) -> None:
    for pieces in held:
        key = prefix + pieces.name
        whole = state.pop(key, None)
        if whole is None and any(prefix + n in state for n in pieces.sizes):
            continue  # a state that is in pieces itself
        total = sum(pieces.sizes.values())
        if whole is not None and whole.shape[pieces.dim : pieces.dim + 1] == (total,):
            taken = pieces.take(whole)
        else:  # named here as a whole, and for the pieces there is nothing to say
            taken = {name: _find(module, name) for name in pieces.sizes}
            if whole is None:
                missing_keys.append(key)
            else:
                error_msgs.append(
                    f"size mismatch for {key}: dim {pieces.dim} of {list(whole.shape)} "
                    f"has to be {total}: "
                    + " + ".join(f"{n} {size}" for n, size in pieces.sizes.items())
                )
        state.update({prefix + name: part for name, part in taken.items()})


def _find(module: nn.Module, name: str) -> torch.Tensor:
    path, _, key = name.rpartition(".")
    return getattr(module.get_submodule(path), key)
