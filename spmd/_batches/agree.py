"""Whether hosts that must pass the same rows do."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Sequence

import torch

from spmd._batches import hosts
from spmd._batches.batch import BatchPlan
from spmd._batches.rows import Hosts, host_tiles
from spmd._meshes.spec import Spec

COLUMNS = 64
"""Numbers that hosts exchange. Fixed, since hosts that send arrays of different sizes
would wait for each other for ever: one for names and shapes, one for each of the first
62 tensors, one for all others."""


def check_hosts(plan: BatchPlan) -> None:
    """Compare this process's batch with those of the others.

    Every process must call this at the same point. With one process it does nothing.

    Args:
        plan: The batch this process is going to send.

    Raises:
        ValueError: Processes that must pass the same rows pass different ones, or their
            batches differ in names, shapes or dtypes.

    Warns:
        UserWarning: Processes that must pass different rows all pass the same.
    """
    if len(plan.hosts) == 1:
        return
    table = hosts.exchange(fingerprint(plan))
    # Device 5 of hosts ((0, ..., 3), (4, ..., 7)) speaks for host 1.
    sums = [table[devices[0]] for devices in plan.hosts]
    names = [leaf.path for leaf in plan.tensors]
    specs: list[Spec] = [leaf.spec for leaf in plan.tensors]
    parts = [host_tiles(plan.mesh, s[0] if s else None, plan.hosts) for s in specs]
    text = compare(names, sums, parts)
    if text:
        warnings.warn(text, stacklevel=4)


def fingerprint(plan: BatchPlan) -> list[int]:
    """Numbers that stand for a process's batch.

    Args:
        plan: A batch.

    Returns:
        `COLUMNS` integers: of names, shapes and dtypes; of each tensor's values; and of
        all tensors that have no column of their own.
    """
    tensors = plan.tensors
    layout = [(leaf.path, leaf.shape, str(leaf.tensor.dtype)) for leaf in tensors]
    values = [_digest(_bytes(leaf.tensor)) for leaf in tensors]
    own, rest = values[: COLUMNS - 2], values[COLUMNS - 2 :]
    last = _digest(repr(rest).encode())
    padding = [0] * (COLUMNS - 2 - len(own))
    return [_digest(repr(layout).encode()), *own, *padding, last]


def _digest(data: bytes | memoryview) -> int:
    """63 bits of a hash, which fit a signed 64-bit integer."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big") >> 1


def _bytes(tensor: torch.Tensor) -> bytes | memoryview:
    if tensor.device.type != "cpu":
        return b""  # on the device already: one value for all hosts
    flat = tensor.detach().resolve_conj().resolve_neg().reshape(-1).contiguous()
    return flat.view(torch.uint8).numpy().data


def compare(
    names: Sequence[str], sums: Sequence[Sequence[int]], parts: Sequence[Hosts]
) -> str | None:
    """Find hosts that disagree.

    Args:
        names: Paths of the tensors.
        sums: For each host its `fingerprint`.
        parts: For each tensor and host, which tiles of the rows the host holds; hosts
            with the same ones must pass the same values.

    Returns:
        A warning if all hosts pass the same rows where they should pass different ones.

    Raises:
        ValueError: The first tensor on which hosts disagree.

    Example:
        >>> compare(["batch['x']"], [[7, 1], [7, 1]], [((0,), (0,))])
        >>> compare(["batch['x']"], [[7, 1], [7, 2]], [((0,), (0,))])
        Traceback (most recent call last):
            ...
        ValueError: processes 0 and 1 must pass the same rows of batch['x'], ...
    """
    for host, row in enumerate(sums):
        if row[0] != sums[0][0]:
            raise ValueError(
                f"the first batches of processes 0 and {host} differ in names, shapes "
                f"or dtypes, so that they would compile different programs and wait "
                f"for each other for ever; load batches of one size everywhere (this "
                f"process has {list(names)})"
            )
    for index, (name, held) in enumerate(zip(names, parts, strict=True)):
        column = min(index + 1, COLUMNS - 1)
        first: dict[tuple[int, ...], int] = {}
        for host, tiles in enumerate(held):
            other = first.setdefault(tiles, host)
            if sums[other][column] != sums[host][column]:
                raise ValueError(_differ(name, other, host, len(set(held))))
    return _all_same(names, sums, parts)


def _differ(name: str, one: int, two: int, num_parts: int) -> str:
    return (
        f"processes {one} and {two} must pass the same rows of {name}, since their "
        f"devices differ only along axes that do not split it, but their first batches "
        f"differ. There are {num_parts} parts of the data: give both the same one, "
        f"with part, parts = spmd.data_rank(mesh) and DistributedSampler(dataset, "
        f"num_replicas=parts, rank=part), and the same seed"
    )


def _all_same(
    names: Sequence[str], sums: Sequence[Sequence[int]], parts: Sequence[Hosts]
) -> str | None:
    split = [i for i, held in enumerate(parts) if len(set(held)) > 1]
    split = [i for i in split if i < COLUMNS - 2]
    if not split or any(row[i + 1] != sums[0][i + 1] for i in split for row in sums):
        return None
    num_parts = len(set(parts[split[0]]))
    return (
        f"all processes pass the same rows of {names[split[0]]}, so that the batch "
        f"holds each row {num_parts} times. Load a part in each: part, parts = "
        f"spmd.data_rank(mesh) and DistributedSampler(dataset, num_replicas=parts, "
        f"rank=part)"
    )
