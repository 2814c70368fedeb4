"""The text of a target, such as ``h100:2x8`` or ``v5e:16x16*4``, to its parts."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping

from profiling._targets.chip import Chip

_TEXT = re.compile(
    r"(?P<name>[A-Za-z][A-Za-z0-9]*)"
    r"(?:[:=](?P<shape>[0-9]+(?:x[0-9]+)*)(?P<twist>_twisted|_untwisted)?"
    r"(?:\*(?P<slices>[0-9]+))?)?"
)
_FORMS = "h100:2x8, v5e:4x4, v5p:8x8x4, v5e:16x16*4, cpu:8"
_OTHER_NAMES = {
    "v5litepod": "v5e",
    "v5lite": "v5e",
    "v5": "v5p",
    "v6lite": "v6e",
    "trillium": "v6e",
    "v7x": "tpu7x",
    "v7": "tpu7x",
    "tpu7": "tpu7x",
    "ironwood": "tpu7x",
}
_MOST = 1 << 20  # devices; a typing error beyond


def parse(
    text: str, chips: Mapping[str, Chip]
) -> tuple[Chip, tuple[int, ...], int, bool]:
    """Take a target's text apart.

    Args:
        text: ``NAME`` (one host of it) or ``NAME:SIZES``.
        chips: Chips by name.

    Returns:
        Chip, sizes, number of slices, and whether the torus is twisted.

    Raises:
        ValueError: Text that is none; it is shown with a caret.
    """
    found = _TEXT.fullmatch(text)
    if found is None:
        prefix = _TEXT.match(text)
        raise _error(
            text, prefix.end() if prefix else 0, _why_not(text), f"such as {_FORMS}"
        )
    chip = _chip(text, found["name"], chips)
    if found["shape"] is None:
        return chip, _one_host(chip), 1, False
    at = found.start("shape")
    shape = tuple(int(size) for size in found["shape"].split("x"))
    slices = int(found["slices"]) if found["slices"] else 1
    if 0 in shape or slices == 0:
        raise _error(text, at, "a size of 0", "sizes are 1 or more")
    if chip.kind != "tpu" and (found["twist"] or found["slices"]):
        raise _error(
            text, found.end("shape"), f"{chip.name} has no slices", "only TPUs have"
        )
    check = {"gpu": _gpu, "tpu": _tpu, "cpu": _cpu}[chip.kind]
    shape = check(text, at, chip, shape)
    twisted = found["twist"] == "_twisted"
    if twisted and not _can_twist(chip, shape):
        raise _error(
            text,
            found.start("twist"),
            f"{'x'.join(map(str, shape))} has no twisted torus",
            "it needs sizes k, k, 2k or k, 2k, 2k, each a multiple of 4",
        )
    number = chip.devices_per_chip * slices
    for size in shape:
        number *= size
    if number > _MOST:
        raise _error(text, at, f"{number} devices", f"at most {_MOST}")
    return chip, shape, slices, twisted


def _error(text: str, at: int, what: str, allowed: str) -> ValueError:
    return ValueError(f"target {text!r}: {what}; {allowed}\n  {text}\n  {' ' * at}^")


def _why_not(text: str) -> str:
    pod = re.fullmatch(r"([A-Za-z0-9]+?)-([0-9]+)", text)
    if pod:
        return (
            f"{text} is the cloud's name of a size, which says nothing of its shape; "
            f"write the topology"
        )
    return "no target" if text else "an empty text is no target"


def _chip(text: str, name: str, chips: Mapping[str, Chip]) -> Chip:
    if name in chips:
        return chips[name]
    near = difflib.get_close_matches(name, list(chips), n=1, cutoff=0.6)
    guess = _OTHER_NAMES.get(name.lower()) or (
        name.lower() if name.lower() in chips else near[0] if near else None
    )
    hint = f"did you mean {guess!r}? " if guess in chips else ""
    raise _error(
        text, 0, f"unknown name {name!r}", f"{hint}there are {', '.join(chips)}"
    )


def _one_host(chip: Chip) -> tuple[int, ...]:
    if chip.kind == "gpu":
        return 1, chip.devices_per_host
    if chip.kind == "tpu":
        return (2, 2, 1)[: chip.grid]
    return (1,)


def _gpu(text: str, at: int, chip: Chip, shape: tuple[int, ...]) -> tuple[int, ...]:
    most = chip.devices_per_host
    if len(shape) != 2:
        raise _error(
            text, at, "GPUs are counted hosts x GPUs", f"such as {chip.name}:2x{most}"
        )
    hosts, gpus = shape
    if gpus > most:
        rest = chip.near_hosts
        hint = f"; an NVLink domain of {chip.near_devices} is {chip.name}:{rest}x{most}"
        raise _error(
            text,
            at + len(str(hosts)) + 1,
            f"{gpus} GPUs a host",
            f"a host of {chip.name} has {most}{hint if rest > 1 else ''}",
        )
    per_domain = chip.near_hosts
    if hosts > per_domain and hosts % per_domain:
        raise _error(
            text,
            at,
            f"{hosts} hosts are no whole number of NVLink domains",
            f"up to {per_domain} hosts of {gpus} GPUs, or a multiple of that",
        )
    return shape


def _tpu(text: str, at: int, chip: Chip, shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) == 2 and chip.grid == 3:
        shape = (*shape, 1)
    if len(shape) != chip.grid:
        example = "x".join(("4",) * chip.grid)
        raise _error(
            text,
            at,
            f"a {chip.name} slice has {chip.grid} dims",
            f"{chip.name}:{example}",
        )
    if all(size == 1 for size in shape):
        return shape
    if shape[0] % 2 or shape[1] % 2:
        raise _error(
            text,
            at,
            "a host has 2x2 chips, which do not divide this",
            "the first two sizes must be even, or all sizes 1",
        )
    return shape


def _cpu(text: str, at: int, chip: Chip, shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) != 1:
        raise _error(text, at, "one number of devices", f"such as {chip.name}:8")
    return shape


def _can_twist(chip: Chip, shape: tuple[int, ...]) -> bool:
    if chip.grid != 3 or any(size % chip.wrap for size in shape):
        return False
    low, middle, high = sorted(shape)
    return high == 2 * low and middle in (low, high)
