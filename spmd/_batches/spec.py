"""Which spec each tensor of a batch gets, and which ones stay whole."""

from __future__ import annotations

import difflib
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from spmd._batches.leaf import as_tensor
from spmd._meshes.convert import spec_from
from spmd._meshes.mesh import DATA_AXES, Mesh
from spmd._meshes.spec import Spec, normalize_spec, num_shards
from spmd._names.rebuild import children

BatchSpec: TypeAlias = str | Iterable[Any] | Mapping[Any, Any] | None
_DEFAULT: Any = object()


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor of a batch and what becomes of it.

    Attributes:
        path: For messages, e.g. ``batch['labels']``.
        key: Last key of the path.
        tensor: On the CPU, the XLA device or meta.
        spec: Normalised.
        has_rows: Whether dim 0 counts the rows of the batch.
        left: Whether the batch axes do not split it, though nobody asked for that.
    """

    path: str
    key: Any
    tensor: torch.Tensor
    spec: Spec
    has_rows: bool = False
    left: bool = False

    @property
    def shape(self) -> list[int]:
        """The tensor's shape."""
        return list(self.tensor.shape)


@dataclass(frozen=True, slots=True)
class _Found:
    """A leaf of the batch with what the caller's spec says of it.

    `chosen` is `_DEFAULT`, None (keep it whole) or entries; `exact` where they were
    given for this leaf by its own key.
    """

    path: str
    key: Any
    value: Any
    chosen: Any
    exact: bool


def default_entries(spec: BatchSpec, mesh: Mesh) -> tuple[Any, ...]:
    """The entries for tensors that have no spec of their own.

    Args:
        spec: What the caller passed.
        mesh: The mesh.

    Returns:
        Entries for the leading dims.

    Raises:
        TypeError: Something that is no spec.
        ValueError: No spec, and a mesh without a data axis.

    Example:
        >>> default_entries(None, Mesh({"replica": 2, "fsdp": 2, "tensor": 2}))
        (('replica', 'fsdp'),)
    """
    if isinstance(spec, str):
        return (spec,)
    if spec is not None and not isinstance(spec, Mapping):
        return _entries(spec, mesh)
    if not mesh.data_axes:
        raise ValueError(
            f"shard_batch: none of the axes of {mesh!r} is a data axis by name "
            f"{DATA_AXES}; say which ones split the batch, e.g. "
            f"spec={mesh.axis_names[0]!r}"
        )
    return (mesh.data_axes,)


def _entries(spec: Any, mesh: Mesh) -> tuple[Any, ...]:
    """A plain spec as it is; one of torch_xla, DTensor or jax converted."""
    if isinstance(spec, str):
        return (spec,)
    if isinstance(spec, tuple | list) and not any(hasattr(e, "is_shard") for e in spec):
        return tuple(spec)
    inner = getattr(spec, "partition_spec", getattr(spec, "spec", spec))
    if not isinstance(inner, Iterable):
        raise TypeError(
            f"shard_batch: spec {spec!r} is a {type(spec).__name__}; an axis name, a "
            f"tuple with one entry per dim, a mapping by key or None is needed"
        )
    parts = list(inner)
    ndim = len(parts)
    if any(hasattr(e, "is_shard") for e in parts):  # placements: one for each mesh axis
        ndim = max((e.dim + 1 for e in parts if hasattr(e, "dim")), default=0)
    return spec_from(spec, mesh, shape=(1,) * ndim, name="shard_batch: spec")


def choose(batch: Any, mesh: Mesh, spec: BatchSpec) -> list[Leaf | None]:
    """Give each tensor of a batch its spec.

    Args:
        batch: Nested containers.
        mesh: The mesh.
        spec: See `shard_batch`.

    Returns:
        One entry per leaf in the order of the containers; `None` where it is no tensor.

    Raises:
        TypeError: A spec or a leaf of a wrong type.
        ValueError: A spec that does not fit, or a key the batch does not have.
    """
    top = spec if isinstance(spec, Mapping) else _DEFAULT
    found = list(_walk(batch, top, "batch", None, exact=False))
    tensors = [as_tensor(f.value, f.path) for f in found]
    plain = [
        t.shape[0]
        for f, t in zip(found, tensors, strict=True)
        if t is not None and t.ndim and f.chosen is _DEFAULT
    ]
    entries = default_entries(spec, mesh) if plain else ()
    rows = _most_common(plain)
    return [
        None if tensor is None else _leaf(one, tensor, mesh, entries, rows)
        for one, tensor in zip(found, tensors, strict=True)
    ]


