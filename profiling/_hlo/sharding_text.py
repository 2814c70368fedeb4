"""A sharding's proto as XLA's text, so that both kinds of dump read alike.

Source: XLA's `HloSharding::ToString`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

_REPLICATED, _MAXIMAL, _TUPLE, _OTHER, _MANUAL, _UNKNOWN, _UNREDUCED = range(7)
_WORDS = {
    _REPLICATED: "replicated",
    _MANUAL: "manual",
    _UNKNOWN: "unknown",
    _UNREDUCED: "unreduced",
}
_DEEPEST = 16


def sharding_text(sharding: Any, *, depth: int = 0) -> str:
    """Write a sharding.

    Args:
        sharding: `OpSharding`.
        depth: How many tuples it is in.

    Returns:
        E.g. ``{devices=[4,2]<=[8]}``.
    """
    if sharding.HasField("named_sharding"):
        return _named(sharding.named_sharding)
    kind = sharding.type
    if kind == _TUPLE and depth < _DEEPEST:
        inner = (sharding_text(s, depth=depth + 1) for s in sharding.tuple_shardings)
        return "{" + ", ".join(inner) + "}"
    if kind == _MAXIMAL:
        return f"{{maximal device={_commas(sharding.tile_assignment_devices)}}}"
    if kind != _OTHER:
        return f"{{{_WORDS.get(kind, 'unknown')}}}"
    text = f"devices=[{_commas(sharding.tile_assignment_dimensions)}]"
    if sharding.iota_reshape_dims:
        text += f"<=[{_commas(sharding.iota_reshape_dims)}]"
        perm = list(sharding.iota_transpose_perm)
        if perm != list(range(len(perm))):
            text += f"T({_commas(perm)})"
    else:
        text += _commas(sharding.tile_assignment_devices)
    if sharding.replicate_on_last_tile_dim:
        text += " last_tile_dim_replicate"
    elif sharding.last_tile_dims:
        words = (_WORDS.get(d, "unknown") for d in sharding.last_tile_dims)
        text += f" last_tile_dims={{{', '.join(words)}}}"
    return "{" + text + "}"


def _named(sharding: Any) -> str:
    mesh = sharding.mesh
    axes = ",".join(f"'{a.name}'={a.size}" for a in mesh.axes)
    text = f"mesh[{axes}]"
    if mesh.device_ids:
        text += f", device_ids=({_commas(mesh.device_ids)})"
    dims = ", ".join(
        "{" + ", ".join([*_axes(mesh, d.axes), *([] if d.is_closed else ["?"])]) + "}"
        for d in sharding.dim_shardings
    )
    text += f", [{dims}]"
    for word in ("replicated", "unreduced", "manual"):
        if given := getattr(sharding, f"{word}_axes"):
            text += f", {word}={{{', '.join(_axes(mesh, given))}}}"
    return "{" + text + "}"


def _axes(mesh: Any, given: Iterable[Any]) -> list[str]:
    found = []
    for axis in given:
        index = axis.mesh_axis_index
        name = mesh.axes[index].name if 0 <= index < len(mesh.axes) else "?"
        piece = axis.sub_axis_info
        part = f":({piece.pre_size}){piece.size}" if piece.size else ""
        found.append(f"'{name}'{part}")
    return found


def _commas(values: Iterable[int]) -> str:
    return ",".join(map(str, values))
