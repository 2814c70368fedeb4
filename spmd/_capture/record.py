"""What is known of a recorded step: where its inputs come from, where outputs go."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils import _pytree

from spmd._capture.state import Slot, StepState
from spmd._marking.planning import is_planning
from spmd._names.names import dotted
from spmd._names.rebuild import leaves as containers_leaves
from spmd._names.rebuild import rebuild as rebuild_containers
from spmd._torch_xla import graph as torch_xla_graph


@dataclass(frozen=True, slots=True)
class Source:
    """Where an input of the graph comes from at each call.

    Attributes:
        kind: ``state``, ``batch``, ``learning_rate``, ``rng`` or ``constant``.
        name: For people.
        index: Position among the slots, batch leaves or parameter groups.
        value: The tensor of a constant.
    """

    kind: str
    name: str
    index: int = -1
    value: torch.Tensor | None = None


@dataclass(frozen=True, slots=True)
class Output:
    """A leaf of the result that is an output of the graph.

    Attributes:
        index: Which one.
        is_state: The same output is also new state, whose memory is used again.
    """

    index: int
    is_state: bool = False


@dataclass(slots=True)
class Recorded:
    """A recorded step, before it is compiled.

    Attributes:
        slots: State places, those that appear during the step last.
        inputs: Data the graph reads.
        sources: Where each of them comes from.
        outputs: Traced values, each once.
        updated: Slot index to the index of the output that is its new data.
        cleared: Gradients that the step takes away.
        replaced: Slots in which the step put another tensor.
        shape: The result with a `_Part` for each leaf.
        leaves: Its leaves: `Output`, `Source`, or values that are no tensors.
        originals: Data of each slot before the step.
    """

    slots: list[Slot]
    inputs: torch_xla_graph.TracedInputs
    sources: list[Source]
    outputs: list[torch.Tensor]
    updated: dict[int, int]
    cleared: list[str]
    replaced: frozenset[int]
    shape: Any
    leaves: list[Any]
    originals: list[torch.Tensor] = field(repr=False)

    def results(self) -> list[tuple[int, str]]:
        """Outputs that the step returns, with names: ``output``, ``output.loss``."""
        return [
            (leaf.index, name)
            for leaf, name in zip(self.leaves, leaf_names(self.shape), strict=True)
            if isinstance(leaf, Output)
        ]

    def drop_data(self) -> None:
        """Let go of traced values and of the data the state held when it was traced."""
        self.inputs = torch_xla_graph.TracedInputs((), (), None)
        self.outputs, self.originals = [], []

    def donated(self) -> list[torch.Tensor]:
        """Inputs whose memory the graph may reuse: state that it replaces."""
        return [
            value
            for value, source in zip(self.inputs.values, self.sources, strict=True)
            if source.kind == "state" and source.index in self.updated
        ]


def describe(
    result: Any,
    slots: list[Slot],
    originals: list[torch.Tensor],
    *,
    state: StepState,
    objects: Sequence[torch.Tensor],
    batch: dict[str, torch.Tensor],
    rates: Sequence[torch.Tensor | None],
) -> Recorded:
    """Find the place of everything a step read, changed and returned.

    Args:
        result: What the step returned.
        slots: State that was there before it.
        originals: Its data then.
        state: Where state is found now.
        objects: The tensor that was in each slot.
        batch: Tensors in the arguments, by name.
        rates: Learning rates on the device, one per parameter group.

    Returns:
        The recorded step.
    """
    after = {s.name: s for s in state.slots()}
    cleared = [s.name for s in slots if s.name not in after]
    known = {s.name for s in slots}
    slots = [*slots, *(s for n, s in after.items() if n not in known)]
    index = {s.name: i for i, s in enumerate(slots)}
    # In the order of places, so that a gradient that was there before and one that
    # appears in the step give the same graph.
    live = [(index[name], slot.read()) for name, slot in after.items()]
    outputs = _Outputs()
    updated = _updated(live, originals, outputs)
    places = _Places(originals, slots, batch=batch, rates=rates, live=dict(live))
    shape, found = taken_apart(result)
    kept = [_kept(leaf, outputs, places, set(updated.values())) for leaf in found]
    inputs = torch_xla_graph.traced_inputs(outputs.tensors)
    replaced = {i for i, t in live if i < len(objects) and t is not objects[i]}
    return Recorded(
        slots=slots,
        inputs=inputs,
        sources=_sources(inputs, places),
        outputs=outputs.tensors,
        updated=updated,
        cleared=cleared,
        replaced=frozenset(replaced),
        shape=shape,
        leaves=kept,
        originals=originals,
    )


def _updated(
    live: Sequence[tuple[int, torch.Tensor]],
    originals: Sequence[torch.Tensor],
    outputs: _Outputs,
) -> dict[int, int]:
    """Which state holds something else than before, and which output that is."""
    known = dict(enumerate(torch_xla_graph.handles(originals)))
    changed = torch_xla_graph.needs_execution([t for _, t in live])
    found = {}
    for (i, tensor), new in zip(live, changed, strict=True):
        if new:
            # A program has an output for each; when it is replayed, one will do.
            twice = is_planning() and tensor in outputs
        elif i in known and known[i] != torch_xla_graph.handles([tensor])[0]:
            twice = True  # it took over the data of a batch or of other state
        else:
            continue
        found[i] = outputs.add(torch_xla_graph.apart(tensor) if twice else tensor)
    return found


@dataclass(slots=True)
class _Outputs:
    """Traced values, each once: a graph returns equal ones only once."""

    tensors: list[torch.Tensor] = field(default_factory=list)
    index: dict[str, int] = field(default_factory=dict)

    def __contains__(self, tensor: torch.Tensor) -> bool:
        return torch_xla_graph.identities([tensor])[0] in self.index

    def add(self, tensor: torch.Tensor) -> int:
        identity = torch_xla_graph.identities([tensor])[0]
        if identity not in self.index:
            self.index[identity] = len(self.tensors)
            self.tensors.append(tensor)
        return self.index[identity]


class _Places:
    """Where data comes from, by its handle, and which object is which state."""

    def __init__(
        self,
        originals: Sequence[torch.Tensor],
        slots: Sequence[Slot],
        *,
        batch: dict[str, torch.Tensor],
        rates: Sequence[torch.Tensor | None],
        live: dict[int, torch.Tensor],
    ) -> None:
        self.by_handle: dict[int, Source] = {}
        for i, rate in enumerate(rates):
            if rate is not None:
                self._add(rate, Source("learning_rate", f"optimizer.lr[{i}]", i))
        for i, (name, tensor) in enumerate(batch.items()):
            self._add(tensor, Source("batch", name, i))
        known = torch_xla_graph.handles(originals)
        for i, handle in enumerate(known):
            self.by_handle[handle] = Source("state", slots[i].name, i)
        self.by_object = {
            id(tensor): Source("state", slots[i].name, i) for i, tensor in live.items()
        }

    def _add(self, tensor: torch.Tensor, source: Source) -> None:
        self.by_handle[torch_xla_graph.handles([tensor])[0]] = source


def _kept(leaf: Any, outputs: _Outputs, places: _Places, updated: set[int]) -> Any:
    """What stands for a leaf of the result until there are values."""
    if not isinstance(leaf, torch.Tensor) or leaf.device.type != "xla":
        return leaf
    if id(leaf) in places.by_object:
        return places.by_object[id(leaf)]
    leaf = leaf.detach()
    if torch_xla_graph.needs_execution([leaf])[0]:
        index = outputs.add(leaf)
        return Output(index, is_state=index in updated)
    return places.by_handle.get(torch_xla_graph.handles([leaf])[0], leaf)


class _Part:
    """Stands for what a container of the result held: some leaves, as torch has it."""

    __slots__ = ("count", "spec", "start")

    def __init__(self, start: int, count: int, spec: _pytree.TreeSpec) -> None:
        self.start, self.count, self.spec = start, count, spec


def taken_apart(result: Any) -> tuple[Any, list[Any]]:
    """Take a result apart.

    Args:
        result: Nested containers: ours (see `rebuild`), and those that torch knows.

    Returns:
        The containers with a `_Part` for each leaf, and the leaves.
    """
    found: list[Any] = []

    def part(thing: Any) -> _Part:
        inside, spec = _pytree.tree_flatten(thing)
        found.extend(inside)
        return _Part(len(found) - len(inside), len(inside), spec)

    return rebuild_containers(result, part), found


def leaf_names(shape: Any) -> Iterator[str]:
    """A name for each leaf of a result.

    Args:
        shape: From `taken_apart`.

    Yields:
        Such as ``output.loss``.
    """
    for path, part in containers_leaves(shape, "output"):
        name = dotted(path)
        if part.spec.is_leaf():
            yield name
        else:
            yield from (f"{name}.{i}" for i in range(part.count))


def rebuild(
    record: Recorded,
    results: Sequence[torch.Tensor],
    read: Callable[[Source], torch.Tensor],
    *,
    copy: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
) -> Any:
    """What the step returns, from the graph's outputs.

    Args:
        record: The recorded step.
        results: One tensor per output.
        read: Gives an input that the step returns as it is.
        copy: Called with outputs that are new state too.

    Returns:
        The same structure the step returned when it was recorded.
    """

    def value(leaf: Any) -> Any:
        if isinstance(leaf, Output):
            result = results[leaf.index]
            return copy(result) if leaf.is_state else result
        return read(leaf) if isinstance(leaf, Source) else leaf

    def part(p: _Part) -> Any:
        inside = record.leaves[p.start : p.start + p.count]
        return _pytree.tree_unflatten([value(leaf) for leaf in inside], p.spec)

    if isinstance(record.shape, _Part) and record.shape.spec.is_leaf():
        return value(record.leaves[0])  # mostly the loss, and nothing else
    return rebuild_containers(record.shape, part)


def _sources(inputs: torch_xla_graph.TracedInputs, places: _Places) -> list[Source]:
    found = []
    for i, (value, handle) in enumerate(
        zip(inputs.values, inputs.handles, strict=True)
    ):
        if i == inputs.seed:
            found.append(Source("rng", "rng"))
        else:
            constant = Source("constant", f"constant.{i}", value=value)
            found.append(places.by_handle.get(handle, constant))
    return found
