"""`StepGraph`: one compiled graph of a step. `Held`: the state that a call finds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from spmd._layout import View
from spmd._record import Recorded, Source
from spmd._state import Slot


@dataclass(slots=True)
class StepGraph:
    """One compiled graph of a step.

    Attributes:
        key: Of torch_xla's cache; empty if there is nothing to run.
        record: What it was made from.
        order: For each input of the graph its position in what a call puts together,
            see `order_of`.
        kept: Of those that get new data: position in the state, and output.
        renewed: Of those that get another Python object: likewise.
        added: Of those that held nothing before: place, and output.
        layouts: Of each output, once it has run; empty before.
    """

    key: bytes
    record: Recorded
    order: list[int]
    kept: list[tuple[int, int]]
    renewed: list[tuple[int, int]]
    added: list[tuple[Slot, int]]
    layouts: dict[int, str] = field(default_factory=dict)
    _after: tuple[tuple[str, ...], tuple[str, ...]] | None = None

    def layouts_after(self, before: tuple[str, ...]) -> tuple[str, ...]:
        """Layouts of the state once the graph has run.

        Args:
            before: Those that it found.

        Returns:
            First of what there was, then of what was added; the same object where
            nothing changed.
        """
        if self._after is None or self._after[0] is not before:
            after = list(before)
            for i, output in (*self.kept, *self.renewed):
                after[i] = self.layouts[output]
            after += [self.layouts[output] for _, output in self.added]
            same = after == list(before)
            self._after = (before, before if same else tuple(after))
        return self._after[1]


@dataclass(frozen=True, slots=True)
class Held:
    """The state that there is at a call.

    Attributes:
        slots: Its places.
        tensors: What is there.
        view: Of them.
    """

    slots: list[Slot]
    tensors: list[torch.Tensor]
    view: View

    @classmethod
    def of(cls, slots: list[Slot]) -> Held:
        """Read what is there now.

        Args:
            slots: Places on the device.

        Returns:
            Layouts not looked at.
        """
        tensors = [slot.read() for slot in slots]
        return cls(slots, tensors, View.of(tensors))


def order_of(
    sources: Sequence[Source], num_state: int, num_batch: int, num_groups: int
) -> list[int]:
    """Positions of a graph's inputs in state, batch, rates and the rest, in that order.

    Args:
        sources: Of each input.
        num_state: How many tensors of state come first.
        num_batch: How many leaves of the batch follow.
        num_groups: How many learning rates, one for each parameter group.

    Returns:
        One each.
    """
    starts = {
        "state": 0,
        "batch": num_state,
        "learning_rate": num_state + num_batch,
    }
    rest = num_state + num_batch + num_groups
    order = []
    for source in sources:
        if source.kind in starts:
            order.append(starts[source.kind] + source.index)
        else:
            order.append(rest)
            rest += 1
    return order
