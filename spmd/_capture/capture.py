"""Capture one step as a compiled graph whose inputs and outputs all have names.

torch_xla records operations lazily. `recorded` runs the step once to record it, finds
the place of every tensor the record reads (by data handle: tensor ids are silently
wrong under scanned layers) and of every tensor it leaves changed, and refuses where one
has no place. Nothing of the step is executed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from spmd._capture.checks import (
    CaptureError,
    HostValues,
    Live,
    check_fallbacks,
    check_rates,
    check_sources,
    explained,
)
from spmd._capture.host_reads import refuse_host_reads, without_hf_mask_read
from spmd._capture.prime import tensor_factors
from spmd._capture.record import Recorded, describe
from spmd._capture.state import Slot, StepState
from spmd._host_spans import TRACE, span
from spmd._marking.attributes import copy_attributes
from spmd._marking.planning import is_planning
from spmd._names.rebuild import rebuild
from spmd._ops.host_sums import rows_of
from spmd._preserve.preserve import preserving_in_trace
from spmd._torch_xla import graph as torch_xla_graph
from spmd._torch_xla import seam
from spmd._unwind import checkpoints_left, modes_held


@contextmanager
def recorded(
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    state: StepState,
    batch: Mapping[str, torch.Tensor],
) -> Iterator[Recorded]:
    """Record a step; on leaving the context its traces are gone.

    Inside, state tensors hold traced values; the caller compiles or lowers them.
    Afterwards every state tensor holds the data it had before, also after an error.

    Args:
        fn: The step.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        state: What it may read and update.
        batch: Tensors in the arguments, by name.

    Yields:
        The recorded step.

    Raises:
        CaptureError: An input without a place, or state that cannot be kept.
        HostReadError: The step reads a device value on the host.
    """
    state.refresh()
    slots = state.slots()
    torch_xla_graph.settle(wait_for_it=True)
    live = Live(fn)
    if not is_planning():
        args, kwargs, batch = _apart(args, kwargs, batch, live=live, slots=slots)
    separate(slots, None if is_planning() else live)
    if not is_planning():
        for slot in slots:
            seam.mark_whole(slot.read())
    live.refresh()
    rates = _device_rates(state)
    torch_xla_graph.forget_numbers()
    host = HostValues(state)
    fallbacks = torch_xla_graph.fallback_ops()
    with _put_back(state, slots) as (objects, originals), _batch_kept(batch) as data:
        try:
            with span(TRACE), explained(state), _tracing(state, rates, batch):
                result = fn(*args, **kwargs)
                check_rates(state, rates)
            host.check()
            check_fallbacks(fallbacks)
            record = describe(
                result,
                slots,
                originals,
                state=state,
                objects=objects,
                batch=data,
                rates=rates,
            )
            check_sources(record, live)
            yield record
        finally:
            host.restore()


@contextmanager
def _tracing(
    state: StepState,
    rates: Sequence[torch.Tensor | None],
    batch: Mapping[str, torch.Tensor],
) -> Iterator[None]:
    """Rates on the device, and no reads on the host."""
    given = [(g, g["lr"]) for g in state.groups if "lr" in g]
    try:
        for group, rate in zip(state.groups, rates, strict=True):
            if rate is not None:
                group["lr"] = rate
        with ExitStack() as stack:
            stack.enter_context(modes_held())
            stack.enter_context(tensor_factors())
            rows = rows_of((p for _, p in state.parameters), batch.values())
            stack.enter_context(preserving_in_trace(rows))
            packed = any("position_ids" in name for name in batch)
            stack.enter_context(without_hf_mask_read(packed=packed))
            stack.enter_context(refuse_host_reads())
            stack.enter_context(checkpoints_left())  # before the modes above
            yield
    finally:
        for group, rate in given:
            group["lr"] = rate


def rate_tensor(rate: Any) -> torch.Tensor:
    """A learning rate as a float32 scalar on the device.

    Args:
        rate: A number or a scalar tensor.

    Returns:
        The tensor itself if it is that already, else one with data of its own.
    """
    if (
        isinstance(rate, torch.Tensor)
        and rate.device.type == "xla"
        and rate.dtype == torch.float32
        and rate.ndim == 0
    ):
        return rate
    return torch_xla_graph.scalar(float(rate))


def _device_rates(state: StepState) -> list[torch.Tensor | None]:
    """A tensor with data of its own for each group that has a learning rate.

    Not the user's tensor: the step may write to it, and several groups may share it.
    """
    rates: list[torch.Tensor | None] = []
    for group in state.groups:
        rate = group.get("lr")
        if rate is not None and not is_planning():
            rate = torch_xla_graph.scalar(float(rate))
        rates.append(rate)
    return rates


def separate(slots: Sequence[Slot], live: Live | None = None) -> None:
    """Give state tensors a buffer of their own, so that it can be donated.

    Args:
        slots: Places of the state.
        live: Other tensors, which may share buffers with it.
    """
    tensors = [s.read() for s in slots]
    seen: set[int] = set()
    copies = []
    for slot, tensor, handle in zip(
        slots, tensors, torch_xla_graph.handles(tensors), strict=True
    ):
        if handle in seen or (live is not None and live.shares(tensor, handle)):
            copies.append((slot, tensor.detach().clone()))
        seen.add(handle)
    if copies:
        torch_xla_graph.execute([c for _, c in copies])
        for slot, copy in copies:
            slot.write(copy)


def _apart(
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    batch: Mapping[str, torch.Tensor],
    *,
    live: Live,
    slots: Sequence[Slot],
) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, torch.Tensor]]:
    """Trace with copies of batch tensors that are also given, or seen, otherwise.

    ``step(x, x)`` must take two inputs, since the next call may be ``step(x, y)``.
    """
    known = dict(
        zip(
            torch_xla_graph.handles([s.read() for s in slots]),
            [s.name for s in slots],
            strict=True,
        )
    )
    seen: set[int] = set()
    copies: list[torch.Tensor | None] = []
    for (name, tensor), handle in zip(
        batch.items(), torch_xla_graph.handles(list(batch.values())), strict=True
    ):
        if handle in known:
            raise CaptureError(
                f"{name} {list(tensor.shape)} in the arguments has the same data as "
                f"{known[handle]}, whose memory the step uses again; leave it out, or "
                f"pass a copy: {name}.clone()"
            )
        twice = handle in seen or live.is_variable(handle)
        seen.add(handle)
        copies.append(tensor.detach().clone() if twice else None)
    made = [c for c in copies if c is not None]
    if not made:
        return args, kwargs, dict(batch)
    torch_xla_graph.execute(made)
    traced = [
        tensor if copy is None else copy_attributes(tensor, copy)
        for tensor, copy in zip(batch.values(), copies, strict=True)
    ]
    rest = iter(traced)

    def replace(leaf: Any) -> Any:
        return next(rest) if isinstance(leaf, torch.Tensor) else leaf

    args, kwargs = rebuild((args, kwargs), replace)
    return args, kwargs, dict(zip(batch, traced, strict=True))


@contextmanager
def _put_back(
    state: StepState, slots: Sequence[Slot]
) -> Iterator[tuple[list[torch.Tensor], list[torch.Tensor]]]:
    """Put tensors, data and seed back where they were, take away what was made.

    Yields:
        The tensor in each slot, and tensors that keep hold of its data.
    """
    seed = torch_xla_graph.seed()
    objects = [s.read() for s in slots]
    originals = _originals(objects)
    gradients = [(p, p.grad) for _, p in state.parameters]
    tables = [m._buffers for m in state.modules]
    if state.optimizer is not None:
        tables += [state.optimizer.state[p] for p in state.optimizer.state]
    entries = [(table, dict(table)) for table in tables]
    try:
        yield objects, originals
    finally:
        for parameter, gradient in gradients:
            parameter.grad = gradient
        for table, before in entries:
            table.clear()
            table.update(before)
        if state.optimizer is not None:
            known = {id(table) for table in tables}
            for parameter, table in list(state.optimizer.state.items()):
                if id(table) not in known:
                    del state.optimizer.state[parameter]
        for tensor, original in zip(objects, originals, strict=True):
            if tensor.grad_fn is not None:
                tensor.detach_()
            tensor.data = original
        torch_xla_graph.forget_traced()
        torch_xla_graph.set_seed(seed)


@contextmanager
def _batch_kept(
    batch: Mapping[str, torch.Tensor],
) -> Iterator[dict[str, torch.Tensor]]:
    """Keep hold of a batch's data: torch_xla's `checkpoint` writes to its arguments."""
    tensors = list(batch.values())
    originals = _originals(tensors) if tensors else []
    try:
        yield dict(zip(batch, originals, strict=True))
    finally:
        changed = torch_xla_graph.needs_execution(tensors)
        for tensor, original, new in zip(tensors, originals, changed, strict=True):
            if new:
                if tensor.grad_fn is not None:
                    tensor.detach_()
                tensor.data = original


def _originals(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Tensors that keep hold of data while it is traced over."""
    data = torch_xla_graph.traced_inputs(tensors)
    by_handle = dict(zip(data.handles, data.values, strict=True))
    return [by_handle[h] for h in torch_xla_graph.handles(tensors)]
