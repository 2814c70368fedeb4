"""Gradients of microbatches that stay where they are made until the last one.

Each device keeps what its own rows add to a weight's gradient, as an entry of
[devices, *weight's shape] that is split over the axes of the batch: microbatches are
added up and nothing moves. A weight's `grad` is the sum over the entries, split as the
weight. It is made anew at the end of every backward pass; inside one graph the compiler
drops all but the last, so each gradient is reduced once.

    rows 0 1 | 2 3 on two devices, microbatches a and b of two rows
    parts:  [a0, a2], then [a0 + b1, a2 + b3]   each entry on its device
    grad:   a0 + b1 + a2 + b3                   one reduction
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from fsdpv2._weights import without
from spmd import Annotation, Mesh
from spmd._marking.annotation import hook_of
from spmd._marking.mark import get_sharding
from spmd._marking.planning import GRADIENT, noted
from spmd._meshes.spec import entry_axes
from spmd._ops.host_sums import Rows, added_up
from spmd._torch_xla import seam


@dataclass(slots=True)
class _Sum:
    """What a weight's gradient is made of.

    Attributes:
        weight: The weight.
        parts: [devices, *shape], what each device has.
        axes: Axes over which they are parts.
        wire: What is reduced in.
        grad: The weight's `grad` that was made of it, and of `rest`.
        version: That of `grad` then: somebody wrote to it since if it has another.
        rest: The part of the gradient that came another way, or None.
    """

    weight: torch.Tensor
    parts: torch.Tensor
    axes: tuple[str, ...]
    wire: torch.dtype
    grad: torch.Tensor | None = None
    version: int = 0
    rest: torch.Tensor | None = None


class Unreduced:
    """Adds up gradients in parts, over the backward passes of some microbatches.

    Args:
        mesh: The mesh.
        axes: Axes that split the batch, outermost first.
        rows: Rows of a microbatch.
        num_passes: Backward passes after which nothing is kept.
    """

    def __init__(
        self, mesh: Mesh, axes: Sequence[str], *, rows: int, num_passes: int
    ) -> None:
        self._mesh = mesh
        self.axes = tuple(a for a in axes if mesh.axis_size(a) > 1)
        self._ways = mesh.axis_size(self.axes)
        self.rows = rows
        self._passes_left = num_passes
        self._sums: dict[int, _Sum] = {}
        self._sequences: dict[torch.Size, tuple[str, ...]] = {}
        # By backward pass, since one may run inside another, and fail.
        self._found: dict[int, dict[int, tuple[_Sum, _Sum | None]]] = {}

    def takes(
        self,
        weight: torch.Tensor,
        *values: torch.Tensor,
        axes: tuple[str, ...] | None = None,
    ) -> bool:
        """Whether this backward pass may keep a weight's gradient in parts.

        Args:
            weight: The weight.
            *values: [rows, ...], from which the gradient is made.
            axes: Axes over which they are parts; None for those of the batch.

        Returns:
            No where rows are not the batch's, where the gradient goes elsewhere than
            to the weight's `grad`, or is looked at on its way, and where this pass has
            parts of it over other axes.
        """
        known = get_sharding(weight)
        if known is None or known.mesh != self._mesh or self._ways == 1:
            return False
        if torch.is_grad_enabled():  # somebody wants the gradient's gradient
            return False
        if self.axes_of(weight) not in (None, axes or self.axes):
            return False
        return self.is_batch(*values) and _will_accumulate(weight)

    def has(self, weight: torch.Tensor) -> bool:
        """Whether this backward pass has parts over all axes of the batch already.

        Args:
            weight: The weight.

        Returns:
            Yes for a table that is the last layer's weight too.
        """
        return self.axes_of(weight) == self.axes

    def axes_of(self, weight: torch.Tensor) -> tuple[str, ...] | None:
        """Axes over which this backward pass has parts already.

        Args:
            weight: The weight.

        Returns:
            None where it has none.
        """
        found = self._found.get(torch._C._current_graph_task_id(), {})
        return found[id(weight)][0].axes if id(weight) in found else None

    def is_batch(self, *values: torch.Tensor) -> bool:
        """Whether values have the batch's rows, and devices share these evenly.

        Args:
            *values: Any tensors.

        Returns:
            Yes for [rows, ...] and [rows * seq, columns].
        """
        return all(map(self._has_rows, values))

    def _has_rows(self, value: torch.Tensor) -> bool:
        if value.ndim < 2:
            return False
        rows = value.shape[0]
        if rows != self.rows and (value.ndim > 2 or rows % self.rows):
            return False
        return rows > 0 and rows % self._ways == 0

    def split(
        self, value: torch.Tensor, *, columns: tuple[str, ...] | None = None
    ) -> torch.Tensor:
        """Rows by the device that has them.

        Args:
            value: [rows, ...].
            columns: Axes that split the last dim, no other axis but the batch's being
                left on any; None to leave that to the compiler. What is gathered for
                it then is what the layer gathered, and XLA makes one of both.

        Returns:
            [devices, rows / devices, ...].
        """
        if columns is not None:
            value = value.detach().clone()
            rest = *[None] * (value.ndim - 2), *without((columns,), self.axes)
            seam.mark(value, self._mesh, (self.axes, *rest))
        return value.reshape(self._ways, -1, *value.shape[1:])

    def see(self, value: torch.Tensor) -> None:
        """Remember how a sequence is split, for gradients of which nobody says that.

        Args:
            value: Any; those of [rows, seq, width] between layers are of one shape.
        """
        if value.ndim == 3 and get_sharding(value) is not None:
            known = _axes_of(value, self._mesh)
            if known is not None and known[0] == self.axes and known[1]:
                self._sequences[value.shape] = known[1]

    def split_sequence(
        self, grad: torch.Tensor, *values: torch.Tensor
    ) -> tuple[tuple[str, ...], list[torch.Tensor]] | None:
        """Rows and their sequence by the device that has them.

        Args:
            grad: [rows, seq, width].
            *values: [rows, seq, ...], what goes with it.

        Returns:
            Axes that split rows and sequence, and each of both as [devices, rows /
            devices, seq / devices, width]; None where no axis splits the sequence.
        """
        both = [grad, *values]
        same = all(v.ndim == 3 and v.shape[:2] == grad.shape[:2] for v in values)
        if grad.ndim != 3 or not same or not self.is_batch(*both):
            return None
        known = _axes_of(grad, self._mesh)
        if known is None:
            rows, sequence = self.axes, self._sequences.get(grad.shape, ())
        else:
            rows, sequence, _ = known
        ways = self._mesh.axis_size(sequence)
        if rows != self.axes or ways == 1 or grad.shape[1] % ways:
            return None

        def split(value: torch.Tensor) -> torch.Tensor:
            seq, width = value.shape[1:]
            value = value.reshape(self._ways, -1, ways, seq // ways, width)
            return value.transpose(1, 2).flatten(0, 1)

        return (*self.axes, *sequence), [split(v) for v in both]

    def add(
        self,
        weight: torch.Tensor,
        parts: torch.Tensor,
        *,
        wire: torch.dtype,
        axes: tuple[str, ...] | None = None,
    ) -> None:
        """Add to a weight's gradient, which `takes` allowed.

        Args:
            weight: The weight.
            parts: [devices, *shape].
            wire: What to reduce in.
            axes: Axes over which they are parts; None for those of the batch.
        """
        axes = axes or self.axes
        task = torch._C._current_graph_task_id()
        if task not in self._found:
            self._found[task] = {}
            end = functools.partial(self._end, task)
            torch.autograd.Variable._execution_engine.queue_callback(end)
        found = self._found[task]
        if id(weight) not in found:
            before = self._put_aside(weight, axes)
            parts = self.placed(weight, parts, axes=axes)
            found[id(weight)] = _Sum(weight, parts, axes, wire), before
        else:
            one, _ = found[id(weight)]
            one.parts = self.placed(weight, one.parts + parts, axes=axes)

    def _put_aside(self, weight: torch.Tensor, axes: tuple[str, ...]) -> _Sum | None:
        """Leave in a weight's `grad` what is not in parts, and give the rest."""
        before = self._sums.pop(id(weight), None)
        if before is None or weight.grad is not before.grad or before.axes != axes:
            return None
        if before.grad is None or before.grad._version != before.version:
            return None
        weight.grad = before.rest
        return before

    def _end(self, task: int) -> None:
        """Give weights the gradients of all passes so far."""
        with torch.no_grad():
            for one, before in self._found.pop(task).values():
                weight = one.weight
                if before is not None:
                    parts = before.parts + one.parts
                    one.parts = self.placed(weight, parts, axes=one.axes)
                one.rest, grad = weight.grad, self._reduced(one)
                weight.grad = grad if one.rest is None else one.rest + grad
                one.grad, one.version = weight.grad, weight.grad._version
                self._sums[id(weight)] = one
        self._passes_left -= 1
        if self._passes_left <= 0:
            self._sums.clear()

    def placed(
        self,
        weight: torch.Tensor,
        parts: torch.Tensor,
        *,
        dim: int = 0,
        axes: tuple[str, ...] | None = None,
    ) -> torch.Tensor:
        """Say that parts of a weight's gradient are where they are made.

        Args:
            weight: The weight.
            parts: The weight's shape with a dim of devices more.
            dim: Which of its dims that is.
            axes: Axes over which they are parts; None for those of the batch.

        Returns:
            The parts.
        """
        axes = axes or self.axes
        rest = without(_known(weight).spec, axes)
        seam.mark(parts, self._mesh, (*rest[:dim], axes, *rest[dim:]))
        return parts

    def stay(self, parts: torch.Tensor) -> None:
        """Say the same of a gradient of what is made of weights.

        Only where no other axis may split it: how is not known.

        Args:
            parts: [devices, *shape].
        """
        if self._mesh.size == self._ways:
            spec = (self.axes, *[None] * (parts.ndim - 1))
            seam.mark(parts, self._mesh, spec)

    def _reduced(self, one: _Sum) -> torch.Tensor:
        """The sum over devices, split as the weight.

        It is a product with ones, since XLA's partitioner scatters a product over the
        axes that split the weight and adds up that share over the others; of a plain
        sum GPUs add up the whole over all devices. The TPU's compiler makes a sum of it
        all the same, which it cuts in two itself where copies are on other slices. On
        a device it has one term, of full precision. The ones have their own spec: XLA
        makes equal constants one, and with the spec of a model's it would gather parts.
        """
        from spmd._ops.precise_dot import dot_module  # takes jax with it

        known = _known(one.weight)
        parts = one.parts.to(one.wire)
        hosts = Rows(known.mesh, one.axes).ways
        if hosts > 1 and without(known.spec, one.axes) == known.spec:
            return self._hosts_last(one, parts, hosts)
        ones = torch.ones(len(parts), dtype=parts.dtype, device=parts.device)
        seam.mark(ones, known.mesh, (one.axes,))
        shapes = tuple(ones.shape), tuple(parts.shape)
        module = dot_module(*shapes, parts.dtype, ((0,), (0,), (), ()), "highest")
        with noted(GRADIENT, one.weight, known.mesh, known.spec):
            (value,) = seam.call_hlo("dot_general", [ones, parts], module)
            seam.mark(value, known.mesh, known.spec)
        return value.to(one.weight.dtype)

    def _hosts_last(self, one: _Sum, parts: torch.Tensor, hosts: int) -> torch.Tensor:
        """The sum of what is not split: inside each host first, then between hosts."""
        known = _known(one.weight)
        with noted(GRADIENT, one.weight, known.mesh, known.spec):
            value = added_up(parts.unflatten(0, (hosts, -1)).sum(1))
            seam.mark(value, known.mesh, known.spec)
        return value.to(one.weight.dtype)


def _known(weight: torch.Tensor) -> Annotation:
    known = get_sharding(weight)
    assert known is not None
    return known


def _axes_of(value: torch.Tensor, mesh: Mesh) -> list[tuple[str, ...]] | None:
    """Axes that split each dim of a value, if that was said."""
    try:
        known = get_sharding(value, mesh)
    except ValueError:  # by no axes of the mesh
        known = None
    if known is None:
        return None
    return [
        tuple(a for a in entry_axes(e) if mesh.axis_size(a) > 1) for e in known.spec
    ]


def _will_accumulate(weight: torch.Tensor) -> bool:
    """Whether a plain `backward()` is at work that adds to a weight's own `grad`.

    No hook but ours may wait for the gradient, since none will come that way.
    """
    if not weight.is_leaf or weight._post_accumulate_grad_hooks:
        return False
    own = hook_of(weight)
    if any(own is None or key != own.id for key in weight._backward_hooks or {}):
        return False
    node = torch.autograd.graph.get_gradient_edge(weight).node
    try:
        return torch._C._will_engine_execute_node(node)
    except RuntimeError:  # `torch.autograd.grad` gives it to somebody else
        return False
