"""`Value`: one input or output of a program, with its name, role and spec."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np

from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec, shard_shape

Role = Literal[
    "parameter",
    "buffer",
    "gradient",
    "optimizer",
    "input",
    "output",
    "rng",
    "learning_rate",
    "constant",
]
ROLES: tuple[Role, ...] = get_args(Role)
STATE_ROLES: tuple[Role, ...] = ("parameter", "buffer", "gradient", "optimizer")
"""Roles of the inputs that a runner keeps from one step to the next."""

STACKED = "*"
"""Stands in a name for all layers of a list: ``layers.*.up.weight`` [layers, ...].

As in the pattern of a plan, which matches it; no module is called so.
"""

STORED_AS: Mapping[str, str] = MappingProxyType(
    {
        "bool": "bool",
        "int8": "int8",
        "int16": "int16",
        "int32": "int32",
        "int64": "int64",
        "uint8": "uint8",
        "uint16": "uint16",
        "uint32": "uint32",
        "uint64": "uint64",
        "float16": "float16",
        "float32": "float32",
        "float64": "float64",
        "complex64": "complex64",
        "complex128": "complex128",
        "bfloat16": "uint16",
        "float8_e4m3fn": "uint8",
        "float8_e5m2": "uint8",
    }
)
"""Torch's short dtype names, and the numpy dtype that holds their bits."""


def is_stacked(name: str) -> bool:
    """Whether a tensor has a leading dim for the layers that it is stacked from.

    Args:
        name: Of a parameter, a buffer, a gradient or optimizer state.

    Example:
        >>> is_stacked("optimizer.exp_avg[layers.*.up.weight]")
        True
    """
    return STACKED in re.split(r"[.\[\]]", name)


def layer_dims(name: str, shape: Sequence[Any]) -> range:
    """The dims of a tensor that its layer has too.

    Args:
        name: The tensor's.
        shape: Its shape, or what else has an entry for each of its dims.

    Example:
        >>> list(layer_dims("layers.*.up.weight", (32, 512, 256)))
        [1, 2]
    """
    return range(1 if is_stacked(name) and shape else 0, len(shape))


@dataclass(frozen=True, slots=True, repr=False)
class Value:
    """One input or output of a program.

    Attributes:
        name: Unique among the inputs, or among the outputs, of one program.
        role: What it is for the user.
        shape: Shape of the whole, not of a piece.
        dtype: Torch's short name, a key of `STORED_AS`.
        spec: How it is split; None where nobody said so (an input is then whole on
            every device, an output as the compiler likes).
        donated_to: Inputs only: index of the output that takes over this buffer.
        updates: Outputs only: index of the input whose next value this is.

    Raises:
        TypeError: A field of the wrong type.
        ValueError: An unknown role or dtype, a negative size, a spec of another length.
    """

    name: str
    role: Role
    shape: tuple[int, ...]
    dtype: str
    spec: Spec | None = None
    donated_to: int | None = None
    updates: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TypeError(f"value: name {self.name!r}; a non-empty string is needed")
        if self.role not in ROLES:
            raise ValueError(f"{self.name}: unknown role {self.role!r}; one of {ROLES}")
        if self.dtype not in STORED_AS:
            raise ValueError(
                f"{self.name}: unknown dtype {self.dtype!r}; one of {tuple(STORED_AS)}"
            )
        object.__setattr__(self, "shape", _sizes(self.shape, self.name))
        if self.spec is not None and len(self.spec) != len(self.shape):
            raise ValueError(
                f"{self.name} {list(self.shape)}: spec {self.spec} has "
                f"{len(self.spec)} entries for {len(self.shape)} dims"
            )
        for what in ("donated_to", "updates"):
            index = getattr(self, what)
            if index is not None and (type(index) is not int or index < 0):
                raise TypeError(f"{self.name}: {what}={index!r}; an index or None")

    @property
    def size_bytes(self) -> int:
        """Bytes of the whole."""
        return math.prod(self.shape) * np.dtype(STORED_AS[self.dtype]).itemsize

    def device_bytes(self, mesh: Mesh | None) -> int:
        """Bytes on each device, padding included.

        Args:
            mesh: The mesh that the spec is about.

        Returns:
            `size_bytes` where nothing splits it.
        """
        if mesh is None or self.spec is None:
            return self.size_bytes
        piece = shard_shape(self.shape, mesh, self.spec)
        return math.prod(piece) * np.dtype(STORED_AS[self.dtype]).itemsize

    def __repr__(self) -> str:
        extra = "" if self.spec is None else f", spec={self.spec}"
        return f"Value({self.name}, {self.role}, {self.dtype}{list(self.shape)}{extra})"


@dataclass(frozen=True, slots=True)
class ModuleAnnotation:
    """A spec that was put on a value inside the step.

    Attributes:
        module: Path of the module whose output it is, or the name given to the value.
        shape: Shape of the whole.
        spec: How it is split.

    Raises:
        TypeError: A size that is no int.
        ValueError: A spec of another length.
    """

    module: str
    shape: tuple[int, ...]
    spec: Spec

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", _sizes(self.shape, self.module))
        if len(self.spec) != len(self.shape):
            raise ValueError(
                f"annotation of {self.module!r}: spec {self.spec} has {len(self.spec)} "
                f"entries for shape {list(self.shape)}"
            )


def _sizes(shape: Iterable[Any], name: str) -> tuple[int, ...]:
    sizes = tuple(shape)
    for size in sizes:
        if isinstance(size, bool) or not isinstance(size, int):
            raise TypeError(f"{name}: shape {list(sizes)}; its sizes must be ints")
        if size < 0:
            raise ValueError(f"{name}: shape {list(sizes)}; a size below zero")
    return tuple(int(size) for size in sizes)
