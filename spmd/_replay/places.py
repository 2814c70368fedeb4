"""`Places`: slots of a step that are read, and given what it made, at each call.

There are a thousand, and what is asked of each counts: entries of tables, which most
are, are read without a call of Python's for each.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch

from spmd._capture.state import Slot
from spmd._replay.layout import View
from spmd._torch_xla import graph as torch_xla_graph


@final
class Places:
    """Slots in an order.

    Args:
        slots: Places on the device, good for as long as `StepState.tables` and the set
            of gradients are the same.

    Attributes:
        slots: The same.
    """

    __slots__ = ("_runs", "slots")

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = slots
        self._runs = list(_runs(slots))

    def read(self) -> list[torch.Tensor]:
        """What is there now; one each."""
        tensors: list[torch.Tensor] = []
        for function, *arguments in self._runs:
            tensors += function(*arguments)
        return tensors

    def renew(
        self,
        changes: Sequence[tuple[int, int]],
        before: Sequence[torch.Tensor],
        results: Sequence[torch.Tensor],
    ) -> None:
        """Put other tensors in some places, with what was hung on those before them.

        Args:
            changes: Position, and which of the results comes there.
            before: What `read` gave.
            results: Outputs of a graph.
        """
        slots = self.slots
        for i, output in changes:
            slot = slots[i]
            if slot.table is None:
                slot.write(results[output])
                continue
            new = results[output]
            if attributes := vars(before[i]):  # annotations
                vars(new).update(attributes)
            slot.table[slot.key] = new


def _runs(slots: Sequence[Slot]) -> Iterator[tuple[Any, ...]]:
    """What reads some slots that follow one another, as a function and arguments."""
    start = 0
    while start < len(slots):
        end = start + 1
        while end < len(slots) and _kind(slots[end]) == _kind(slots[start]):
            end += 1
        run, kind = slots[start:end], _kind(slots[start])
        if kind == "entry":
            yield map, operator.getitem, [s.table for s in run], [s.key for s in run]
        elif kind == "fixed":
            yield iter, [s.read() for s in run]
        else:
            yield map, operator.call, [s.read for s in run]
        start = end


def _kind(slot: Slot) -> str:
    if slot.table is not None:
        return "entry"
    return "fixed" if slot.role == "parameter" else "other"


@dataclass(slots=True)
class Held:
    """The state that there is at a call.

    Attributes:
        places: Where.
        tensors: What is there.
        view: Of them.
    """

    places: Places
    tensors: list[torch.Tensor]
    view: View

    @classmethod
    def of(cls, places: Places) -> Held:
        """Read what is there now.

        Args:
            places: On the device.

        Returns:
            Layouts not looked at.
        """
        tensors = places.read()
        # The answer is known. Asking for all at once is a quick way to have what is
        # behind them in the processor's cache when they are asked one by one.
        torch_xla_graph.needs_execution(tensors)
        return cls(places, tensors, View.of(tensors))
