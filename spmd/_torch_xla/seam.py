"""The seam to torch_xla: with its neighbours, all that touches its internals.

Written against torch_xla 2.9. Everything else in `spmd` and `fsdpv2` asks this module,
so that what replaces torch_xla has one place to be put in.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch_xla
import torch_xla.core.xla_model as xm
import torch_xla.runtime as xr
import torch_xla.utils.checkpoint as torch_xla_checkpoint

from spmd._host_spans import WAIT, record_with, span
from spmd._meshes.mesh import Mesh
from spmd._meshes.sharding import HloSharding, to_hlo
from spmd._meshes.spec import Spec, num_shards

WRITTEN_AGAINST = "2.9"
DEFAULT_SEED = 101  # torch_xla/csrc/xla_graph_executor.cpp, DeviceContextArena
_REPLICATED, _TILED, _PARTIAL = 0, 3, 5  # XLA's OpSharding.Type as torch_xla reads it

_XLAC = torch_xla._XLAC  # pyright: ignore[reportPrivateImportUsage]
_TraceMe = _XLAC.profiler.TraceMe
record_with(_TraceMe, functools.partial(_TraceMe.is_enabled, 1))


def check_version() -> None:
    """Refuse a torch_xla whose internals this file was not written against.

    Raises:
        RuntimeError: Another minor version.
    """
    have: str = torch_xla.__version__  # pyright: ignore[reportPrivateImportUsage]
    if not have.startswith(WRITTEN_AGAINST + "."):
        raise RuntimeError(
            f"spmd was written against torch_xla {WRITTEN_AGAINST}.*, this is "
            f"{have}; run pip install 'torch=={WRITTEN_AGAINST}.*' "
            f"'torch_xla=={WRITTEN_AGAINST}.*'"
        )


def spmd_is_on() -> bool:
    """Whether torch_xla runs in SPMD mode."""
    return bool(xr.is_spmd())


def device_was_used() -> bool:
    """Whether a device was handed out, after which SPMD cannot be switched on."""
    return bool(_XLAC._xla_get_spmd_config_is_locked())


def runtime_is_up() -> bool:
    """Whether the PJRT client exists, after which device counts are fixed."""
    return bool(_XLAC._xla_runtime_is_initialized())


def switch_spmd_on() -> None:
    """Switch torch_xla to SPMD mode; call before any device is used."""
    xr.use_spmd()


def autograd_works() -> bool:
    """Whether torch's autograd knows the XLA devices; false for good if it does not.

    Only traces: nothing is compiled or run.
    """
    probe = torch.ones((), device=device(), requires_grad=True)
    try:
        (probe * 1.0).backward()
    except RuntimeError:
        return False
    return True


def seed_was_set() -> bool:
    """Whether the device's random seed differs from torch_xla's default.

    Only call once a device was used: asking opens it.
    """
    return int(xm.get_rng_state()) != DEFAULT_SEED


def device() -> torch.device:
    """The device that stands for all devices."""
    return torch_xla.device()


def num_devices() -> int:
    """Devices over all processes."""
    return int(xr.global_runtime_device_count())


def global_mesh() -> Any:
    """torch_xla's own global mesh, or None."""
    from torch_xla.distributed.spmd import get_global_mesh

    return get_global_mesh()


def process_index() -> int:
    """Index of this process (host)."""
    return int(xr.process_index())


def num_processes() -> int:
    """Number of processes (hosts)."""
    return int(xr.process_count())


def local_devices() -> tuple[int, ...]:
    """Ids of the devices this process feeds."""
    return tuple(_device_id(name) for name in _XLAC._xla_get_runtime_devices())


def _device_id(name: str) -> int:
    return int(name.rsplit(":", 1)[1])


