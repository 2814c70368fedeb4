"""Which devices each host feeds, and exchanging a few numbers between hosts."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Sequence

import torch

from spmd._batches.rows import Hosts, host_part
from spmd._batches.spec import BatchSpec, default_entries
from spmd._marking.mark import check_machine
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import normalize_spec
from spmd._runtime import runtime


@functools.cache
def current_hosts() -> Hosts:
    """Device ids of each process of this run, in the order in which each feeds them.

    With several processes the first call is a small computation over all devices, so
    every process must make it.

    Returns:
        One tuple per process.
    """
    if runtime() == "jax":
        from spmd._pjrt import processes as pjrt_processes

        return pjrt_processes.processes()
    from spmd._torch_xla import seam

    mine = seam.local_devices()
    if seam.num_processes() == 1:
        return (mine,)
    owners = [row[0] for row in exchange([seam.process_index()])]
    hosts = [
        tuple(d for d, owner in enumerate(owners) if owner == process)
        for process in range(seam.num_processes())
    ]
    hosts[seam.process_index()] = mine
    return tuple(hosts)


def host_index() -> int:
    """Index of this process in `current_hosts`."""
    if runtime() == "jax":
        from spmd._pjrt import processes as pjrt_processes

        return pjrt_processes.process_index()
    from spmd._torch_xla import seam

    return seam.process_index()


def exchange(numbers: Sequence[int]) -> list[list[int]]:
    """Give every process what each of them passed.

    Each device gets its process's numbers as one row of an array over all devices, and
    the whole array is read back. Every process must call this, with equally many.

    Args:
        numbers: Integers of 64 bits.

    Returns:
        One row for each device, by device id.

    Raises:
        TimeoutError: On jax: a process did not answer.
    """
    if runtime() == "jax":
        return _exchange_by_jax(numbers)
    from spmd._torch_xla import seam

    mesh = Mesh({"device": seam.num_devices()})
    row = torch.tensor([list(numbers)], dtype=torch.int64)
    shards = [row] * len(seam.local_devices())
    shape = (mesh.size, row.shape[1])
    table = seam.from_local_shards(shards, mesh, ("device", None), shape=shape)
    return table.cpu().tolist()


_rounds = itertools.count()
_TIMEOUT_S = 300.0


def _exchange_by_jax(numbers: Sequence[int]) -> list[list[int]]:
    """The same through jax.distributed's key-value store."""
    hosts = current_hosts()
    if len(hosts) == 1:
        return [list(numbers) for _ in hosts[0]]
    from spmd._pjrt import processes as pjrt_processes

    key = f"spmd/exchange/{next(_rounds)}"
    pjrt_processes.publish(f"{key}/{host_index()}", json.dumps(list(numbers)))
    rows: dict[int, list[int]] = {}
    for process, devices in enumerate(hosts):
        text = pjrt_processes.read(f"{key}/{process}", timeout_s=_TIMEOUT_S)
        if text is None:
            raise TimeoutError(
                f"process {process} did not answer within {_TIMEOUT_S:.0f} s while "
                f"hosts compared their batches; every process must run the same script"
            )
        row: list[int] = json.loads(text)
        rows.update((device, row) for device in devices)
    return [rows[device] for device in sorted(rows)]


def data_rank(mesh: Mesh, spec: BatchSpec = None) -> tuple[int, int]:
    """Which part of the data this process loads, and how many parts there are.

    For ``DistributedSampler(dataset, num_replicas=parts, rank=part)``. Processes whose
    devices differ only along axes that do not split the batch (tensor parallelism
    across hosts, say) get the same part.

    Args:
        mesh: The mesh.
        spec: The spec that `shard_batch` is given.

    Returns:
        Part of this process and number of parts, in that order.

    Raises:
        TypeError: Something that is no spec.
        ValueError: A mesh of another size than the machine, one that gives hosts
            different numbers of rows, or one without a data axis where no spec is
            given.
        RuntimeError: SPMD mode cannot be switched on any more, see `spmd.init`.
    """
    from spmd._meshes.convert import mesh_from

    mesh = mesh_from(mesh)
    check_machine(mesh, "data_rank")
    first = default_entries(spec, mesh)[:1]
    entry = normalize_spec(first, mesh, shape=(1,) * len(first), name="data_rank")
    hosts = current_hosts()
    return host_part(mesh, entry[0] if entry else None, hosts, host=host_index())
