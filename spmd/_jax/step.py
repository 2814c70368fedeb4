"""A compiled step whose state lives in jax arrays."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from spmd._batches.hosts import current_hosts, host_index
from spmd._batches.rows import place
from spmd._capture.record import Recorded, Source, rebuild
from spmd._capture.state import StepState
from spmd._host_spans import step_span
from spmd._jax.device_array import DeviceArray, Index, put_parts
from spmd._jax.held import Held
from spmd._jax.runner import Runner
from spmd._jax.state import HollowState
from spmd._marking.mark import get_sharding, remember
from spmd._marking.planning import is_planning
from spmd._meshes.mesh import Mesh
from spmd._names.names import call_leaves
from spmd._names.rebuild import rebuild as rebuild_tree
from spmd._program.value import Value
from spmd._replay.variants import Variants, batch_key
from spmd._torch_xla import graph as torch_xla_graph
from spmd._trace.trace import traced

_owners: weakref.WeakKeyDictionary[nn.Module, weakref.ref[JaxStep]]
_owners = weakref.WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class _Variant:
    """A traced program, how to run it, and what the step returned."""

    runner: Runner
    record: Recorded


class JaxStep:
    """A training step that runs on jax's devices; made by `compile_step`.

    The first call moves parameters, buffers and optimizer state there, piece by piece.
    From then on the model's tensors are hollow until something asks for their values:
    ``state_dict()``, ``load_state_dict()``, a forward outside the step, or `pull`.

    Args:
        fn: The step.
        state: What it may read and update.
        max_graphs: How many variants may be compiled.
        mesh: Mesh of the program; None: that of the model's annotations.
        options: XLA flags by name, as compile options.
        devices: A platform, jax's devices, or None for jax's default.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        state: StepState,
        *,
        max_graphs: int,
        mesh: Mesh | None = None,
        options: Mapping[str, Any] | None = None,
        devices: Any = None,
    ) -> None:
        self._fn = fn
        self._state = state
        self._mesh = mesh
        self._options = options
        self._devices = devices
        self._variants: Variants[_Variant] = Variants(max_graphs)
        self._hollow = HollowState(state)
        self._arrays: dict[str, DeviceArray] = {}
        self._waiting: dict[str, Any] = {}
        self._current: _Variant | None = None
        self.num_calls = 0
        self._watch()

    @property
    def num_graphs(self) -> int:
        """Variants compiled so far."""
        return self._variants.num_graphs

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step.

        Args:
            *args: As `fn` takes them, on the CPU or on the XLA device; with several
                processes each passes its own rows.
            **kwargs: Likewise.

        Returns:
            What `fn` returns; a tensor becomes a `DeviceArray`, which is computed in
            the background and read with ``item()``, ``cpu()`` or ``float()``.

        Raises:
            CaptureError: A new variant that cannot be traced, or one too many.
            HostReadError: The step reads a device value on the host.
            ValueError: A batch that does not fit.
        """
        with step_span():
            return self._call(args, kwargs)

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        sources = self._own()
        batch, other = call_leaves(self._fn, args, kwargs)
        try:
            key = (batch_key(batch), other, *self._state.key())
            variant = self._variants.get(key)
            if variant is None:
                variant = self._trace(key, args, kwargs)
            if sources is not None:
                self._put(variant, sources)
        except BaseException:
            if sources is not None:
                self._hollow.undo()
            raise
        self._hollow.let_go(besides=self._waiting)
        if sources is None and variant is not self._current:
            self._switch(variant)
        self._current = variant
        results = variant.runner.step(
            {name: _on_host(tensor) for name, tensor in batch.items()},
            learning_rate=self._rates(variant),
        )
        if not _draws(variant.runner):  # the seed advances with every step all the same
            torch_xla_graph.advance_seed()
        self.num_calls += 1
        return self._returned(variant, results, batch)

    def pull(self) -> None:
        """Copy the state back into the model and the optimizer.

        With several processes every one must call it.
        """
        if not self._hollow.is_hollow or self._current is None:
            return
        self._collect()
        self._hollow.fill(self._arrays, self._waiting)
        if _draws(self._current.runner):
            torch_xla_graph.set_seed(self._current.runner.seed)

    def arrays(self) -> dict[str, DeviceArray] | None:
        """Where the state is while the model's tensors are hollow.

        Returns:
            By name, of `StepState.places`; a step that updates them takes their memory.
            None if the model and the optimizer have their values.
        """
        if not self._hollow.is_hollow or self._current is None:
            return None
        self._collect()
        return dict(self._arrays)

    def waiting(self) -> Mapping[str, Callable[[Index], Any]]:
        """State that no step has read: it is hollow, and not in `arrays`.

        Returns:
            By name, what gives the piece at an index, on the host.
        """
        return dict(self._waiting)

    def replace(
        self, name: str, pieces: Callable[[Sequence[Index]], Sequence[torch.Tensor]]
    ) -> None:
        """Give a hollow tensor other values, where it is and split as it is.

        Args:
            name: One in `arrays` or `waiting`.
            pieces: Gives CPU tensors of its dtype for parts of it; called once, with
                each part that the devices of this process hold.
        """
        if name in self._waiting:
            shape = self.tensors()[name].shape
            (value,) = pieces([tuple(slice(0, d) for d in shape)])
            self._waiting[name] = value.__getitem__
            self._hollow.let_go(besides=set(self._waiting) - {name})
            return
        old = self._arrays[name]
        target = Value(name, "buffer", old.shape, old.dtype)
        self._arrays[name] = put_parts(target, old.array.sharding, pieces)
        if self._current is not None:
            names = {v.name for v in self._current.runner.program.inputs}
            if name in names:
                self._current.runner.adopt({name: self._arrays[name]})

    @property
    def seed(self) -> int:
        """The random seed of the next step."""
        if self._hollow.is_hollow and self._current is not None:
            if _draws(self._current.runner):
                return self._current.runner.seed
        return torch_xla_graph.seed()

    @seed.setter
    def seed(self, seed: int) -> None:
        torch_xla_graph.set_seed(seed)
        if self._hollow.is_hollow and self._current is not None:
            if _draws(self._current.runner):
                self._current.runner.put({"rng": seed}, partial=True)

    def tensors(self) -> dict[str, torch.Tensor]:
        """The model's and the optimizer's tensors, hollow or not, by the same names."""
        return {slot.name: slot.read() for slot in self._state.places()}

    def _own(self) -> Any:
        """Take the state from whoever has it."""
        model = self._state.model
        if model is not None:
            reference = _owners.get(model)
            owner = reference() if reference is not None else None
            if owner is not None and owner is not self:
                owner.pull()
                self._hollow.forget()
            _owners[model] = weakref.ref(self)
        return None if self._hollow.is_hollow else self._hollow.take()

    def _trace(
        self, key: tuple[Any, ...], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> _Variant:
        args, kwargs = rebuild_tree((args, kwargs), _whole)
        program, record = traced(
            self._fn, args, kwargs, state=self._state, mesh=self._mesh
        )
        known = self._variants.same(program.fingerprint)
        if known is None:
            self._variants.announce(key)
            runner = Runner(program, self._devices, options=self._options)
        else:
            runner = known.runner
        variant = _Variant(runner, record)
        self._variants.add(key, program.fingerprint, variant)
        return variant

    def _put(self, variant: _Variant, sources: dict[str, Any]) -> None:
        runner = variant.runner
        names = {v.name for v in runner.program.inputs}
        held = {n: s.array for n, s in sources.items() if isinstance(s, Held)}
        fits = {n: a for n, a in held.items() if n in names and runner.fits(n, a)}
        late = {n: s for n, s in sources.items() if n in names and n not in fits}
        runner.put(late, partial=True)
        runner.adopt(fits)
        # State that this variant does not read waits for one that does: on the host,
        # unless a checkpoint was loaded into the devices.
        self._arrays = {n: a for n, a in held.items() if n not in names}
        unread = (n for n in sources if n not in names and n not in held)
        self._waiting = {n: sources[n] for n in unread}
        if _draws(runner):
            runner.put({"rng": torch_xla_graph.seed()}, partial=True)

    def _switch(self, variant: _Variant) -> None:
        self._collect()
        self._arrays.pop("rng", None)  # a variant that draws nothing has none
        seed = self.seed
        names = {v.name for v in variant.runner.program.inputs}
        variant.runner.adopt({n: a for n, a in self._arrays.items() if n in names})
        late = {n: s for n, s in self._waiting.items() if n in names}
        variant.runner.put(late, partial=True)
        if _draws(variant.runner):
            variant.runner.put({"rng": seed}, partial=True)
        else:
            torch_xla_graph.set_seed(seed)
        for name in late:
            del self._waiting[name]
        self._hollow.let_go(besides=self._waiting)

    def _collect(self) -> None:
        """Take stock of what the runner that ran last holds."""
        if self._current is not None:
            self._arrays.update(self._current.runner.held())

    def _rates(self, variant: _Variant) -> dict[str, float] | None:
        groups = self._state.groups
        rates = {
            s.name: float(groups[s.index]["lr"])
            for s in variant.record.sources
            if s.kind == "learning_rate"
        }
        return rates or None

    def _returned(
        self,
        variant: _Variant,
        results: dict[str, DeviceArray],
        batch: dict[str, torch.Tensor],
    ) -> Any:
        record, program = variant.record, variant.runner.program
        for value in program.outputs:
            if value.updates is None and value.role != "output":
                self._arrays[value.name] = results[value.name]
                if value.role == "gradient":
                    self._hollow.set_gradient(value.name, present=True)
        for name in record.cleared:
            self._arrays.pop(name, None)
            self._hollow.set_gradient(name, present=False)

        def output(index: int) -> DeviceArray:
            value = program.outputs[index]
            if value.updates is None:
                return results[value.name]
            return variant.runner.get(program.inputs[value.updates].name)

        leaves = list(batch.values())

        def read(source: Source) -> Any:
            if source.kind == "batch":
                return leaves[source.index]
            return variant.runner.get(source.name)

        outputs: Any = _Lazily(output)  # most are state, which nobody asks for
        return rebuild(record, outputs, read)

    def _watch(self) -> None:
        """Fill the model when something outside the step asks for its values."""
        me = weakref.ref(self)

        def pull(*_: Any, **__: Any) -> None:
            step = me()
            if step is not None and not is_planning():
                step.pull()

        model, optimizer = self._state.model, self._state.optimizer
        if model is not None:
            model.register_state_dict_pre_hook(pull)
            model.register_load_state_dict_pre_hook(pull)
            model.register_forward_pre_hook(pull)
        if optimizer is not None:
            optimizer.register_state_dict_pre_hook(pull)
            optimizer.register_load_state_dict_pre_hook(pull)


def owners_of(*modules: nn.Module) -> list[JaxStep]:
    """The steps that have state of modules in jax's arrays, or had it last.

    Args:
        *modules: Any, also parts and wholes of those that the steps train.
    """
    wanted = {id(inner) for module in modules for inner in module.modules()}
    found = []
    for model, reference in list(_owners.items()):
        step = reference()
        if step is not None and not wanted.isdisjoint(map(id, model.modules())):
            found.append(step)
    return found


def _draws(runner: Runner) -> bool:
    return any(v.role == "rng" for v in runner.program.inputs)


class _Lazily:
    """A sequence whose items are found when they are asked for."""

    def __init__(self, find: Callable[[int], Any]) -> None:
        self._find = find

    def __getitem__(self, index: int) -> Any:
        return self._find(index)


def _whole(leaf: Any) -> Any:
    """What all processes pass together, for the trace: a batch tensor on meta."""
    if not isinstance(leaf, torch.Tensor) or len(current_hosts()) == 1:
        return leaf
    annotation = get_sharding(leaf)
    if annotation is None:
        raise ValueError(
            f"compiled step: a tensor {list(leaf.shape)} in the arguments has no spec, "
            f"so it is not known which rows are whose; use spmd.shard_batch or a "
            f"spmd.ShardedLoader"
        )
    mesh, spec = annotation.mesh, annotation.spec
    hosts, me = current_hosts(), host_index()
    shape = place(tuple(leaf.shape), mesh, spec, hosts=hosts, host=me).shape
    return remember(torch.empty(shape, dtype=leaf.dtype, device="meta"), mesh, spec)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.device.type == "cpu" else tensor.cpu()