@functools.lru_cache(maxsize=4096)
def op_sharding(mesh: Mesh, spec: Spec) -> Any:
    """torch_xla's sharding object for a spec; cached, it is slow on a big mesh.

    Args:
        mesh: The mesh.
        spec: A normalised spec.

    Returns:
        `_XLAC.OpSharding`.
    """
    hlo = to_hlo(mesh, spec, form="tiles")
    if hlo.is_replicated:
        return _XLAC.OpSharding([], [], [], _REPLICATED)
    tiles = hlo.tiles()
    if not hlo.replicate_last:
        return _XLAC.OpSharding(tiles.tolist(), [], [], _TILED)
    ways = num_shards(mesh, spec)
    groups = tiles.reshape(-1, tiles.shape[-1])
    order = torch.arange(len(groups)).reshape(ways).tolist()
    return _XLAC.OpSharding([], order, groups.tolist(), _PARTIAL)


def mark(tensor: torch.Tensor, mesh: Mesh, spec: Spec) -> None:
    """Annotate in place: data is resharded, a traced value gets a sharding node.

    Args:
        tensor: A tensor on the XLA device.
        mesh: The mesh.
        spec: A normalised spec.
    """
    _XLAC._xla_mark_sharding(tensor, op_sharding(mesh, spec))


def mark_whole(tensor: torch.Tensor) -> None:
    """Tell torch_xla that a tensor is whole on every device, if it was told nothing.

    It is anyway, but once a graph has computed the tensor torch_xla knows, and a graph
    that reads it then is another one than before.

    Args:
        tensor: Data on the XLA device.
    """
    if not _XLAC._get_xla_sharding_spec(tensor):
        _XLAC._xla_mark_sharding(tensor, _XLAC.OpSharding([], [], [], _REPLICATED))


