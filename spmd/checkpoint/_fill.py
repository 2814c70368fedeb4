"""Put values of a source into the tensors of a training, split as those are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import nn

from spmd._marking.mark import Annotation, get_sharding, remember
from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import shard_shape, shard_slices
from spmd.checkpoint._jax_values import Refill
from spmd.checkpoint._places import Place
from spmd.checkpoint._promised import can_promise, promise_from
from spmd.checkpoint._read import Advance
from spmd.checkpoint._source import Source


def fill_place(
    place: Place,
    source: Source,
    *,
    assign: bool = False,
    device: str = "cpu",
    elsewhere: Mapping[int, Refill] | None = None,
    advance: Advance,
) -> None:
    """Give a tensor its values; it stays where it is, and split as it is.

    Args:
        place: The tensor.
        source: Where its values are, under the key of the place.
        assign: Take the source's dtype, too.
        device: Where a tensor on meta goes: ``"xla"``, ``"cpu"``, or ``"jax"``: into
            jax's devices, with a promise, if it is split, else to the CPU.
        elsewhere: For tensors whose values are elsewhere, by identity.
        advance: Called with the number of bytes that were read.
    """
    tensor = place.read()
    key = place.key
    refill = (elsewhere or {}).get(id(tensor))
    if refill is not None:
        refill(source, key, advance)
        return
    dtype = getattr(torch, source.kinds[key][0]) if assign else tensor.dtype
    kind = device if tensor.device.type == "meta" else tensor.device.type
    if kind == "jax":
        kind = "meta" if can_promise(tensor) else "cpu"
    if kind == "meta":
        if dtype != tensor.dtype:
            _put(place, tensor, torch.empty_like(tensor, dtype=dtype))
        promise_from(place.read(), source, key, advance)
        return
    if kind == "xla":
        value = _split(tensor, source, key, dtype, advance)
    elif tensor.device.type == "cpu" and dtype == tensor.dtype:
        _fill(source, key, tensor.detach(), advance)  # shares its version counter
        return
    else:
        value = torch.empty(tensor.shape, dtype=dtype)
        _fill(source, key, value, advance)
        value = value.to(kind)
    _put(place, tensor, value)


def _fill(source: Source, key: str, target: torch.Tensor, advance: Advance) -> None:
    region = (0,) * target.ndim, tuple(target.shape)
    with torch.no_grad():
        source.fill(key, [(region, target)], advance=advance)


def _put(place: Place, tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Have a place hold a value, with the annotation that was there."""
    vars(value).update(vars(tensor))
    if not place.keeps:
        place.put(value)
    elif tensor.device.type == value.device.type:
        tensor.data = value
    else:
        from spmd._trace.stand_in import exchange

        if isinstance(tensor, nn.Parameter):
            value = nn.Parameter(value, tensor.requires_grad)
        exchange(tensor, value)


def _split(
    tensor: torch.Tensor,
    source: Source,
    key: str,
    dtype: torch.dtype,
    advance: Advance,
) -> torch.Tensor:
    """A tensor on the devices; the host holds this process's pieces for a moment."""
    from spmd._torch_xla import graph as torch_xla_graph
    from spmd._torch_xla import seam

    annotation = annotation_of(tensor, key)
    if annotation is None:
        whole = torch.empty(tensor.shape, dtype=dtype)
        _fill(source, key, whole, advance)
        if whole.ndim == 0:
            return torch_xla_graph.scalar(whole.item(), dtype)
        value = whole.to(seam.device())
        torch_xla_graph.handles([value])  # uploads it
        return value
    mesh, spec = annotation.mesh, annotation.spec
    shape = tuple(tensor.shape)
    padded = shard_shape(shape, mesh, spec)
    boxes: dict[tuple[tuple[int, ...], tuple[int, ...]], torch.Tensor] = {}
    shards = []
    for device in seam.local_devices():
        part = shard_slices(shape, mesh, spec, device=device)
        size = tuple(max(0, s.stop - s.start) for s in part)
        region = tuple(s.start for s in part), size
        if region not in boxes:  # replicas share what they are filled from
            new = torch.empty if size == padded else torch.zeros
            boxes[region] = new(padded, dtype=dtype)
        shards.append(boxes[region])
    regions = [
        (region, data[tuple(slice(0, n) for n in region[1])])
        for region, data in boxes.items()
        if all(region[1])
    ]
    source.fill(key, regions, advance=advance)
    value = seam.from_local_shards(shards, mesh, spec, shape=shape)
    return remember(value, mesh, spec)


def annotation_of(tensor: torch.Tensor, key: str) -> Annotation | None:
    """How a tensor is split, by us or by torch_xla's own functions.

    Args:
        tensor: On the XLA device, or meta.
        key: What it is called.

    Returns:
        None for one that nobody split.
    """
    known = get_sharding(tensor)
    if known is not None or tensor.device.type != "xla":
        return known
    from spmd._torch_xla import seam

    sharding = seam.sharding_of(tensor)
    if sharding is None or sharding.is_replicated:
        return None
    tiles = sharding.tiles()
    names = [f"dim{i}" for i in range(tiles.ndim)]
    mesh = Mesh(tiles.reshape(-1).tolist(), tiles.shape, names)
    spec = tuple(names[i] if tiles.shape[i] > 1 else None for i in range(tensor.ndim))
    return Annotation(mesh, spec)


def target_device(tensors: Iterable[torch.Tensor]) -> str:
    """Where tensors on meta are to go: with the others of a model.

    Args:
        tensors: Of one model.

    Returns:
        ``"xla"`` if any is there, or annotated while torch_xla executes; ``"jax"`` if
        any is annotated while jax executes.
    """
    from spmd._runtime import runtime

    for tensor in tensors:
        if tensor.device.type == "xla":
            return "xla"
        if tensor.device.type == "meta" and get_sharding(tensor) is not None:
            return "jax" if runtime() == "jax" else "xla"
    return "cpu"
