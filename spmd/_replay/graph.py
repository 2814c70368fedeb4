"""`StepGraph`: one compiled graph of a step, with what a call needs of it at hand."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from spmd._capture.record import Recorded, Source
from spmd._capture.state import Slot
from spmd._replay.layout import View
from spmd._torch_xla import graph as torch_xla_graph


class StepGraph:
    """One compiled graph of a step.

    Args:
        key: Of torch_xla's cache; empty if there is nothing to run.
        record: What it was made from.
        num_state: How many tensors of state a call finds.
        num_batch: How many leaves the batch has.
        num_groups: How many learning rates there are, one for each parameter group.

    Attributes:
        key: See above.
        record: See above.
        order: For each input of the graph its position in what a call puts together,
            see `order_of`.
        others: Inputs that come last there: constants, and `None` for a random seed.
        kept: Of those that get new data: position in the state, and output.
        renewed: Of those that get another Python object: likewise.
        added: Of those that held nothing before: place, and output.
        layouts: Of each output that is state; `None` before it has run.
    """

    def __init__(
        self,
        key: bytes,
        record: Recorded,
        *,
        num_state: int,
        num_batch: int,
        num_groups: int,
    ) -> None:
        self.key = key
        self.record = record
        self.order = order_of(record.sources, num_state, num_batch, num_groups)
        self.others = [s.value for s in record.sources if s.kind in _OTHERS]
        updated = list(record.updated.items())
        before = [(i, out) for i, out in updated if i < num_state]
        self.kept = [(i, out) for i, out in before if record.slots[i].keeps]
        self.renewed = [(i, out) for i, out in before if not record.slots[i].keeps]
        self.added: list[tuple[Slot, int]] = [
            (record.slots[i], out) for i, out in updated if i >= num_state
        ]
        self.layouts: dict[int, str] | None = None
        # For each place after a call: its position in what it held before and outputs.
        self._after = list(range(num_state))
        for i, output in before:
            self._after[i] = num_state + output
        self._after += [num_state + output for _, output in self.added]
        self._last: tuple[View, View] | None = None

    def view_after(self, before: View, results: Sequence[torch.Tensor]) -> View:
        """The state once the graph has run: what there was, then what was added.

        Args:
            before: What it found, with layouts.
            results: What it returned; `layouts` are known.

        Returns:
            With layouts, and with versions and layouts of `before` where nothing
            changed.
        """
        numbers = torch_xla_graph.ids_of_results(results)
        ids = list(map([*before.ids, *numbers].__getitem__, self._after))
        last = self._last
        if (
            last is None
            or last[0].versions is not before.versions
            or last[0].layouts is not before.layouts
        ):
            self._last = last = (before, self._changed(before))
        return View(ids, last[1].versions, last[1].layouts)

    def _changed(self, before: View) -> View:
        """Versions and layouts after a call, which are those of the last one mostly."""
        assert self.layouts is not None
        versions, layouts = before.versions.copy(), list(before.layouts)
        for i, output in self.kept:  # `data` was assigned to, which torch counts not
            layouts[i] = self.layouts[output]
        for i, output in self.renewed:
            versions[i], layouts[i] = 0, self.layouts[output]
        versions += [0 for _ in self.added]
        layouts += [self.layouts[output] for _, output in self.added]
        return View(
            [],
            before.versions if versions == before.versions else versions,
            before.layouts if layouts == list(before.layouts) else tuple(layouts),
        )


_OTHERS = ("rng", "constant")


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