def is_view(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a view: writing into one drops its sharding.

    Also what `torch.empty_like` makes of a meta tensor is one.

    Args:
        tensor: A tensor on the XLA device.
    """
    is_base = torch._is_functional_tensor_base  # pyright: ignore[reportPrivateImportUsage]
    return not is_base(tensor)


def clear(tensor: torch.Tensor) -> None:
    """Take the annotation off.

    Args:
        tensor: A tensor on the XLA device.
    """
    _XLAC._xla_clear_sharding(tensor)


def sharding_of(tensor: torch.Tensor) -> HloSharding | None:
    """The sharding torch_xla has for a tensor.

    Args:
        tensor: A tensor on the XLA device.

    Returns:
        `None` where it has none.
    """
    text = _XLAC._get_xla_sharding_spec(tensor)
    return HloSharding.parse(text) if text else None


def local_shards(
    tensor: torch.Tensor,
) -> list[tuple[int, torch.Tensor, int, tuple[slice, ...]]]:
    """Pieces this process holds, copied to the host.

    Args:
        tensor: A tensor on the XLA device.

    Returns:
        For each local device: its id, the piece (padding included), which replica it
        is, and the part of the whole it covers (without padding).
    """
    from spmd._torch_xla.graph import execute, needs_execution

    if needs_execution([tensor])[0]:
        execute([tensor])
    wait()
    if sharding_of(tensor) is None:
        data, part = tensor.cpu(), tuple(slice(0, d) for d in tensor.shape)
        return [(d, data, i, part) for i, d in enumerate(local_devices())]
    shards = _XLAC._get_local_shards([tensor])[0]
    where = _XLAC._get_local_shard_replica_and_indices([tensor])[0]
    out = []
    for (data, name), (replica, indices) in zip(shards, where, strict=True):
        if indices is Ellipsis:
            indices = [slice(0, d) for d in tensor.shape]
        part = tuple(slice(s.start, s.stop) for s in indices)
        out.append((_device_id(name), data, int(replica), part))
    return out


def from_local_shards(
    shards: Sequence[torch.Tensor], mesh: Mesh, spec: Spec, *, shape: Sequence[int]
) -> torch.Tensor:
    """A tensor over all processes from the pieces of this one.

    Args:
        shards: One CPU tensor per local device, in the order of `local_devices`, each
            of the padded shard shape.
        mesh: The mesh.
        spec: A normalised spec.
        shape: Shape of the whole.

    Returns:
        The tensor on the XLA device, annotated with the spec.
    """
    sharding = op_sharding(mesh, spec)
    return _XLAC._global_tensor_from_cpu_shards(list(shards), sharding, list(shape))


def wait() -> None:
    """Wait until every operation sent to the devices is done.

    Right after an asynchronous sync, a tensor's sharding and pieces are not known yet.
    """
    with span(WAIT):
        xm.wait_device_ops()


def to_host(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Copy tensors to the host in one go; what they need is executed first.

    Args:
        tensors: Tensors on the XLA device.

    Returns:
        CPU tensors.
    """
    with span(WAIT):
        return _XLAC._xla_get_cpu_tensors(list(tensors))


def call_hlo(
    name: str, tensors: Sequence[torch.Tensor], module: bytes
) -> list[torch.Tensor]:
    """Put a computation given as HLO into the traced program.

    Args:
        name: What to call it.
        tensors: Its arguments, on the XLA device.
        module: A serialised `HloModuleProto`, whose names all end in ``.number``, or
            the process dies.

    Returns:
        Its results, without gradients.
    """
    computation = _XLAC._xla_op_computation_from_module_proto(name, module)
    return _XLAC._xla_user_computation(f"xla::{name}", list(tensors), computation)


def dot_general(
    a: torch.Tensor,
    b: torch.Tensor,
    contract_a: list[int],
    contract_b: list[int],
    batch_a: list[int],
    batch_b: list[int],
    *,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """XLA's product with any number of batch, free and contracted dims.

    In the precision of `torch_xla.backends.set_mat_mul_precision`.

    Args:
        a: A tensor on the XLA device.
        b: Another of the same dtype.
        contract_a: Dims of `a` that are summed over.
        contract_b: Their partners in `b`.
        batch_a: Dims of `a` that stay, paired.
        batch_b: Their partners in `b`.
        dtype: Of the product, where it is another than theirs.

    Returns:
        Batch dims, other dims of `a`, other dims of `b`; without gradients.
    """
    precision = _XLAC._xla_get_mat_mul_precision()
    if precision == "default":
        dims = ((contract_a, contract_b), (batch_a, batch_b))
        return _XLAC._xla_dot_general(a, b, dims, None, dtype)
    if dtype is not None:
        a, b = a.to(dtype), b.to(dtype)
    # torch_xla's own leaves the precision out.
    from spmd._ops.precise_dot import dot_module

    dims = (tuple(contract_a), tuple(contract_b), tuple(batch_a), tuple(batch_b))
    module = dot_module(tuple(a.shape), tuple(b.shape), a.dtype, dims, precision)
    return call_hlo("dot_general", [a, b], module)[0]


def at_step_end(closure: Callable[[], None]) -> None:
    """Call once when the step is over.

    Args:
        closure: Called by the next `torch_xla.sync`.
    """
    xm.add_step_closure(closure)


def optimization_barrier(tensors: list[torch.Tensor]) -> None:
    """Keep XLA from moving or fusing work across this point (in place).

    Args:
        tensors: Tensors on the XLA device.
    """
    xm.optimization_barrier_(tensors)


def replace_checkpoint(new: Callable[..., Any]) -> None:
    """Have torch_xla's checkpoint call another one, whoever imported its name before.

    Args:
        new: Takes what torch's takes.
    """

    def checkpoint(function: Any, *args: Any, **kwargs: Any) -> Any:
        import torch_xla.utils.checkpoint as home

        new: Any = home.__dict__["_instead"]
        return new(function, *args, **kwargs)

    home: Any = torch_xla_checkpoint
    home._instead = new
    original = home.checkpoint
    original.__code__ = checkpoint.__code__
    original.__kwdefaults__ = None
