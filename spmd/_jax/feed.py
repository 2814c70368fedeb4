"""Bring a batch to the devices: each tensor by its name, each process its own rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import jax

from spmd._batches.rows import Hosts, place
from spmd._host_spans import DATA, span
from spmd._jax.device_array import Index, as_numpy, clipped, put
from spmd._names.names import dotted
from spmd._names.tree import named_leaves
from spmd._pjrt.client import Device, Sharding, padded
from spmd._program.program import Program
from spmd._program.value import Value


def feed(
    batch: Any,
    program: Program,
    order: Sequence[Device],
    shardings: Sequence[Sharding],
) -> dict[int, jax.Array]:
    """Place the tensors of a batch.

    Args:
        batch: The one argument of the traced step, or a mapping of all by name.
        program: The program.
        order: Devices in partition order.
        shardings: How each input of the program is split.

    Returns:
        jax's arrays by input index.

    Raises:
        TypeError: Something that is no array where the program reads one.
        ValueError: A tensor is missing, or has another shape or dtype.
    """
    wanted = {i: v for i, v in enumerate(program.inputs) if v.role == "input"}
    given = by_name(batch, [v.name for v in wanted.values()])
    missing = [v.name for v in wanted.values() if v.name not in given]
    if missing:
        paths = (dotted(path) for path, _ in named_leaves(batch))
        has = some(path.removeprefix(".") or "one value" for path in paths)
        raise ValueError(
            f"the batch lacks {some(missing)}, which program {program.name!r} reads; "
            f"it has {has}"
        )
    with span(DATA):
        return {
            i: _placed(given[v.name], v, program, order, shardings[i])
            for i, v in wanted.items()
        }


def some(names: Iterable[str]) -> str:
    """The first few names, for a message.

    Args:
        names: Any number of names.

    Returns:
        At most four of them.

    Example:
        >>> some(["a", "b"]), some("abcdef")
        ("'a', 'b'", "'a', 'b', 'c', 'd' and more")
    """
    first = list(islice(names, 5))
    text = ", ".join(repr(name) for name in first[:4]) or "nothing"
    return f"{text} and more" if len(first) > 4 else text


def by_name(batch: Any, names: Sequence[str]) -> dict[str, Any]:
    """Leaves of a batch by input name, as far as there are inputs of that name.

    Inputs are called after the arguments of the traced step: ``batch.input_ids``. A
    step of several arguments takes a mapping of them; for a step of one, the batch is
    that argument, or such a mapping too.

    Args:
        batch: Nested containers.
        names: Names of the inputs.

    Returns:
        The leaves that are inputs.

    Example:
        >>> by_name({"x": 1, "length": 2}, ["batch.x"])
        {'batch.x': 1}
    """
    same = {dotted(name): name for name in names}
    roots = {name.partition(".")[0] for name in same}
    found: dict[str, Any] = {}
    for path, leaf in named_leaves(batch):
        inner = dotted(path)
        choices = [inner.removeprefix(".")]
        if len(roots) == 1:
            choices.append(next(iter(roots)) + inner)
        for choice in choices:
            if choice in same:
                found[same[choice]] = leaf
    return found


def _placed(
    given: Any,
    target: Value,
    program: Program,
    order: Sequence[Device],
    sharding: Sharding,
) -> jax.Array:
    mesh, spec = program.mesh, target.spec
    if jax.process_count() == 1 or mesh is None or spec is None:
        return put(given, target, sharding)
    array = as_numpy(given, target)
    hosts, me = _hosts(order), jax.process_index()
    where = place(array.shape, mesh, spec, hosts=hosts, host=me)
    if where.shape != target.shape:
        raise ValueError(
            f"{target.name}: process {me} passes {list(array.shape)}, so that all "
            f"{len(hosts)} together pass {list(where.shape)}; the program takes "
            f"{list(target.shape)}"
        )
    whole = padded(target.shape, sharding)
    indices = sharding.addressable_devices_indices_map(whole)
    pieces = {
        _key(clipped(indices[order[partition]] or (), target.shape)): piece
        for partition, piece in zip(hosts[me], where.pieces, strict=True)
    }
    return put(lambda part: array[pieces[_key(part)]], target, sharding)


def _key(index: Index) -> tuple[tuple[int, int], ...]:
    return tuple((s.start, s.stop) for s in index)


def _hosts(order: Sequence[Device]) -> Hosts:
    """Partitions of each process."""
    return tuple(
        tuple(i for i, device in enumerate(order) if device.process_index == process)
        for process in range(jax.process_count())
    )
