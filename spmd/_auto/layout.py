"""The axes of an automatic plan, and the specs that they make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from spmd._meshes.mesh import Mesh
from spmd._plans.rule import RawEntry, RawSpec

_LARGE = 2**24
"""Elements: 64 MiB in float32, more than tables of positions or patches have."""


@dataclass(frozen=True, slots=True)
class Axes:
    """Which axes of a mesh do what.

    Attributes:
        mesh: The mesh.
        fsdp: Splits every parameter, and the batch; None without one.
        tensor: Splits what matrices make; None without one.
        expert: Splits experts, and the batch outside of them; None without one.
        batch: All that split the batch, as an entry of a spec.
        sequence: Whether activations between layers are split along the sequence.
        min_elements: Smaller parameters are not split over fsdp.
    """

    mesh: Mesh
    fsdp: str | None
    tensor: str | None
    expert: str | None
    batch: RawEntry
    sequence: bool
    min_elements: int

    @property
    def ways(self) -> int:
        """Devices along the tensor axis."""
        return self.mesh.axis_size(self.tensor) if self.tensor else 1

    @property
    def between(self) -> RawSpec:
        """Spec of [batch, seq, embed] between layers."""
        return (self.batch, self.tensor if self.sequence else None, None)

    @property
    def columns(self) -> RawSpec:
        """Spec of [batch, seq, features] whose features are split."""
        return (self.batch, None, self.tensor)

    @property
    def whole(self) -> RawSpec:
        """Spec of [batch, seq, features] that every device of a row has."""
        return (self.batch, None, None)

    def weight(self, shape: Sequence[int], dim: int) -> RawSpec:
        """Spec of a weight that the tensor axis splits on one dim.

        Args:
            shape: Of two dims or more.
            dim: The dim.

        Returns:
            With fsdp on another dim if that divides.
        """
        return self._with_fsdp(shape, {dim: self.tensor})

    def parameter(self, shape: Sequence[int]) -> RawSpec:
        """Spec of a parameter that no matrix, table or expert has.

        Args:
            shape: Any.

        Returns:
            With fsdp on the longest dim that divides; vectors stay whole. Beside a
            tensor axis all but the largest do: for what is split over fsdp alone, the
            partitioner exchanges pieces between the two axes, and reducing the gradient
            of what is whole costs no more than gathering and scattering.
        """
        if self.ways > 1 and math.prod(shape) < _LARGE:
            return (None,) * len(shape)
        return self._with_fsdp(shape, {})

    def matrix(self, shape: Sequence[int], dim_out: int) -> RawSpec:
        """Spec of a matrix that is gathered whole where it is used.

        Args:
            shape: Of the weight.
            dim_out: Its dim of output features.

        Returns:
            Split over both axes where it divides, for the same reason.
        """
        if self.ways == 1:
            return self._with_fsdp(shape, {})
        if shape[dim_out] % self.ways == 0:
            return self.weight(shape, dim_out)
        if shape[1 - dim_out] % self.ways == 0:
            return self.weight(shape, 1 - dim_out)
        return self.parameter(shape)

    def repeated(self, shape: Sequence[int], dim_out: int) -> RawSpec:
        """Spec of a matrix whose rows each device of the tensor axis takes some of.

        Args:
            shape: Of the weight.
            dim_out: Its dim of output features.

        Returns:
            Split over fsdp by input features alone.
        """
        return self._with_fsdp(shape, {dim_out: None})

    def _with_fsdp(self, shape: Sequence[int], taken: dict[int, str | None]) -> RawSpec:
        spec: list[RawEntry] = [taken.get(d) for d in range(len(shape))]
        ways = self.mesh.axis_size(self.fsdp) if self.fsdp else 1
        small = len(shape) < 2 or math.prod(shape) < self.min_elements
        if self.fsdp is None or ways == 1 or small:
            return tuple(spec)
        free = [d for d in range(len(shape)) if d not in taken]
        even = [d for d in free if shape[d] % ways == 0]
        even = even or [d for d in free if shape[d] > ways and not taken]
        if even:
            spec[max(even, key=lambda d: (shape[d], -d))] = self.fsdp
            return tuple(spec)
        for dim, axis in taken.items():  # rather both on one dim than padding
            if axis is not None and shape[dim] % (self.ways * ways) == 0:
                spec[dim] = (axis, self.fsdp)
        return tuple(spec)


def choose_axes(
    mesh: Mesh,
    *,
    fsdp: str | None,
    tensor: str | None,
    expert: str | None,
    sequence_parallel: bool,
    min_shard_elements: int,
) -> Axes:
    """Find the axes in a mesh.

    Args:
        mesh: The mesh.
        fsdp: Name of the axis that splits every parameter.
        tensor: Name of the axis that splits what matrices make.
        expert: Name of the axis that splits experts.
        sequence_parallel: Split along the sequence between layers.
        min_shard_elements: Smaller parameters are not split over fsdp.

    Returns:
        The axes; those of the usual names may be missing.

    Raises:
        ValueError: A name of one's own that the mesh does not have, no axis at all, one
            axis for two roles, or a sequence to split without a tensor axis.
    """
    usual = {"fsdp": fsdp, "tensor": tensor, "expert": expert}
    for role, name in usual.items():
        if name is not None and name != role and name not in mesh.axis_names:
            raise ValueError(
                f"auto_plan: {role}={name!r}, but {mesh!r} has no such axis; its axes "
                f"are {', '.join(map(repr, mesh.axis_names))}"
            )
    found = {r: n if n in mesh.axis_names else None for r, n in usual.items()}
    if not any(found.values()):
        raise ValueError(
            f"auto_plan: {mesh!r} has no axis {fsdp!r} and none {tensor!r}; name the "
            f"axes that split parameters, as in auto_plan(model, mesh, fsdp="
            f"{mesh.axis_names[0]!r})"
        )
    for axis in {a: None for a in found.values() if a is not None}:
        roles = [role for role, name in found.items() if name == axis]
        if len(roles) > 1:
            raise ValueError(
                f"auto_plan: {' and '.join(roles)} are both the axis {axis!r} of "
                f"{mesh!r}, which cannot split two dims of a weight; set one of them "
                f"to None, or name another axis"
            )
    if sequence_parallel and found["tensor"] is None:
        raise ValueError(
            f"auto_plan: sequence_parallel=True splits activations over the tensor "
            f"axis, which {mesh!r} does not have; add it, or name it by tensor="
        )
    data = {*mesh.data_axes, found["fsdp"], found["expert"]} - {found["tensor"]}
    batch = tuple(a for a in mesh.axis_names if a in data)
    return Axes(
        mesh,
        found["fsdp"],
        found["tensor"],
        found["expert"],
        batch[0] if len(batch) == 1 else batch or None,
        sequence_parallel,
        min_shard_elements,
    )
