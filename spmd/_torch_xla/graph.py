"""The part of the seam to torch_xla that records, compiles and replays graphs.

Like `seam`, written against torch_xla 2.9; nothing else may touch its internals.
"""

from __future__ import annotations

import functools
import itertools
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch_xla
import torch_xla.debug.metrics as metrics

from spmd._host_spans import COMPILE, DISPATCH, span
from spmd._torch_xla.seam import device, optimization_barrier, wait

_XLAC: Any = torch_xla._XLAC  # pyright: ignore[reportPrivateImportUsage] # the seam


@dataclass(frozen=True, slots=True)
class TracedInputs:
    """The data a traced graph reads, in the order of its parameters.

    Attributes:
        values: Tensors that hold the data.
        handles: Identity of each; two tensors on the same data have the same.
        seed: Position of the random seed among them, if the graph draws numbers.
    """

    values: tuple[torch.Tensor, ...]
    handles: tuple[int, ...]
    seed: int | None


def settle(*, wait_for_it: bool = False) -> None:
    """Execute everything recorded so far.

    The random seed moves on only if something drew numbers: that a step was preceded by
    other work must not change what it draws.

    Args:
        wait_for_it: Return when the devices are done. Before that, the sharding of
            what was computed is not known.
    """
    global _settled_at
    num = _num_recorded()
    if not wait_for_it and num == _settled_at:
        return
    drawn_to = seed()
    torch_xla.sync(wait=wait_for_it, reset_scope=False)
    if wait_for_it:
        wait()
    # A sync advances from the seed of the step, which cannot be asked for; `drawn_to`
    # has moved on from it with each operation that draws.
    seed_of_step = (seed() - _SEED_ADD) * pow(_SEED_MUL, -1, 2**64) % 2**64
    if seed_of_step == drawn_to % 2**64:
        set_seed(drawn_to)
    # A sync looks at every tensor that is alive, even if there is nothing to do: until
    # more is recorded the next `settle` is free.
    _settled_at = num


def mark_settled() -> None:
    """Note that what was recorded since the last `settle` is executed, or forgotten."""
    global _settled_at
    _settled_at = _num_recorded()


_settled_at = -1
_HARMLESS = {"xla::detach_copy", "xla::_to_cpu"}


def _num_recorded() -> int:
    """Operations recorded since the start, but for those that compute nothing."""
    global _counters
    names = _XLAC._xla_counter_names()
    if names != _counters[0]:  # an operation has a counter from its first use on
        ours = [n for n in names if n.startswith("xla::") and n not in _HARMLESS]
        _counters = names, ours
    return sum(map(_XLAC._xla_counter_value, _counters[1]))


_counters: tuple[list[str], list[str]] = [], []


