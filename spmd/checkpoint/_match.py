"""Compare what a model has with what a checkpoint has, before anything is changed."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from spmd.checkpoint._parts import Holdings, saved_aliases, saved_shapes
from spmd.checkpoint._places import Places
from spmd.checkpoint._source import Kind

_SHOWN = 8

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Match:
    """How names of a model and a checkpoint go together.

    Attributes:
        found: For each tensor of the model that the checkpoint has, by its first key,
            the key that it has there.
        missing: First keys of the others.
        unexpected: Keys of the checkpoint that are none of the model's.
    """

    found: Mapping[str, str]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]


def match(
    wanted: Mapping[str, Shape],
    aliases: Mapping[str, str],
    available: Mapping[str, Kind],
    *,
    where: str,
    strict: bool = True,
) -> Match:
    """Find each tensor of a model in a checkpoint.

    Args:
        wanted: Shapes by first key.
        aliases: Further keys, and the first one's.
        available: What the checkpoint has of this model.
        where: Name of the checkpoint.
        strict: Refuse missing and unexpected keys.

    Returns:
        What goes with what.

    Raises:
        ValueError: Shapes that differ; with `strict` also keys that are missing or
            unexpected.
    """
    others: dict[str, list[str]] = {}
    for alias, key in aliases.items():
        others.setdefault(key, []).append(alias)
    found, missing = {}, []
    for key in wanted:
        names = (key, *others.get(key, ()))
        there = next((name for name in names if name in available), None)
        if there is None:
            missing.append(key)
        else:
            found[key] = there
    known = {*wanted, *aliases}
    unexpected = [key for key in available if key not in known]
    shapes = [
        (key, available[there][1], wanted[key])
        for key, there in found.items()
        if tuple(available[there][1]) != tuple(wanted[key])
    ]
    if shapes or (strict and (missing or unexpected)):
        lines = [f"load: {where} does not fit the model:"]
        if strict:
            lines += _listed("missing from the checkpoint", missing, wanted, unexpected)
            lines += _listed(
                "not in the model", unexpected, _shapes(available), missing
            )
        lines += [
            f"  of another shape: {key} is {list(theirs)} in the checkpoint, "
            f"{list(ours)} in the model"
            for key, theirs, ours in shapes[:_SHOWN]
        ]
        if len(shapes) > _SHOWN:
            lines.append(f"  and {len(shapes) - _SHOWN} more of another shape")
        lines.append(
            "Build the model as it was saved"
            + ("" if shapes else ", or leave out what does not match with strict=False")
        )
        raise ValueError("\n".join(lines))
    return Match(found, tuple(missing), tuple(unexpected))


def matched(
    places: Places,
    holdings: Holdings,
    kinds: Mapping[str, Kind],
    *,
    where: str,
    strict: bool = True,
) -> Match:
    """Find what a model has in a source, under the names that are saved.

    Args:
        places: Tensors of the model.
        holdings: What of them is held otherwise than it is saved.
        kinds: What the source has of this model.
        where: Name of the source, for messages.
        strict: See `load`.

    Returns:
        What goes with what.

    Raises:
        ValueError: See `load`.
    """
    return match(
        saved_shapes(places, holdings),
        saved_aliases(places.aliases, holdings),
        kinds,
        where=where,
        strict=strict,
    )


def _shapes(kinds: Mapping[str, Kind]) -> dict[str, Shape]:
    return {key: shape for key, (_, shape) in kinds.items()}


def _listed(
    title: str,
    keys: Sequence[str],
    shapes: Mapping[str, Shape],
    others: Iterable[str],
) -> list[str]:
    others = list(others)
    lines = []
    for key in keys[:_SHOWN]:
        near = difflib.get_close_matches(key, others, n=1, cutoff=0.7)
        hint = f" (near: {near[0]})" if near else ""
        lines.append(f"  {title}: {key} {list(shapes[key])}{hint}")
    if len(keys) > _SHOWN:
        lines.append(f"  and {len(keys) - _SHOWN} more {title}")
    return lines
