"""Gradients that are added up inside each host first, and then between hosts.

What is split on batch over (replica, fsdp) and on sequence over tensor gives a norm's
gradient in parts over all three axes, and XLA adds them up in one all-reduce, which
leaves the host. Here rows are summed as [hosts, rows / hosts, ...]: the parts of one
host are an entry of their own, which XLA adds up inside it, and then the entries are
added up. How the rows are split is left to XLA: where it is not over hosts, nothing
moves. A barrier keeps it from making one sum of the two.

    [16, seq, embed] on replica 2 x fsdp 2 x tensor 4
    as [2, 8, seq, embed], summed:  [2, embed]  all-reduce over fsdp, tensor
    summed:                         [embed]     all-reduce over replica
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from spmd._marking.mark import Annotation, get_sharding
from spmd._meshes.mesh import Mesh
from spmd._ops.tensor_type import tensor_type


@dataclass(frozen=True, slots=True)
class Rows:
    """How a step's rows are split.

    Attributes:
        mesh: The mesh.
        axes: Axes that split them, outermost first.
    """

    mesh: Mesh
    axes: tuple[str, ...]

    @property
    def ways(self) -> int:
        """Entries that keep hosts apart; 1 where none crosses hosts.

        All axes down to the innermost that crosses hosts: what is inside of it is one
        entry.
        """
        far = [i for i, axis in enumerate(self.axes) if self.mesh.crosses_dcn(axis)]
        return self.mesh.axis_size(self.axes[: far[-1] + 1]) if far else 1


# A module variable rather than a context variable: gradients are computed by threads of
# autograd.
_rows: Rows | None = None


def rows_of(
    parameters: Iterable[torch.Tensor], batch: Iterable[torch.Tensor]
) -> Rows | None:
    """Find how a step's rows are split.

    Args:
        parameters: Those of its model.
        batch: Its arguments, [rows, ...].

    Returns:
        By the batch's annotations, or by the mesh's data axes where it has none; `None`
        without any annotation.
    """
    for known in filter(None, map(get_sharding, batch)):
        if known.spec and known.spec[0] is not None:
            entry = known.spec[0]
            return Rows(known.mesh, (entry,) if isinstance(entry, str) else entry)
    for known in filter(None, map(get_sharding, parameters)):
        return Rows(known.mesh, known.mesh.data_axes)
    return None


@contextmanager
def hosts_last(rows: Rows | None) -> Iterator[None]:
    """Add up gradients inside each host first, where the rows' mesh has `dcn` axes.

    Sums of torch's are replaced while autograd computes gradients; products ask
    `parted`.

    Args:
        rows: How they are split.

    Yields:
        Nothing.
    """
    global _rows
    if rows is None or rows.ways == 1:
        yield
        return
    before = _rows
    library = torch.library.Library("aten", "IMPL")
    try:
        for operation in _SUMS:
            original = torch.library.get_kernel(operation, "AutogradXLA")
            name = operation._name.removeprefix("aten::")
            kernel = _kernel(original.call_boxed)
            library.impl(name, kernel, "AutogradXLA", with_keyset=True)
        _forget()
        _rows = rows
        yield
    finally:
        _rows = before
        library._destroy()
        _forget()


_SUMS: tuple[Any, ...] = (
    torch.ops.aten.sum.dim_IntList,
    torch.ops.aten.sum.default,
)


def _forget() -> None:
    """Have torch's tracers look for kernels again."""
    for operation in _SUMS:
        operation._dispatch_cache.clear()


def _kernel(original: Callable[..., Any]) -> Callable[..., Any]:
    def kernel(
        keys: Any, x: torch.Tensor, *args: Any, dtype: torch.dtype | None = None
    ) -> torch.Tensor:
        dims = args[0] if args and args[0] else range(x.ndim)
        summed = sorted(d % x.ndim for d in dims)
        parts = _split([x]) if _sums_rows(x, summed) else None
        if parts is None:
            return original(keys, x, *args, dtype=dtype)
        entries = _as_they_are(parts[0])
        total = added_up(entries.sum([d + 1 for d in summed], dtype=dtype))
        keepdim = len(args) > 1 and args[1]
        if not keepdim:
            return total
        return total.view([1 if d in summed else n for d, n in enumerate(x.shape)])

    return kernel


def _sums_rows(x: torch.Tensor, dims: list[int]) -> bool:
    """Whether this adds up rows for a gradient, whose own gradient nobody wants."""
    if torch._C._current_graph_task_id() == -1 or not x.is_floating_point():
        return False  # autograd is not at work
    if x.requires_grad and torch.is_grad_enabled():
        return False
    is_entry_each = _rows is not None and x.shape[:1] == (_rows.ways,)
    return dims[:1] == [0] and not (dims == [0] and is_entry_each)


def parted(
    weight: Annotation | None, a: torch.Tensor, b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Operands of a product that sums over rows, for one product for each host.

    Only where an axis may split other rows than those of the batch, as tensor splits
    the sequence: an axis that splits the weight splits none. Elsewhere XLA scatters
    inside the host already, and one product is better.

    Args:
        weight: How the weight is split whose gradient the product is.
        a: [rows, ...].
        b: [rows, ...].

    Returns:
        [hosts, rows / hosts, ...], for `added_up`; `None` for one product.
    """
    if _rows is None or weight is None or weight.mesh != _rows.mesh:
        return None
    entries = [(e,) if isinstance(e, str) else e or () for e in weight.spec]
    used = {*_rows.axes, *_rows.mesh.dcn_axes, *(a for e in entries for a in e)}
    sizes = _rows.mesh.sizes.items()
    if all(axis in used or size == 1 for axis, size in sizes):
        return None
    parts = _split([a, b])
    return None if parts is None else (parts[0], parts[1])


def _split(tensors: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    """[rows, ...] as [hosts, rows / hosts, ...], where it divides.

    What stands in for a tensor in torch's own tracers is left to them.
    """
    if _rows is None or any(type(t) is not torch.Tensor for t in tensors):
        return None
    ways = _rows.ways
    if any(t.ndim < 2 or not t.shape[0] or t.shape[0] % ways for t in tensors):
        return None
    return [t.reshape(ways, t.shape[0] // ways, *t.shape[1:]) for t in tensors]


def _as_they_are(parts: torch.Tensor) -> torch.Tensor:
    """Keep the TPU's compiler from summing a dim of rows before they are cut."""
    from spmd._torch_xla import seam

    kind = tensor_type(parts.shape, parts.dtype)
    module = _open_annotation(kind, parts.ndim)
    return seam.call_hlo("open", [parts], module)[0]


@functools.lru_cache(maxsize=1024)
def _open_annotation(kind: str, ndim: int) -> bytes:
    """An annotation of a value that leaves every dim to the compiler."""
    from spmd._pjrt import client as pjrt

    dims = ",".join(map(str, range(ndim)))
    marks = f'backend_config = "unspecified_dims=[{dims}]"'
    return pjrt.hlo_from_stablehlo(f"""
        module @open {{
          func.func public @main(%a: {kind}) -> {kind} {{
            %x = stablehlo.custom_call @Sharding(%a)
                {{mhlo.sharding = "{{replicated}}", {marks}}} : ({kind}) -> {kind}
            return %x : {kind}
          }}
        }}""")


def added_up(parts: torch.Tensor) -> torch.Tensor:
    """Add up what each host has.

    Args:
        parts: [hosts, ...].

    Returns:
        [...].
    """
    from spmd._torch_xla import seam

    parts = parts.clone()
    seam.optimization_barrier([parts])
    return parts.sum(0)
