"""`CompiledStep`: a step as one compiled graph, run again at each call.

Most of a call is torch_xla's: it hands a thousand buffers to eight devices. The rest is
kept small: state is read by places found when the step was recorded, and its layout is
asked for only where something else wrote to it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, final

import torch

from spmd import _torch_xla, _torch_xla_graph
from spmd._capture import rate_tensor, recorded, separate
from spmd._digest import graph_digest
from spmd._host_spans import TRACE, span, step_span
from spmd._layout import Stamp, describe, layouts_for, stamps
from spmd._names import by_parameter, call_leaves, dotted
from spmd._prime import prime_optimizer
from spmd._record import Recorded, Source, rebuild
from spmd._state import Slot, StepState
from spmd._tree import named_leaves
from spmd._variants import Variants, batch_key

Key = tuple[Any, ...]
_dropper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spmd-dropper")
_MAX_PLACES = 16  # lists of places that are kept, one for each set of gradients


@dataclass(slots=True)
class _Graph:
    """One compiled graph of a step.

    Attributes:
        key: Of torch_xla's cache; empty if there is nothing to run.
        record: What it was made from.
        order: For each input of the graph its position in what `_run` puts together.
        slots: What it updates.
        outputs: For each of them the output that is its new data.
        replaced: Of those that held something before: position in `slots` and in the
            state that there was, and whether the Python object stays.
        layouts: Of each output that is new state, once it has run.
    """

    key: bytes
    record: Recorded
    order: list[int]
    slots: list[Slot]
    outputs: list[int]
    replaced: list[tuple[int, int, bool]]
    layouts: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Held:
    """The state that there is at a call."""

    slots: list[Slot]
    tensors: list[torch.Tensor]
    stamps: list[Stamp]

    @classmethod
    def of(cls, slots: list[Slot]) -> _Held:
        tensors = [slot.read() for slot in slots]
        return cls(slots, tensors, stamps(tensors))


@final
class CompiledStep:
    """A training step that runs as one compiled graph; made by `compile_step`.

    Args:
        fn: The step.
        state: What it may read and update.
        max_graphs: How many variants may be compiled.
        donate: Let the graph reuse the memory of state that it replaces.

    Attributes:
        num_calls: Calls so far.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        state: StepState,
        *,
        max_graphs: int,
        donate: bool,
    ) -> None:
        self._fn = fn
        self._state = state
        self._donate = donate
        self._variants: Variants[_Graph] = Variants(max_graphs)
        self._by_digest: dict[str, bytes] = {}
        self._layouts = layouts_for(state.model)
        self._places: dict[Key, list[Slot]] = {}
        self._rates: dict[int, tuple[float, torch.Tensor]] = {}
        self._spent: deque[list[torch.Tensor]] = deque()
        self._primed: tuple[Any, list[int]] = (None, [])
        self.num_calls = 0

    @property
    def num_graphs(self) -> int:
        """Different graphs compiled so far."""
        return self._variants.num_graphs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step, after everything that was recorded before it.

        Args:
            *args: As `fn` takes them; tensors on the XLA device.
            **kwargs: Likewise.

        Returns:
            What `fn` returns, with tensors of this step.

        Raises:
            CaptureError: A new variant that cannot be captured, or one too many.
            HostReadError: The step reads a device value on the host.
            ValueError: A tensor in the arguments on the CPU.
        """
        with step_span():
            return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        batch, other = call_leaves(self._fn, args, kwargs)
        leaves = list(batch.values())
        _check_batch(batch)
        self._prime_again()
        # What is pending reads state whose memory this step may use again. The layout
        # of a batch that is still to be computed is known once it is.
        new = any(_torch_xla_graph.needs_execution(leaves))
        _torch_xla_graph.settle(wait_for_it=new)
        key, held = self._look(batch, other)
        graph = self._variants.get(key)
        try:
            if graph is None:
                graph = self._capture(key, args, kwargs, batch)
                held = self._look(batch, other)[1]
            results = self._run(graph, held, leaves)
        except _torch_xla_graph.GraphEvicted:
            self._variants.drop(key)
            graph = self._capture(key, args, kwargs, batch, again=True)
            held = self._look(batch, other)[1]
            results = self._run(graph, held, leaves)
        _torch_xla_graph.advance_seed()
        self.num_calls += 1
        self._write_back(graph, held, results)
        result = self._result(graph.record, results, leaves)
        _torch_xla_graph.mark_settled()
        # Dropping buffers takes as long as sending off a graph, and waits for the graph
        # they were donated to: so it is done elsewhere while the devices work, for one
        # that is over.
        while len(self._spent) > 2:
            _dropper.submit(_drop, self._spent.popleft())
        return result

    def _prime_again(self) -> None:
        """Treat state that was loaded since as `compile_step` treats the first."""
        optimizer = self._state.optimizer
        if optimizer is None:
            return
        sizes = [len(group["params"]) for group in optimizer.param_groups]
        state, before = self._primed
        if state is not optimizer.state or before != sizes:
            prime_optimizer(optimizer)
            self._primed = (optimizer.state, sizes)

    def _look(self, batch: dict[str, torch.Tensor], other: Key) -> tuple[Key, _Held]:
        """What decides which graph to run, and the state that there is."""
        state = self._state.key()
        present = (state[0], state[3], state[4], self._state.tables())
        if present not in self._places:
            if len(self._places) == _MAX_PLACES:
                self._places.clear()
            self._state.refresh()
            self._places[present] = self._state.slots(bound=True)
            state = self._state.key()
        slots = self._places[present]
        held = _Held.of(slots)
        if len({number for number, _ in held.stamps}) < len(slots):
            separate(slots)
            held = _Held.of(slots)
        layouts = self._layouts.of(held.tensors, held.stamps)
        if layouts is None:
            held = _Held.of(slots)
            layouts = self._layouts.of(held.tensors, held.stamps)
        return (batch_key(batch, _layout), other, *state, layouts), held

    def _identity(self, outputs: list[torch.Tensor], *, again: bool) -> bytes:
        """The key of a graph, that of an equal one if there is one.

        torch_xla's own hash is not enough: it has been seen to differ for graphs whose
        HLO is the same, which would then be compiled once more.
        """
        digest = graph_digest(outputs)
        key = _torch_xla_graph.graph_key(outputs)
        if again:
            self._by_digest[digest] = key
        return self._by_digest.setdefault(digest, key)

    def _capture(
        self,
        key: Key,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        batch: dict[str, torch.Tensor],
        *,
        again: bool = False,
    ) -> _Graph:
        _check_arrays(by_parameter(self._fn, args, kwargs))
        self._places.clear()
        with recorded(self._fn, args, kwargs, state=self._state, batch=batch) as record:
            num_state = len(record.originals)
            with _torch_xla_graph.donating(record.donated() if self._donate else ()):
                outputs = record.outputs
                with span(TRACE):
                    identity = self._identity(outputs, again=again) if outputs else b""
                if not again:
                    self._variants.announce(key, identity)
                if outputs and (again or self._variants.same(identity) is None):
                    _torch_xla_graph.compile_graph(outputs)
            record.drop_data()
        slots = [record.slots[i] for i in record.updated]
        graph = _Graph(
            key=identity,
            record=record,
            order=_order(record.sources, num_state, len(batch), len(self._rates_now())),
            slots=slots,
            outputs=list(record.updated.values()),
            replaced=[
                (n, i, record.slots[i].keeps)
                for n, i in enumerate(record.updated)
                if i < num_state
            ],
        )
        self._variants.add(key, identity, graph)
        return graph

    def _run(
        self,
        graph: _Graph,
        held: _Held,
        leaves: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        if not graph.key:
            return []  # the step neither changes nor computes anything
        sources = graph.record.sources
        others = [self._other(s) for s in sources if s.kind in ("rng", "constant")]
        pool = [*held.tensors, *leaves, *self._rates_now(), *others]
        old = [
            held.tensors[i].data if keeps else held.tensors[i]
            for _, i, keeps in (graph.replaced if self._donate else ())
        ]
        inputs = [pool[i] for i in graph.order]
        try:
            results = _torch_xla_graph.run_graph(graph.key, inputs)
        except _torch_xla_graph.GraphEvicted:
            old.clear()  # or the state would seem to be shared when it is captured
            raise
        self._spent.append(old)
        return results

    def _rates_now(self) -> list[torch.Tensor | None]:
        return [self._rate(i) for i in range(len(self._state.groups))]

    def _other(self, source: Source) -> torch.Tensor:
        if source.kind == "rng":
            return _torch_xla_graph.seed_tensor()
        assert source.value is not None
        return source.value

    def _rate(self, group: int) -> torch.Tensor | None:
        """The learning rate of a parameter group, on the device."""
        rate = self._state.groups[group].get("lr")
        if rate is None:
            return None
        if isinstance(rate, torch.Tensor):
            return rate_tensor(rate)
        before = self._rates.get(group)
        if before is None or before[0] != rate:
            self._rates[group] = before = (rate, rate_tensor(rate))
        return before[1]

    def _write_back(
        self, graph: _Graph, held: _Held, results: Sequence[torch.Tensor]
    ) -> None:
        # From here on the devices work, and where they are the cores of this machine
        # they take them: little is left to do.
        slots = list(graph.slots)
        for n, i, _ in graph.replaced:
            slots[n] = held.slots[i]
        for slot, output in zip(slots, graph.outputs, strict=True):
            slot.write(results[output])
        for parameter in self._state.with_gradients(graph.record.cleared):
            parameter.grad = None
        if not graph.layouts:
            _torch_xla.wait()
            graph.layouts = describe([results[i] for i in graph.outputs])
        self._layouts.forget([held.stamps[i] for _, i, _ in graph.replaced])
        ids = _torch_xla_graph.ids_of_results(results)
        versions = [0] * len(graph.slots)
        for n, i, keeps in graph.replaced:
            if keeps:  # `data` was assigned to, which is no change to torch
                versions[n] = held.stamps[i][1]
        written = zip([ids[i] for i in graph.outputs], versions, strict=True)
        self._layouts.learn(written, graph.layouts)

    def _result(
        self,
        record: Recorded,
        results: Sequence[torch.Tensor],
        leaves: Sequence[torch.Tensor],
    ) -> Any:
        def read(source: Source) -> Any:
            if source.kind == "state":
                return record.slots[source.index].read()
            if source.kind == "batch":
                return leaves[source.index]
            if source.kind == "learning_rate":
                return self._rate(source.index)
            return source.value

        # State that is returned as well would be gone after the next call.
        return rebuild(record, results, read, copy=_copy)


def _drop(tensors: list[torch.Tensor]) -> None:
    """Let go of tensors, a few at a time so that other threads can go on."""
    while tensors:
        del tensors[-16:]


def _order(
    sources: Sequence[Source], num_state: int, num_batch: int, num_groups: int
) -> list[int]:
    """Positions of the inputs in state, batch, rates and the rest, put together."""
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


def _check_batch(batch: dict[str, torch.Tensor]) -> None:
    for name, tensor in batch.items():
        if tensor.device.type != "xla":
            raise ValueError(
                f"compiled step: {name} {list(tensor.shape)} is on {tensor.device}; "
                f"give it to the devices with spmd.shard_batch(batch, mesh) or a "
                f"spmd.ShardedLoader"
            )


def _check_arrays(arguments: dict[str, Any]) -> None:
    for argument, value in arguments.items():
        for path, leaf in named_leaves(value):
            if not isinstance(leaf, torch.Tensor) and hasattr(leaf, "__array__"):
                raise ValueError(
                    f"compiled step: {argument}{dotted(path)} is a "
                    f"{type(leaf).__name__}, whose values would be baked in; give it "
                    f"to the devices with spmd.shard_batch(batch, mesh)"
                )


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with a buffer of its own: a clone that waits for its turn has none."""
    copy = tensor.clone()
    _torch_xla_graph.execute([copy])
    return copy


def _layout(tensor: torch.Tensor) -> str | None:
    """How torch_xla has a batch tensor that carries no annotation."""
    layout = _torch_xla_graph.layouts([tensor])[0]
    return None if layout == "{replicated}" else layout
