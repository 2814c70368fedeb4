"""Gradients of a loop's weights, kept in parts until after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from fsdpv2._unreduced import Unreduced


class InLoop:
    """Keeps parts of the gradients of a loop's weights, for the loop to hand out.

    Args:
        into: Where they are to be added up after the loop.
        owners: The stack [layers, *shape] of each of the body's weights that has its
            gradient in parts, by position.
    """

    def __init__(self, into: Unreduced, owners: Mapping[int, torch.Tensor]) -> None:
        self._into = into
        self._owners = owners
        self._positions: dict[int, int] = {}
        self._wires: dict[int, torch.dtype] = {}
        self._axes = {i: into.axes_of(owner) for i, owner in owners.items()}
        self.rows, self.axes = into.rows, into.axes
        self.split, self.is_batch, self.stay = into.split, into.is_batch, into.stay
        self.split_sequence, self.see = into.split_sequence, into.see
        self.parts: dict[int, torch.Tensor] = {}
        """[devices, *shape] of one run of the body, by position."""

    def enter(self, weights: Sequence[torch.Tensor]) -> None:
        """Say which tensors the body has for weights.

        Args:
            weights: Leaves, by position.
        """
        found = enumerate(weights)
        self._positions = {id(w): i for i, w in found if i in self._owners}

    def takes(
        self,
        weight: torch.Tensor,
        *values: torch.Tensor,
        axes: tuple[str, ...] | None = None,
    ) -> bool:
        """See `Unreduced.takes`."""
        if torch.is_grad_enabled() or id(weight) not in self._positions:
            return False
        before = self._axes[self._positions[id(weight)]]
        agrees = before in (None, axes or self._into.axes)
        return agrees and self.is_batch(*values)

    def has(self, weight: torch.Tensor) -> bool:
        """See `Unreduced.has`."""
        return id(weight) in self._positions

    def add(
        self,
        weight: torch.Tensor,
        parts: torch.Tensor,
        *,
        wire: torch.dtype,
        axes: tuple[str, ...] | None = None,
    ) -> None:
        """See `Unreduced.add`."""
        i = self._positions[id(weight)]
        if i in self.parts:
            parts = self.parts[i] + parts
        self.parts[i] = self._into.placed(weight, parts, axes=axes)
        self._axes[i], self._wires[i] = axes or self._into.axes, wire

    def hand_out(self, stacks: Mapping[int, torch.Tensor]) -> None:
        """Add to the gradients of the stacks.

        Args:
            stacks: [layers, devices, *shape], by position.
        """
        self.parts.clear()  # the body's values must not outlive it
        for i, stack in stacks.items():
            weight, axes = self._owners[i], self._axes[i]
            parts = self._into.placed(weight, stack, dim=1, axes=axes).transpose(0, 1)
            self._into.add(weight, parts, wire=self._wires[i], axes=axes)
