"""`Preset`: flags that go together, each with a reason, as data."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from flags._flag import FlagValue
from flags._library import BACKENDS, Backend
from flags._workload import CONDITIONS, FORMULAS, Workload

FOLDER = Path(__file__).with_name("data") / "presets"

_KEYS = ("about", "backend", "date", "versions", "figures", "flags")
_FLAG_KEYS = ("value", "formula", "when", "reason", "source", "effect")


@dataclass(frozen=True, slots=True)
class PresetFlag:
    """One flag of a preset.

    Attributes:
        name: Without dashes.
        value: To set it to; None where a formula gives it.
        formula: One of `FORMULAS`; empty where the value is given.
        when: One of `CONDITIONS`; empty for always.
        reason: Why it is there.
        source: Who says so.
        effect: What becomes different without it.
    """

    name: str
    value: FlagValue | None = None
    formula: str = ""
    when: str = ""
    reason: str = ""
    source: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Preset:
    """Flags that go together.

    Attributes:
        name: What to call it.
        about: What it is for.
        backend: What it is for: ``cpu``, ``gpu`` or ``tpu``; None for all.
        date: When it was judged.
        versions: With what, by package.
        figures: What was found.
        flags: In order.
    """

    name: str
    about: str
    backend: Backend | None
    date: str
    versions: Mapping[str, str] = field(hash=False)
    figures: str
    flags: tuple[PresetFlag, ...]

    @property
    def needs_workload(self) -> bool:
        """Whether a value is computed from the step."""
        return any(flag.formula or flag.when for flag in self.flags)

    def values(self, workload: Workload | None = None) -> dict[str, FlagValue]:
        """The flags with their values.

        Args:
            workload: Figures of the step; needed where a value is computed.

        Returns:
            Value by flag.

        Raises:
            ValueError: A figure is needed and not given.
        """
        found: dict[str, FlagValue] = {}
        for flag in self.flags:
            if workload is None and (flag.when or flag.formula):
                raise ValueError(
                    f"preset {self.name!r} computes {flag.name} from the step; give "
                    f"workload=flags.Workload(num_shards=..., layer_bytes=...)"
                )
            if workload is not None and flag.when:
                if not CONDITIONS[flag.when](workload):
                    continue
            if workload is not None and flag.formula:
                try:
                    found[flag.name] = FORMULAS[flag.formula](workload)
                except ValueError as error:
                    raise ValueError(
                        f"preset {self.name!r}, {flag.name}: {error}"
                    ) from None
            elif flag.value is not None:
                found[flag.name] = flag.value
        return found

    def __repr__(self) -> str:
        names = ", ".join(flag.name for flag in self.flags)
        return f"Preset({self.name!r}: {names})"


def preset(name: str | Path) -> Preset:
    """A preset by its name, or from a file.

    Args:
        name: Such as ``gpu-overlap``, or a YAML file.

    Returns:
        The preset.

    Raises:
        OSError: The file cannot be read.
        ValueError: There is no preset of that name, or the file holds none.

    Example:
        >>> step = Workload(num_shards=8, layer_bytes=103_000_000)
        >>> preset("gpu-overlap").values(step)
        {'xla_gpu_reduce_scatter_combine_threshold_bytes': 8388608}
    """
    known = presets()
    if isinstance(name, str) and name in known:
        return known[name]
    path = Path(name)
    if path.suffix in {".yaml", ".yml"} or path.is_file():
        return read(path)
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(
        f"unknown preset {str(name)!r}; {hint}there are {', '.join(known)}, or give a "
        f".yaml file"
    )


@functools.cache
def presets() -> Mapping[str, Preset]:
    """All presets of this package.

    Returns:
        By name.
    """
    found = [read(path) for path in sorted(FOLDER.glob("*.yaml"))]
    return MappingProxyType({entry.name: entry for entry in found})


def read(path: Path) -> Preset:
    """Read a preset.

    Args:
        path: YAML in the form of those in ``flags/data/presets``; its name without
            suffix is the preset's. Only `flags` is needed there, and for a flag its
            value alone will do.

    Returns:
        The preset.

    Raises:
        OSError: The file cannot be read.
        ValueError: A file that holds none.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: no YAML: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("flags"), dict):
        raise ValueError(f"{path}: holds no preset; write e.g. 'flags: {{xla_x: 1}}'")
    _check_keys(str(path), content, _KEYS)
    backend = content.get("backend")
    if backend not in {None, *BACKENDS}:
        raise ValueError(
            f"{path}, backend: {backend!r}; it is one of {', '.join(BACKENDS)}, or null"
        )
    return Preset(
        path.stem,
        _text(content.get("about")),
        backend,
        _text(content.get("date")),
        {k: str(v) for k, v in (content.get("versions") or {}).items()},
        _text(content.get("figures")),
        tuple(_flag(path, name, said) for name, said in content["flags"].items()),
    )


def _flag(path: Path, name: Any, said: Any) -> PresetFlag:
    where = f"{path}, {name}"
    entry = said if isinstance(said, dict) else {"value": said}
    _check_keys(where, entry, _FLAG_KEYS)
    value, formula = entry.get("value"), entry.get("formula", "")
    if (value is None) == (not formula):
        raise ValueError(f"{where}: give either a value or a formula")
    if value is not None and not isinstance(value, bool | int | float | str):
        raise ValueError(f"{where}: {value!r} is no value; a bool, number or text is")
    _check_word(where, "formula", formula, FORMULAS)
    when = entry.get("when", "")
    _check_word(where, "when", when, CONDITIONS)
    texts = [_text(entry.get(key)) for key in ("reason", "source", "effect")]
    return PresetFlag(str(name), value, formula, when, *texts)


def _check_keys(where: str, entry: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for key in entry:
        if key not in allowed:
            raise ValueError(
                f"{where}: unknown key {key!r}; allowed are {', '.join(allowed)}"
            )


def _check_word(where: str, key: str, word: str, allowed: Mapping[str, Any]) -> None:
    if word and word not in allowed:
        raise ValueError(
            f"{where}, {key}: unknown {word!r}; there are {', '.join(allowed)}"
        )


def _text(said: Any) -> str:
    return "" if said is None else str(said).strip()


def write(entry: Preset, path: str | Path) -> Path:
    """Write a preset, for `preset` to read.

    Args:
        entry: The preset.
        path: A ``.yaml`` file.

    Returns:
        The path.
    """
    content = {
        "about": entry.about,
        "backend": entry.backend,
        "date": entry.date,
        "versions": dict(entry.versions),
        "figures": entry.figures,
        "flags": {
            flag.name: {
                key: getattr(flag, key)
                for key in _FLAG_KEYS
                if getattr(flag, key) not in {None, ""}
                or (key == "value" and not flag.formula)
            }
            for flag in entry.flags
        },
    }
    target = Path(path)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=88)
    target.write_text(text, encoding="utf-8")
    return target
