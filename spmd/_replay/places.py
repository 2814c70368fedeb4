"""`Places`: slots of a step that are read, and given what it made, at each call.

There are a thousand, and what is asked of each counts: entries of tables, which most
are, are read without a call of Python's for each.
"""

from __future__ import annotations

import operator
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
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

    __slots__ = ("_renewal", "_runs", "slots")

    def __init__(self, slots: Sequence[Slot]) -> None:
        self.slots = slots
        self._runs = list(_runs(slots))
        self._renewal: _Renewal | None = None

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
        if self._renewal is None or self._renewal.changes is not changes:
            self._renewal = _Renewal.of(self.slots, changes)
        todo = self._renewal
        new = list(map(results.__getitem__, todo.outputs))
        hung = map(vars, map(before.__getitem__, todo.positions))  # annotations
        _all(map(_hang, new, map(dict.copy, hung)))
        _all(map(operator.setitem, todo.tables, todo.keys, new))
        for slot, output in todo.others:
            slot.write(results[output])


# An attribute, not `vars(new).update`: that makes an empty table first.
_hang = torch.Tensor.__dict__["__dict__"].__set__


def _all(calls: Iterable[object]) -> None:
    deque(calls, maxlen=0)


@dataclass(frozen=True, slots=True)
class _Renewal:
    """How to put results in some places.

    Attributes:
        changes: See `Places.renew`.
        positions: Of entries of tables.
        outputs: Which of the results comes there; each once.
        tables: Theirs.
        keys: Theirs.
        others: The other places, likewise.
    """

    changes: Sequence[tuple[int, int]]
    positions: list[int]
    outputs: list[int]
    tables: list[dict[str, Any]]
    keys: list[str]
    others: list[tuple[Slot, int]]

    @classmethod
    def of(cls, slots: Sequence[Slot], changes: Sequence[tuple[int, int]]) -> _Renewal:
        times = Counter(output for _, output in changes)
        made = cls(changes, [], [], [], [], [])
        for i, output in changes:
            slot = slots[i]
            if slot.table is None or times[output] > 1:
                made.others.append((slot, output))
                continue
            made.positions.append(i)
            made.outputs.append(output)
            made.tables.append(slot.table)
            made.keys.append(slot.key)
        return made


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
