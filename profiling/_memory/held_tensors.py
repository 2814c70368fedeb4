"""Every input of a step, with what a device holds of it."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from profiling._hlo.module import Module
from profiling._hlo.shape import Shape
from profiling._memory.use import HeldTensor
from spmd._meshes.sharding import HloSharding, from_hlo
from spmd._meshes.spec import Spec, num_shards, spec_axes

if TYPE_CHECKING:
    from spmd._meshes.mesh import Mesh
    from spmd._program.program import Program
    from spmd._program.value import Value

UNKNOWN = "unknown"
_WORDS = {
    "optimizer": "opt opt_state optimizer optim mu nu momentum exp_avg exp_avg_sq "
    "max_exp_avg_sq momentum_buffer",
    "parameter": "params param parameters weights weight bias",
    "input": "batch inputs input tokens labels targets input_ids images",
    "rng": "rng rngs prng",
}
_ROLES = {word: role for role, words in _WORDS.items() for word in words.split()}
_WORD = re.compile(r"[A-Za-z_]+")
_TUPLE_OF = re.compile(r"\{[^{}]*\}")


def held_tensors(
    module: Module, *, program: Program | None = None, mesh: Mesh | None = None
) -> tuple[HeldTensor, ...]:
    """List the inputs of a module.

    Args:
        module: Of one device.
        program: What was compiled: its inputs are the entry's parameters, by number.
            Without it the parameters' own words are all there is: a role is taken from
            their names where those are plain (``params['w']``), else it is unknown.
        mesh: Names the axes that split them; None for the program's.

    Returns:
        One for each input, in order.

    Raises:
        ValueError: A program with another number of inputs.
    """
    pieces = list(_pieces(module))
    if program is None:
        return tuple(_by_module(piece, module, mesh) for piece in pieces)
    if len(program.inputs) != len(pieces):
        raise ValueError(
            f"module {module.name!r} has {len(pieces)} inputs, program "
            f"{program.name!r} has {len(program.inputs)}; give the program that this "
            f"module was compiled from"
        )
    mesh = program.mesh or mesh
    return tuple(
        _by_program(value, piece, mesh)
        for value, piece in zip(program.inputs, pieces, strict=True)
    )


def role_of(name: str) -> str:
    """The role that a name tells.

    Args:
        name: jax's path of an argument, or what somebody called it.

    Returns:
        `spmd.Value`'s role, by the first word that tells one; else ``"unknown"``.

    Example:
        >>> role_of("opt_state[0].mu['layer']['weight']"), role_of("p[0][1]")
        ('optimizer', 'unknown')
    """
    words = (word.lower() for word in _WORD.findall(name))
    return next((_ROLES[word] for word in words if word in _ROLES), UNKNOWN)


@dataclass(frozen=True, slots=True)
class _Piece:
    """One device's part of an input."""

    name: str
    role: str
    shape: Shape
    sharding: str


def _pieces(module: Module) -> Iterator[_Piece]:
    """Arrays of the entry's parameters; torch_xla may pass all in one tuple."""
    for parameter in module.entry.parameters:
        said = parameter.metadata.op_name
        role, said = role_of(said), said or parameter.name
        sharding = parameter.attributes.sharding
        if not parameter.shape.is_tuple:
            yield _Piece(said, role, parameter.shape, sharding)
            continue
        leaves = list(parameter.shape.leaves())
        inner = _TUPLE_OF.findall(sharding)
        for i, leaf in enumerate(leaves):
            text = inner[i] if len(inner) == len(leaves) else ""
            yield _Piece(f"{said}[{i}]", role, leaf, text)


def _by_program(value: Value, piece: _Piece, mesh: Mesh | None) -> HeldTensor:
    spec = value.spec
    copies = 1 if mesh is None else mesh.size
    if spec is not None and mesh is not None:
        copies //= math.prod(num_shards(mesh, spec))
    return HeldTensor(
        value.name,
        value.role,
        piece.shape.dtype,
        value.shape,
        _if_split(spec),
        piece.shape.num_bytes,
        copies,
    )


def _by_module(piece: _Piece, module: Module, mesh: Mesh | None) -> HeldTensor:
    number = module.num_partitions
    sharding = _sharding(piece.sharding)
    if sharding is None:  # not said, or of a form that no spec gives: claim nothing
        return _held(piece, piece.shape.dims, None, 1)
    if sharding.is_replicated:
        return _held(piece, piece.shape.dims, None, number)
    tiles = sharding.tile_shape[: len(piece.shape.dims)]
    whole = tuple(d * n for d, n in zip(piece.shape.dims, tiles, strict=False))
    copies = sharding.num_devices // math.prod(tiles)
    return _held(piece, whole, _spec(sharding, mesh), copies)


def _held(
    piece: _Piece, whole: Iterable[int], spec: Spec | None, copies: int
) -> HeldTensor:
    return HeldTensor(
        piece.name,
        piece.role,
        piece.shape.dtype,
        tuple(whole),
        spec,
        piece.shape.num_bytes,
        copies,
    )


def _sharding(text: str) -> HloSharding | None:
    if not text:
        return None
    try:
        return HloSharding.parse(text)
    except ValueError:
        return None


def _spec(sharding: HloSharding, mesh: Mesh | None) -> Spec | None:
    if mesh is None:
        return None
    try:
        return _if_split(from_hlo(sharding, mesh))
    except ValueError:
        return None


def _if_split(spec: Spec | None) -> Spec | None:
    return spec if spec is not None and spec_axes(spec) else None
