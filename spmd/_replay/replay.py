"""`CompiledStep`: a step as one compiled graph, run again at each call.

Most of a call is torch_xla's: it hands a thousand buffers to eight devices. The rest is
kept small: state is read by places found when the step was recorded, its layout is
asked for only where something else wrote to it, and what a graph needs of a call is put
together when it is compiled.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, final

import torch

from spmd._capture.capture import rate_tensor, recorded, separate
from spmd._capture.prime import prime_optimizer
from spmd._capture.record import Recorded, Source, rebuild
from spmd._capture.state import StepState
from spmd._host_spans import TRACE, span, step_span
from spmd._marking.optimizer import follow_anew
from spmd._names.names import by_parameter, call_leaves, dotted
from spmd._names.tree import named_leaves
from spmd._replay.digest import graph_digest
from spmd._replay.graph import StepGraph
from spmd._replay.layout import View, describe, layouts_for
from spmd._replay.places import Held, Places
from spmd._replay.variants import Variants, batch_key
from spmd._torch_xla import graph as torch_xla_graph
from spmd._torch_xla import seam

Key = tuple[Any, ...]
_dropper = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spmd-dropper")
_DROPPED_AT_ONCE = 8  # calls; some 8 KB of the host's memory for each tensor
_MAX_PLACES = 16  # lists of places that are kept, one for each set of gradients


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
        self._variants: Variants[StepGraph] = Variants(max_graphs)
        self._by_digest: dict[str, bytes] = {}
        self._layouts = layouts_for(state.model)
        self._note = self._layouts.note()
        self._left: View | None = None
        self._places: dict[Key, Places] = {}
        self._rates: dict[int, tuple[float, torch.Tensor]] = {}
        self._spent: deque[list[torch.Tensor]] = deque()
        self._primed: tuple[Any, list[int]] = (None, [])
        self._recorded = False  # operations, in this call, that were executed
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
        new = any(torch_xla_graph.needs_execution(leaves))
        torch_xla_graph.settle(wait_for_it=new)
        key, held = self._look(batch, other)
        graph = self._variants.get(key)
        try:
            if graph is None:
                graph = self._capture(key, args, kwargs, batch)
                held = self._look(batch, other)[1]
            results = self._run(graph, held, leaves)
        except torch_xla_graph.GraphEvicted:
            self._variants.drop(key)
            graph = self._capture(key, args, kwargs, batch, again=True)
            held = self._look(batch, other)[1]
            results = self._run(graph, held, leaves)
        torch_xla_graph.advance_seed()
        self.num_calls += 1
        self._write_back(graph, held, results)
        result = self._result(graph.record, results, leaves)
        if self._recorded:
            torch_xla_graph.mark_settled()
            self._recorded = False
        # Dropping buffers takes as long as sending off a graph, and waits for the graph
        # they were donated to: so it is done elsewhere while the devices work, for some
        # that are over, and not at each call, since the next one is slower then.
        if len(self._spent) > 2 + _DROPPED_AT_ONCE:
            spent = [self._spent.popleft() for _ in range(_DROPPED_AT_ONCE)]
            _dropper.submit(_drop, spent)
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

    def _look(self, batch: dict[str, torch.Tensor], other: Key) -> tuple[Key, Held]:
        """What decides which graph to run, and the state that there is."""
        state = self._state.key()
        present = (state[0], state[3], state[4], self._state.tables())
        if present not in self._places:
            if len(self._places) == _MAX_PLACES:
                self._places.clear()
            self._state.refresh()
            self._places[present] = Places(self._state.slots(bound=True))
            state = self._state.key()
        held = Held.of(self._places[present])
        if self._left is not None and held.view.is_of_same(self._left):
            held.view = self._left
        else:
            held = self._look_closely(held)
        return (batch_key(batch, _layout), other, *state, held.view.layouts), held

    def _look_closely(self, held: Held) -> Held:
        """The state with its layouts, where it is not what the last call left."""
        self._recorded = True
        places = held.places
        if len(set(held.view.ids)) < len(places.slots):
            separate(places.slots)
            held = Held.of(places)
        layouts = self._layouts.of(held.tensors, held.view.stamps)
        if layouts is None:
            held = Held.of(places)
            layouts = self._layouts.of(held.tensors, held.view.stamps)
        assert layouts is not None  # what was moved is where it belongs now
        held.view.layouts = layouts
        return held

    def _identity(self, outputs: list[torch.Tensor], *, again: bool) -> bytes:
        """The key of a graph, that of an equal one if there is one.

        torch_xla's own hash is not enough: it has been seen to differ for graphs whose
        HLO is the same, which would then be compiled once more.
        """
        digest = graph_digest(outputs)
        key = torch_xla_graph.graph_key(outputs)
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
    ) -> StepGraph:
        _check_arrays(by_parameter(self._fn, args, kwargs))
        if self._state.optimizer is not None:
            follow_anew(self._state.optimizer)
        self._places.clear()
        self._recorded = True
        with recorded(self._fn, args, kwargs, state=self._state, batch=batch) as record:
            num_state = len(record.originals)
            with torch_xla_graph.donating(record.donated() if self._donate else ()):
                outputs = record.outputs
                with span(TRACE):
                    identity = self._identity(outputs, again=again) if outputs else b""
                if not again:
                    self._variants.announce(key, identity)
                if outputs and (again or self._variants.same(identity) is None):
                    torch_xla_graph.compile_graph(outputs)
            record.drop_data()
        graph = StepGraph(
            identity,
            record,
            num_state=num_state,
            num_batch=len(batch),
            num_groups=len(self._state.groups),
        )
        self._variants.add(key, identity, graph)
        return graph

    def _run(
        self,
        graph: StepGraph,
        held: Held,
        leaves: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        if not graph.key:
            return []  # the step neither changes nor computes anything
        tensors = held.tensors
        rates = [self._rate(i) for i in range(len(self._state.groups))]
        others = [
            torch_xla_graph.seed_tensor() if value is None else value
            for value in graph.others
        ]
        pool = [*tensors, *leaves, *rates, *others]
        old = []
        if self._donate:
            old = [tensors[i].data for i, _ in graph.kept]
            old += [tensors[i] for i, _ in graph.renewed]
        inputs = list(map(pool.__getitem__, graph.order))
        try:
            results = torch_xla_graph.run_graph(graph.key, inputs)
        except torch_xla_graph.GraphEvicted:
            old.clear()  # or the state would seem to be shared when it is captured
            raise
        self._spent.append(old)
        return results

    def _rate(self, group: int) -> torch.Tensor | None:
        """The learning rate of a parameter group, on the device."""
        rate = self._state.groups[group].get("lr")
        if rate is None:
            return None
        if isinstance(rate, torch.Tensor):
            found = rate_tensor(rate)
            self._recorded |= found is not rate
            return found
        before = self._rates.get(group)
        if before is None or before[0] != rate:
            self._rates[group] = before = (rate, rate_tensor(rate))
            self._recorded = True
        return before[1]

    def _write_back(
        self, graph: StepGraph, held: Held, results: Sequence[torch.Tensor]
    ) -> None:
        # From here on the devices work, and where they are the cores of this machine
        # they take them: little is left to do.
        tensors = held.tensors
        for i, output in graph.kept:
            tensors[i].data = results[output]
        held.places.renew(graph.renewed, tensors, results)
        for slot, output in graph.added:
            slot.write(results[output])
        for parameter in self._state.with_gradients(graph.record.cleared):
            parameter.grad = None
        if graph.layouts is None:
            seam.wait()
            outputs = list(graph.record.updated.values())
            texts = describe([results[i] for i in outputs])
            graph.layouts = dict(zip(outputs, texts, strict=True))
        self._left = graph.view_after(held.view, results)
        self._note.take(held.view, self._left)

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
        return rebuild(record, results, read, copy=self._copy)

    def _copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy with a buffer of its own: a clone that waits for its turn has none."""
        copy = tensor.clone()
        torch_xla_graph.execute([copy])
        self._recorded = True
        return copy


def _drop(spent: list[list[torch.Tensor]]) -> None:
    """Let go of tensors, a few at a time so that other threads can go on."""
    for tensors in spent:
        while tensors:
            del tensors[-16:]


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


def _layout(tensor: torch.Tensor) -> str | None:
    """How torch_xla has a batch tensor that carries no annotation."""
    layout = torch_xla_graph.layouts([tensor])[0]
    return None if layout == "{replicated}" else layout