def handles(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    """Identity of the data behind each tensor; all must hold data.

    Args:
        tensors: Tensors on the XLA device.

    Returns:
        One number each. Tensor ids would not do: scanned layers change them.
    """
    return tuple(_XLAC._get_tensors_handle(list(tensors))) if tensors else ()


def needs_execution(tensors: Sequence[torch.Tensor]) -> list[bool]:
    """Which tensors are records of operations, not data.

    Args:
        tensors: Tensors on the XLA device.

    Returns:
        One bool each.
    """
    if not tensors:
        return []
    return list(_XLAC._check_tensor_need_materialization(list(tensors)))


def execute(tensors: Sequence[torch.Tensor]) -> None:
    """Execute what these tensors need, and only that.

    Args:
        tensors: Tensors on the XLA device.
    """
    _XLAC._xla_sync_multi(list(tensors), devices=[], wait=True, sync_xla_data=True)


def traced_inputs(outputs: Sequence[torch.Tensor]) -> TracedInputs:
    """What data the graph that ends in these tensors reads.

    Args:
        outputs: Traced values, or data (which is then its own input).

    Returns:
        Inputs in the order of the graph's parameters.
    """
    if not outputs:
        return TracedInputs((), (), None)
    ids, values = _XLAC._get_tensors_xla_device_data_node(list(outputs))
    seed_id = _XLAC._get_seed_info_id()
    seed = ids.index(seed_id) if seed_id in ids else None
    return TracedInputs(tuple(values), handles(values), seed)


def identities(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Which tensors are the same traced value or the same data.

    Args:
        tensors: Tensors on the XLA device.

    Returns:
        Equal for two that a graph would return once.
    """
    return [str(_XLAC._unique_id_for_ir_and_data(t)) for t in tensors]


@contextmanager
def donating(values: Sequence[torch.Tensor]) -> Iterator[None]:
    """Graphs that are compiled inside may reuse the memory of these inputs.

    Args:
        values: Values out of `traced_inputs`.

    Yields:
        Nothing.
    """
    before = _XLAC._xla_get_enable_alias_with_buffer_donor_config()
    _XLAC._xla_set_enable_alias_with_buffer_donor_config(True)
    for value in values:
        _XLAC._set_buffer_donation(value, True)
    try:
        yield
    finally:
        for value in values:
            _XLAC._set_buffer_donation(value, False)
        _XLAC._xla_set_enable_alias_with_buffer_donor_config(before)


def graph_key(outputs: Sequence[torch.Tensor]) -> bytes:
    """The key of the graph that ends in these tensors.

    Args:
        outputs: Traced values, in the order the compiled graph returns them.

    Returns:
        The same for the same graph.
    """
    return _XLAC._get_graph_hash(list(outputs))


def is_donated(value: torch.Tensor) -> bool:
    """Whether a graph may reuse the memory of this input.

    Args:
        value: Out of `traced_inputs`.

    Returns:
        True inside `donating`.
    """
    return bool(_XLAC._get_buffer_donation(value))


def compile_graph(outputs: Sequence[torch.Tensor]) -> None:
    """Compile the graph that ends in these tensors into torch_xla's cache.

    Args:
        outputs: As given to `graph_key`.
    """
    with span(COMPILE):
        _XLAC._xla_warm_up_cache(list(outputs), [])


def run_graph(key: bytes, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Run a compiled graph.

    Args:
        key: From `compile_graph`.
        inputs: One tensor per parameter.

    Returns:
        One tensor per output; the devices may still be computing.

    Raises:
        GraphEvicted: torch_xla's cache has dropped the graph since.
    """
    try:
        with span(DISPATCH):
            return _XLAC._run_cached_graph(key, inputs)
    except RuntimeError as error:
        if "Failed to get computation by hash" in str(error):
            raise GraphEvicted(str(error).splitlines()[0]) from None
        raise


class GraphEvicted(RuntimeError):
    """torch_xla's cache of compiled graphs has dropped this one."""


def forget_traced() -> None:
    """Drop every recorded operation without executing it."""
    _XLAC._clear_pending_irs(_device_name())


def seed_tensor() -> torch.Tensor:
    """The current random seed as the input of a graph.

    Returns:
        An int64 scalar on the device.
    """
    return _XLAC._get_base_seed_as_tensor(_device_name())


def advance_seed() -> None:
    """Move the random seed on, as lazy execution does at the end of each step.

    It wraps at 2^64 there (torch_xla's dynamo bridge, at 2^64 - 1, leaves that sequence
    after three steps).
    """
    set_seed(_SEED_ADD + seed() * _SEED_MUL)


# torch_xla/csrc/xla_graph_executor.cpp, DeviceContextArena::MarkStep
_SEED_ADD, _SEED_MUL = 1012031, 7012063


def seed() -> int:
    """The random seed that the next executed graph draws from."""
    return _XLAC._xla_get_rng_seed(_device_name())


def set_seed(value: int) -> None:
    """Set the random seed that the next executed graph draws from.

    Args:
        value: An integer modulo 2^64.
    """
    _XLAC._xla_set_rng_seed(value % 2**64, _device_name())


@functools.cache
def _device_name() -> str:
    """The one device that SPMD has."""
    return str(device())


def fallback_ops() -> Counter[str]:
    """How often each operation without an XLA form ran on the host so far."""
    names = [n for n in metrics.counter_names() if n.startswith("aten::")]
    return Counter({name: metrics.counter_value(name) for name in names})


def num_compiles() -> int:
    """Graphs compiled since the start."""
    found = metrics.metric_data("CompileTime")
    return int(found[0]) if found else 0


def tensor_ids(tensors: Sequence[torch.Tensor]) -> list[int]:
    """What torch_xla numbers tensors by; assigning ``tensor.data`` takes the number.

    Args:
        tensors: Tensors on the XLA device.

    Returns:
        One number each.
    """
    return list(map(_XLAC._xla_get_tensor_id, tensors))


def ids_of_results(results: Sequence[torch.Tensor]) -> Sequence[int]:
    """`tensor_ids` of what a graph returned, mostly without asking for each.

    Args:
        results: From `run_graph`.

    Returns:
        One number each.
    """
    if len(results) > 1:
        first, last = tensor_ids([results[0], results[-1]])
        if last - first == len(results) - 1:  # made in one go, no other in between
            return range(first, last + 1)
    return tensor_ids(results)


def layouts(tensors: Sequence[torch.Tensor]) -> list[str]:
    """How each tensor's data is split, in torch_xla's words.

    Args:
        tensors: Tensors on the XLA device that hold data.

    Returns:
        Such as ``{devices=[8,1]0,1,2,3,4,5,6,7}``.
    """
    texts = _XLAC._get_xla_sharding_specs(list(tensors))
    return [text or "{replicated}" for text in texts]


def scalar(value: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """A scalar with data of its own.

    torch_xla would turn 0 and 1 into constants of the graph, and have equal numbers
    share one upload.

    Args:
        value: Its value.
        dtype: Its dtype.

    Returns:
        A tensor on the XLA device.
    """
    shares = _XLAC._get_xla_enable_device_data_cache()
    special = _XLAC._get_xla_handle_special_scalars()
    _XLAC._set_xla_enable_device_data_cache(False)
    _XLAC._set_xla_handle_special_scalars(False)
    try:
        made = torch.tensor(value, dtype=dtype).to(device())
        handles([made])  # uploads it
    finally:
        _XLAC._set_xla_enable_device_data_cache(shares)
        _XLAC._set_xla_handle_special_scalars(special)
    return made


def forget_numbers() -> None:
    """Have numbers uploaded anew, apart from those that existing tensors share.

    torch_xla keeps the last uploads of scalars and hands them out again, to equal
    numbers in the code and to equal tensors. Filling its cache with others ends that.
    """
    start = next(_unused) * _NUM_NUMBERS
    values = torch.arange(start, start + _NUM_NUMBERS, dtype=torch.float64) + 0.5**9
    tensors = [value.to(device()) for value in values]
    handles(tensors)


_unused = itertools.count()
_NUM_NUMBERS = 128  # torch::lazy's FLAGS_torch_lazy_device_data_cache_size


def apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same value as an operation of its own, so that a graph returns it again.

    Args:
        tensor: A traced value, or data.

    Returns:
        A traced value.
    """
    twin = tensor.detach().clone()
    optimization_barrier([twin])
    return twin
