"""Read chips from YAML: the file in the package, and a user's own."""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from profiling._targets.chip import Chip, Link

BUILT_IN = Path(__file__).parents[1] / "targets.yaml"

# key: (types, what to say); see the head of targets.yaml
_NUMBER = ((int, float, str), "a number")
_COUNT = ((int,), "a whole number")
_TEXT = ((str,), "a text")
_TABLE = ((dict,), "a mapping")
_REQUIRED = {
    "kind": _TEXT,
    "about": _TEXT,
    "devices_per_chip": _COUNT,
    "devices_per_host": _COUNT,
    "peak_flops": _TABLE,
    "hbm_bytes": ((int, type(None)), "a whole number or null"),
    "hbm_bandwidth": _NUMBER,
    "links": _TABLE,
    "source": _TABLE,
}
_OF_KIND = {
    "gpu": {"near_devices": _COUNT, "description": _TEXT},
    "tpu": {"topology": _TEXT, "grid": _COUNT, "wrap": _COUNT},
    "cpu": {},
}
_OPTIONAL = {"chip_config": _TEXT}
_LINK = {"bandwidth": _NUMBER, "ports": _COUNT, "latency": _NUMBER, "source": _TEXT}
_SOURCES = ("peak_flops", "hbm_bytes", "hbm_bandwidth", "layout")


def chips(file: str | Path | None = None) -> Mapping[str, Chip]:
    """Chips by name.

    Args:
        file: YAML of chips to add, or to put in place of the built-in ones.

    Returns:
        The built-in chips, and those of the file.

    Raises:
        OSError: The file cannot be read.
        ValueError: A file that is not what the head of ``targets.yaml`` describes.
    """
    found = dict(_built_in())
    if file is not None:
        path = Path(file)
        found |= {chip.name: chip for chip in _read(path, _raw(BUILT_IN))}
    return MappingProxyType(found)


@functools.cache
def _built_in() -> Mapping[str, Chip]:
    return {chip.name: chip for chip in _read(BUILT_IN, {})}


def _raw(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: no YAML: {error}") from None
    if not isinstance(content, dict) or not content:
        raise ValueError(
            f"{path}: holds {type(content).__name__}; it must be a mapping of chips "
            f"by name, such as 'mychip: {{base: h100, hbm_bytes: 1000}}'"
        )
    for name, entry in content.items():
        if not isinstance(name, str) or not name.isidentifier() or "_" in name:
            raise ValueError(
                f"{path}: {name!r} is no name for a chip; letters and digits, "
                f"a letter first"
            )
        if not isinstance(entry, dict):
            raise ValueError(f"{path}, {name}: holds {entry!r}, must be a mapping")
        if "description" in entry:
            entry["description"] = _description(path, name, entry["description"])
    return content


def _description(path: Path, name: str, given: Any) -> str:
    beside = path.parent / str(given)
    try:
        return beside.read_text(encoding="utf-8")
    except OSError as error:
        raise ValueError(
            f"{path}, {name}: description {given!r} cannot be read ({error.strerror}); "
            f"it is a file beside this one"
        ) from error


def _read(path: Path, bases: Mapping[str, Any]) -> list[Chip]:
    raw = _raw(path)
    known = {**bases, **raw}
    return [_chip(f"{path}, {name}", name, _based(path, name, known)) for name in raw]


def _based(path: Path, name: str, known: Mapping[str, Any]) -> dict[str, Any]:
    """An entry with what it takes from its base; a mapping is merged by key."""
    entry = dict(known[name])
    base = entry.pop("base", None)
    if base is None:
        return entry
    # A base of the same name is the built-in one.
    pool = _raw(BUILT_IN) if base == name and path != BUILT_IN else known
    if base not in pool or (base == name and path == BUILT_IN):
        raise ValueError(
            f"{path}, {name}: base {base!r} is no chip{_near(str(base), pool)}"
        )
    under = _based(BUILT_IN if pool is not known else path, base, pool)
    for key, value in entry.items():
        merge = isinstance(value, dict) and isinstance(under.get(key), dict)
        under[key] = {**under[key], **value} if merge and key != "links" else value
    return under


def _near(wanted: str, names: Any) -> str:
    near = difflib.get_close_matches(wanted, list(names), n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}" if near else ""
    return f"{hint}; there are {', '.join(names)}"


def _chip(where: str, name: str, entry: dict[str, Any]) -> Chip:
    kind = entry.get("kind")
    if kind not in _OF_KIND:
        raise ValueError(f"{where}: kind {kind!r}; must be gpu, tpu or cpu")
    allowed = {**_REQUIRED, **_OF_KIND[kind]}
    _check(where, entry, allowed, _OPTIONAL if kind == "tpu" else {})
    peaks = {
        str(k): _float(f"{where}, peak_flops", v)
        for k, v in entry["peak_flops"].items()
    }
    if "float32" not in peaks:
        raise ValueError(f"{where}: peak_flops {list(peaks)} must have float32")
    missing = [key for key in _SOURCES if not isinstance(entry["source"].get(key), str)]
    if missing:
        raise ValueError(f"{where}: source says nothing of {', '.join(missing)}")
    links = [_link(where, key, value) for key, value in entry["links"].items()]
    if len(links) not in (1, 2):
        raise ValueError(f"{where}: {len(links)} links; one near, one far")
    per_chip, per_host = entry["devices_per_chip"], entry["devices_per_host"]
    if per_chip < 1 or per_host < 1 or per_host % per_chip:
        raise ValueError(
            f"{where}: devices_per_host {per_host} must be a multiple of "
            f"devices_per_chip {per_chip}"
        )
    return Chip(
        name=name,
        kind=kind,
        about=entry["about"],
        devices_per_chip=per_chip,
        devices_per_host=per_host,
        near_devices=entry.get("near_devices", 0),
        peak_flops=peaks,
        hbm_bytes=entry["hbm_bytes"],
        hbm_bandwidth=_float(where, entry["hbm_bandwidth"]),
        near=links[0],
        far=links[1] if len(links) == 2 else None,
        sources={key: entry["source"][key] for key in _SOURCES},
        **{
            k: entry[k]
            for k in ("description", "topology", "chip_config", "grid", "wrap")
            if k in entry
        },
    )


def _link(where: str, name: str, entry: Any) -> Link:
    where = f"{where}, link {name}"
    if not isinstance(entry, dict):
        raise ValueError(f"{where}: holds {entry!r}, must be a mapping")
    _check(where, entry, _LINK, {})
    return Link(
        name,
        _float(where, entry["bandwidth"]),
        entry["ports"],
        _float(where, entry["latency"]),
        entry["source"],
    )


def _float(where: str, value: Any) -> float:
    """A number above 0; YAML reads 1e12, without a dot, as a text."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if isinstance(value, bool) or not 0 < number < math.inf:
        raise ValueError(f"{where}: {value!r} must be a number above 0, such as 1e12")
    return number


def _check(where: str, entry: Mapping[str, Any], required: Any, optional: Any) -> None:
    known = {**required, **optional}
    for key, value in entry.items():
        if key not in known:
            raise ValueError(f"{where}: unknown key {key!r}{_near(str(key), known)}")
        types, text = known[key]
        if isinstance(value, bool) or not isinstance(value, types):
            raise ValueError(f"{where}: {key} is {value!r}, must be {text}")
    missing = [key for key in required if key not in entry]
    if missing:
        raise ValueError(
            f"{where}: {', '.join(missing)} missing; write it, or 'base: NAME' to take "
            f"what is missing from another chip"
        )
