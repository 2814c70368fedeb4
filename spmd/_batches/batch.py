"""`shard_batch`: put a batch on the devices, each of which gets its rows only."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from spmd._batches import hosts as hosts_module
from spmd._batches.leaf import cut
from spmd._batches.padding import PadValues, check_pad, pad_leaves
from spmd._batches.rows import Hosts, place
from spmd._batches.spec import BatchSpec, Leaf, batch_rows, choose, left_text
from spmd._host_spans import DATA, span
from spmd._marking.mark import (
    check_even,
    check_machine,
    check_unmarked,
    mark_sharding,
    remember,
)
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec
from spmd._names.rebuild import rebuild
from spmd._runtime import runtime

B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class BatchPlan:
    """A batch that was checked and padded, and is ready to be sent.

    Attributes:
        batch: What the caller passed.
        mesh: The mesh.
        leaves: One entry per leaf of `batch`; `None` where it is no tensor.
        hosts: Device ids of each process.
        host: Index of this process.
        rows: Rows of the batch on this process, after padding.
        rows_added: How many of them were added.
        left: A warning that names what is not split, or `None`.
    """

    batch: Any
    mesh: Mesh
    leaves: tuple[Leaf | None, ...]
    hosts: Hosts
    host: int
    rows: int
    rows_added: int
    left: str | None

    @property
    def tensors(self) -> list[Leaf]:
        """The leaves that are tensors."""
        return [leaf for leaf in self.leaves if leaf is not None]


def shard_batch(
    batch: B,
    mesh: Mesh,
    spec: BatchSpec = None,
    *,
    pad: bool | int = False,
    pad_values: PadValues = None,
) -> B:
    """Put a batch on the devices, split by its rows.

    Each tensor is split by its leading dim whatever its rank, and no device receives
    more than its piece. Everything is checked before anything is sent. In a run of
    several processes each passes its own rows, see `spmd.data_rank`.

    Args:
        batch: Nested mappings, lists, tuples, namedtuples and dataclasses of tensors
            and NumPy arrays. Other leaves pass through; 0-dim tensors are not split.
            CPU tensors are sent, those on the XLA device or meta annotated.
        mesh: The mesh.
        spec: How the leading dims are split. Default: dim 0 over the mesh's data axes.
            An axis name splits dim 0; a tuple has one entry per dim, and is extended
            with None or cut to a tensor's rank. A mapping gives specs by key (None
            keeps that entry whole on purpose), and the keys it lacks take the default.
        pad: Where the rows do not divide, repeat the last one until they do; a number
            also pads up to at least that many rows per process. A mean over rows then
            counts the last row more than once, unless `pad_values` masks it. With
            several processes the new rows end each one's part.
        pad_values: By key, what to fill added rows with instead, e.g.
            ``{"labels": -100}``, which `torch.nn.functional.cross_entropy` ignores.

    Returns:
        Containers of the same types with tensors on the XLA device.

    Raises:
        TypeError: A spec or a leaf of a wrong type.
        ValueError: Rows that do not divide, a spec that does not fit, an unknown key, a
            mesh of another size than the machine, a tensor that cannot be split.
        RuntimeError: SPMD mode cannot be switched on any more, see `spmd.init`.

    Warns:
        UserWarning: Names all tensors that the batch axes do not split, because their
            leading dim is not the one most tensors have.
    """
    with span(DATA):
        plan = plan_batch(batch, mesh, spec, pad=pad, pad_values=pad_values)
        if plan.left:
            warnings.warn(plan.left, stacklevel=2)
        return send(plan)


def plan_batch(
    batch: Any,
    mesh: Mesh,
    spec: BatchSpec = None,
    *,
    pad: bool | int = False,
    pad_values: PadValues = None,
) -> BatchPlan:
    """Check and pad a batch; see `shard_batch`.

    Args:
        batch: See `shard_batch`.
        mesh: See `shard_batch`.
        spec: See `shard_batch`.
        pad: See `shard_batch`.
        pad_values: See `shard_batch`.

    Returns:
        What `send` needs. Nothing was sent yet.

    Raises:
        TypeError: See `shard_batch`.
        ValueError: See `shard_batch`.
        RuntimeError: See `shard_batch`.
    """
    from spmd._meshes.convert import mesh_from

    mesh = mesh_from(mesh)
    chosen = choose(batch, mesh, spec)
    tensors = [leaf for leaf in chosen if leaf is not None]
    check_pad(tensors, pad, pad_values)
    for leaf in tensors:
        check_unmarked(leaf.tensor, mesh, leaf.spec, leaf.path)
    hosts, host = _layout(tensors, mesh)
    padded = pad_leaves(chosen, mesh, hosts, host=host, pad=pad, values=pad_values)
    before = batch_rows(tensors)
    after = batch_rows(leaf for leaf in padded if leaf is not None)
    left = left_text(tensors, before)
    return BatchPlan(batch, mesh, padded, hosts, host, after, after - before, left)


def _layout(tensors: list[Leaf], mesh: Mesh) -> tuple[Hosts, int]:
    """Devices of each process, and which one this is; meta tensors need none."""
    real = [leaf for leaf in tensors if leaf.tensor.device.type != "meta"]
    if not real:
        return (mesh.device_ids,), 0
    check_machine(mesh, f"{real[0].path} {real[0].shape}")
    return hosts_module.current_hosts(), hosts_module.host_index()


def send(plan: BatchPlan) -> Any:
    """Put a planned batch on the devices.

    Args:
        plan: From `plan_batch`.

    Returns:
        Containers of the same types with tensors on the XLA device.
    """
    sent: dict[tuple[int, Spec], torch.Tensor] = {}
    remaining = iter(plan.leaves)

    def replace(value: Any) -> Any:
        leaf = next(remaining)
        if leaf is None:
            return value
        # A tensor that is in the batch twice is sent once.
        key = (id(leaf.tensor), leaf.spec)
        if key not in sent:
            sent[key] = _send_leaf(leaf, plan)
        return sent[key]

    return rebuild(plan.batch, replace)


def _send_leaf(leaf: Leaf, plan: BatchPlan) -> torch.Tensor:
    tensor = leaf.tensor
    if tensor.device.type != "cpu":
        if tensor.ndim == 0:
            return tensor
        return mark_sharding(tensor, plan.mesh, leaf.spec, name=leaf.path)
    check_even(tensor, plan.mesh, leaf.spec, leaf.path)
    if runtime() == "jax":  # a compiled step takes its pieces from the host
        return remember(tensor.view_as(tensor), plan.mesh, leaf.spec)
    from spmd._torch_xla import seam

    placement = place(
        tuple(tensor.shape), plan.mesh, leaf.spec, hosts=plan.hosts, host=plan.host
    )
    pieces = cut(tensor.detach().resolve_conj().resolve_neg(), placement)
    result = seam.from_local_shards(pieces, plan.mesh, leaf.spec, shape=placement.shape)
    if tensor.requires_grad:
        result.requires_grad_()
    return remember(result, plan.mesh, leaf.spec)
