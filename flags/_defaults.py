"""Defaults of flags, from what libraries write when they are asked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from flags._flag import Flag

# "\t--xla_fuel=\"\"  \tstring\tSets ..." (tsl/util/command_line_flags.cc)
_USAGE = re.compile(r"^\t--(\w+)=(.*?)\s*\t(\w+)\t", re.MULTILINE)
_ENTRY = re.compile(r"^( *)(\w+): (.*)$")
_FLAGFILE = re.compile(r"^--(\w+)=(.*)$", re.MULTILINE)
_ZERO = {"bool": "false", "string": "", "enum": ""} | dict.fromkeys(
    ("int32", "int64", "uint32", "uint64", "float"), "0"
)
# What jax or the question itself sets.
_NOT_DEFAULTS = {"xla_dump_to", "xla_dump_full_hlo_config"}


def usage_defaults(text: str) -> tuple[dict[str, str], dict[str, str]]:
    r"""Defaults and types from the text that ``XLA_FLAGS=--help`` gives.

    Args:
        text: What was written to stderr.

    Returns:
        Default by flag, and type by flag.

    Example:
        >>> usage_defaults("\t--xla_a=true \tbool\tSays a.\n")
        ({'xla_a': 'true'}, {'xla_a': 'bool'})
    """
    defaults, types = {}, {}
    for name, value, kind in _USAGE.findall(text):
        defaults[name] = ",".join(p.strip() for p in value.strip('"').split(","))
        types[name] = kind
    return defaults, types


def xla_defaults(folder: Path, flags: Mapping[str, Flag]) -> dict[str, str]:
    """Defaults from the configuration that ``xla_dump_full_hlo_config`` writes.

    Args:
        folder: The dump.
        flags: By name.

    Returns:
        Default by flag; without those that jax sets.
    """
    files = [*folder.glob("*.config.pbtxt"), *folder.glob("*hlo_module_config.txt")]
    changed = _names_in(folder.glob("*.debug_options")) | _NOT_DEFAULTS
    values: dict[str, list[str]] = {}
    for line in files[0].read_text(encoding="utf-8").splitlines():
        found = _ENTRY.match(line)
        if found and found[2] in flags:
            values.setdefault(found[2], []).append(found[3].strip('"'))
    found = {name: ",".join(said) for name, said in values.items()}
    # A field that is not written reads as zero, no text, or an enum's first value.
    zero = {n: _zero(flag) for n, flag in flags.items() if flag.type in _ZERO}
    return {
        name: value
        for name, value in sorted((zero | found).items())
        if name not in changed
    }


def tpu_defaults(folder: Path) -> dict[str, str]:
    """Defaults from the flagfile that libtpu writes into a dump.

    Args:
        folder: The dump.

    Returns:
        Default by flag.
    """
    (file,) = folder.glob("*.flagfile")
    pairs = _FLAGFILE.findall(file.read_text(encoding="utf-8"))
    return {name: value.strip("'\"") for name, value in sorted(pairs)}


def _zero(flag: Flag) -> str:
    if flag.repeated:
        return ""
    return flag.choices[0] if flag.choices else _ZERO[flag.type]


def _names_in(files: Iterable[Path]) -> set[str]:
    found: set[str] = set()
    for file in files:
        found |= {line.partition(":")[0] for line in file.read_text().splitlines()}
    return found