def _walk(
    tree: Any, chosen: Any, path: str, key: Any, *, exact: bool
) -> Iterator[_Found]:
    inside = children(tree)
    if isinstance(chosen, Mapping):
        _check_keys(chosen, inside, tree, path)
    if inside is None:
        yield _Found(path, key, tree, chosen, exact)
        return
    for (name, label), value in inside:
        if isinstance(chosen, Mapping):
            one, own = chosen.get(name, _DEFAULT), name in chosen
        else:
            one, own = chosen, False
        yield from _walk(value, one, path + label, name, exact=own)


def _check_keys(
    chosen: Mapping[Any, Any], inside: list[Any] | None, tree: Any, path: str
) -> None:
    if inside is None:
        raise ValueError(
            f"{path} is a {type(tree).__name__} without keys, but its spec is by key "
            f"{list(chosen)}; give a tuple with one entry per dim"
        )
    names = [name for (name, _), _ in inside]
    for key in chosen:
        if key not in names:
            near = difflib.get_close_matches(str(key), [str(n) for n in names], n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise ValueError(f"{path} has no {key!r}, only {names}; fix the spec{hint}")


def batch_rows(leaves: Iterable[Leaf]) -> int:
    """Rows of a batch.

    Args:
        leaves: Its tensors.

    Returns:
        The leading size that most tensors with rows have; 0 where there is none.
    """
    return _most_common([leaf.tensor.shape[0] for leaf in leaves if leaf.has_rows])


def _most_common(sizes: Iterable[int]) -> int:
    """The batch size: the leading size most tensors have.

    Of equally many, the first that is more than 1: of ``[1, 128]`` and ``[8, 128]`` it
    is 8.
    """
    counts = Counter(sizes)
    return max(counts, key=lambda size: (counts[size], size > 1), default=0)


def _leaf(
    found: _Found,
    tensor: torch.Tensor,
    mesh: Mesh,
    default: tuple[Any, ...],
    rows: int,
) -> Leaf:
    def make(entries: tuple[Any, ...]) -> Spec:
        return normalize_spec(entries, mesh, shape=tensor.shape, name=found.path)

    whole = (None,) * tensor.ndim
    if found.chosen is None or (tensor.ndim == 0 and not found.exact):
        return Leaf(found.path, found.key, tensor, whole)
    if found.chosen is not _DEFAULT:
        entries = _entries(found.chosen, mesh)
        entries = entries if found.exact else entries[: tensor.ndim]
        spec = make(entries + whole[len(entries) :])
        return Leaf(found.path, found.key, tensor, spec, bool(spec and spec[0]))
    spec = make((default + whole)[: tensor.ndim])
    # A dim of size 1 after the first is there to be broadcast: nothing to split.
    spec = tuple(
        None if i and n == 1 else e
        for i, (n, e) in enumerate(zip(tensor.shape, spec, strict=True))
    )
    size = tensor.shape[0]
    left = size != rows and num_shards(mesh, spec)[0] > 1
    if left:
        spec = (None, *(spec[1:] if size == 1 else whole[1:]))
    left = left or (_splits(default, mesh) and math.prod(num_shards(mesh, spec)) == 1)
    return Leaf(found.path, found.key, tensor, spec, size == rows, left)


def _splits(entries: tuple[Any, ...], mesh: Mesh) -> bool:
    """Whether entries name an axis of more than one device."""
    spec = normalize_spec(entries, mesh, shape=(1,) * len(entries), name="shard_batch")
    return math.prod(num_shards(mesh, spec)) > 1


def left_text(leaves: Iterable[Leaf], rows: int) -> str | None:
    """A warning that names what the batch axes do not split.

    Args:
        leaves: The tensors of a batch.
        rows: Rows of the batch.

    Returns:
        `None` where there is nothing to warn of.
    """
    left = [leaf for leaf in leaves if leaf.left]
    if not left:
        return None
    shown = ", ".join(f"{leaf.path} {leaf.shape}" for leaf in left)
    return (
        f"shard_batch: not split over the batch axes, so every device gets all of: "
        f"{shown} (the batch has {rows} rows). Give them a spec by key, e.g. "
        f"spec={{{left[0].key!r}: None}} to keep them whole on purpose"
    )
