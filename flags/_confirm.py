"""Find out, by starting a library, where its file does not tell what it accepts.

The results for the versions that this package is built with are in ``data/confirmed``;
``python -m flags._confirm`` writes them anew. For another version the same questions
are asked once, and the answers kept in the user's cache folder.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from flags import _oracle
from flags._defaults import tpu_defaults, usage_defaults, xla_defaults
from flags._descriptor import TPU_PROTO, read_flags
from flags._flag import Flag
from flags._library import LIBRARIES, Library, library

FOLDER = Path(__file__).with_name("data") / "confirmed"

_PROBE = "xla_no_flag_has_this_name"
_UNKNOWN = re.compile(r"Unknown flags? in XLA_FLAGS: (.*)")
_TPU_UNKNOWN = re.compile(r"Unknown command line flag '([^']*)'")
_TPU_BOOL = re.compile(r"Illegal value '\?' specified for bool flag '([^']*)'")
_TPU_ILLEGAL = re.compile(r"Illegal value '\?' specified for flag '([^']*)'")
_NAME = re.compile(rb"(?<=\0)[a-z][a-z0-9]*(?:_[a-z0-9]+)+(?=\0)")
# absl's own, which do something when they are given
_NOT_TRIED = {"flagfile", "fromenv", "tryfromenv", "undefok"}

_SAMPLES = {"bool": "true", "float": "1"} | dict.fromkeys(
    ("int32", "int64", "uint32", "uint64", "unknown"), "1"
)
# Flags that refuse the sample of their type.
_OWN_SAMPLES = {
    "xla_detect_unstable_reductions": "none",
    "xla_detect_unstable_reductions_post_optimizations": "none",
    "xla_fuel": "a=1",
    "xla_gpu_all_gather_mode": "private",
    "xla_gpu_collective_permute_mode": "private",
    "xla_gpu_detect_inf": "none",
    "xla_gpu_detect_nan": "none",
    "xla_gpu_disable_async_collectives": "allreduce",
    "xla_gpu_enable_libnvptxcompiler": "false",
    "xla_gpu_execution_terminate_timeout": "inf",
    "xla_gpu_ragged_all_to_all_mode": "private",
}


@dataclass(frozen=True, slots=True)
class Confirmed:
    """What a library's file does not tell.

    Attributes:
        library: Its name.
        version: Its version.
        absent: Compile options that are no flags of ``XLA_FLAGS``.
        extra: Flags of ``XLA_FLAGS`` that are no compile options, with their type.
        init: The same of ``LIBTPU_INIT_ARGS``.
        ignored: Compile options without a meaning, which are accepted all the same.
        defaults: By flag, as they would be written.
    """

    library: str
    version: str
    absent: tuple[str, ...] = ()
    extra: Mapping[str, str] = field(default_factory=dict)
    init: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    defaults: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_json(cls, text: str) -> Confirmed:
        """What `to_json` wrote.

        Args:
            text: JSON.

        Returns:
            The same content.
        """
        content = json.loads(text)
        for key in ("absent", "ignored"):
            content[key] = tuple(content[key])
        return cls(**content)

    def to_json(self) -> str:
        """The content as JSON."""
        return json.dumps(asdict(self), indent=1) + "\n"


def shipped(library: Library, version: str) -> Confirmed | None:
    """What was confirmed when this package was made.

    Args:
        library: The library.
        version: Its version.

    Returns:
        None for a version that was not.
    """
    try:
        text = (FOLDER / f"{library.name}-{version}.json").read_text(encoding="utf-8")
    except OSError:
        return None
    return Confirmed.from_json(text)


def confirm(library: Library, *, whole: bool = False) -> Confirmed:
    """Ask a library.

    Args:
        library: An installed one.
        whole: Try every name in its file that looks like a flag (minutes), not only
            those known to be exceptions in some version.

    Returns:
        Its answers.

    Raises:
        NotInstalledError: It is not there.
        RuntimeError: It died in another way than by an unknown flag.
        TimeoutError: It took too long.
    """
    path, version = library.find()
    fields = {flag.name: flag for flag in read_flags(path, library.protos)}
    own = {flag.name: flag for flag in read_flags(path)}
    others = _names(path) if whole else _known_extra()
    candidates = {n for n in others if n.startswith("xla_")} - set(fields)
    taken = _taken(library, {**own, **{n: _bare(n) for n in candidates}})
    defaults, types = _defaults_of(library, own)
    extra = {n: types.get(n, "unknown") for n in sorted(candidates & taken)}
    absent = tuple(sorted(set(own) - taken))
    init: dict[str, str] = {}
    ignored: tuple[str, ...] = ()
    if TPU_PROTO in library.protos:
        init = _init_flags(library, others | set(fields))
        init = {name: kind for name, kind in init.items() if name not in fields}
        asked = sorted(n for n in init if n.startswith("xla_"))
        ignored = tuple(sorted(_oracle.accepted_options(library, asked)))
    return Confirmed(library.name, version, absent, extra, init, ignored, defaults)


def _bare(name: str) -> Flag:
    return Flag(name, "unknown", ())


def _names(path: Path) -> set[str]:
    """Strings of a library's file that could be names of flags."""
    return {name.decode() for name in _NAME.findall(path.read_bytes())} - _NOT_TRIED


def _known_extra() -> set[str]:
    found: set[str] = set()
    for file in FOLDER.glob("*.json"):
        known = Confirmed.from_json(file.read_text(encoding="utf-8"))
        found |= {*known.extra, *known.init}
    return found


def _sample(flag: Flag) -> str:
    if flag.name in _OWN_SAMPLES:
        return _OWN_SAMPLES[flag.name]
    if flag.choices and not flag.repeated:
        return flag.choices[-1]
    return _SAMPLES.get(flag.type, "")


def _taken(library: Library, flags: Mapping[str, Flag]) -> set[str]:
    """Flags that a library takes from XLA_FLAGS."""
    return set(_halved(library, [f"{f.name}={_sample(f)}" for f in flags.values()]))


def _halved(library: Library, items: list[str]) -> Iterator[str]:
    """Ask for all at once; where a value is refused, for each half."""
    line = " ".join(f"--{item}" for item in [*items, _PROBE])
    code, said = _oracle.start(library, line)
    found = _UNKNOWN.search(said)
    names = [item.partition("=")[0] for item in items]
    if found:
        words = {w.removeprefix("--").partition("=")[0] for w in found[1].split()}
        yield from (name for name in names if name not in words)
    elif code == 0 or not items:
        raise RuntimeError(
            f"{library.name} ended with exit status {code} and did not refuse an "
            f"unknown flag: {said.strip()[-500:] or '(it said nothing)'}"
        )
    elif len(items) == 1:
        yield names[0]  # known, as only its value is refused
    else:
        half = len(items) // 2
        yield from _halved(library, items[:half])
        yield from _halved(library, items[half:])


def _init_flags(library: Library, names: set[str]) -> dict[str, str]:
    """Flags that libtpu takes from LIBTPU_INIT_ARGS, with their type."""
    with tempfile.TemporaryDirectory(prefix="spmd-flags-") as folder:
        file = Path(folder) / "flags"
        lines = [f"--{name}=?" for name in sorted(names)]
        file.write_text("\n".join([*lines, f"--{_PROBE}"]), encoding="utf-8")
        _, said = _oracle.start(
            library, f"--flagfile={file}", channel="LIBTPU_INIT_ARGS"
        )
    unknown = set(_TPU_UNKNOWN.findall(said))
    if _PROBE not in unknown:
        raise RuntimeError(
            f"{library.name} did not refuse an unknown flag in LIBTPU_INIT_ARGS: "
            f"{said.strip()[-500:] or '(it said nothing)'}"
        )
    kinds = dict.fromkeys(_TPU_BOOL.findall(said), "bool")
    kinds |= dict.fromkeys(_TPU_ILLEGAL.findall(said), "unknown")
    return {n: kinds.get(n, "string") for n in sorted(names) if n not in unknown}


def _defaults_of(
    library: Library, own: Mapping[str, Flag]
) -> tuple[dict[str, str], dict[str, str]]:
    """Defaults, and types of flags that have no field."""
    if library.name == "torch_xla":
        _, said = _oracle.start(library, "--help")
        return usage_defaults(said)
    # jaxlib makes the options that a plugin then compiles with.
    plugin = LIBRARIES["libtpu" if library.name == "libtpu" else "cuda"]
    if not plugin.installed:
        return {}, {}
    with tempfile.TemporaryDirectory(prefix="spmd-flags-") as folder:
        options = {"xla_dump_to": folder, "xla_dump_full_hlo_config": True}
        code, said = _oracle.start(plugin, None, options=options)
        if code != 0:
            raise RuntimeError(f"{plugin.name} compiled nothing: {said.strip()[-500:]}")
        found = xla_defaults(Path(folder), own)
        if library.name == "libtpu":
            found |= tpu_defaults(Path(folder))
    return found, {}


def main(names: list[str]) -> None:
    """Write ``data/confirmed`` anew.

    Args:
        names: Libraries; empty for all.
    """
    FOLDER.mkdir(parents=True, exist_ok=True)
    for entry in [library(name) for name in names or LIBRARIES]:
        found = confirm(entry, whole=True)
        file = FOLDER / f"{found.library}-{found.version}.json"
        file.write_text(found.to_json(), encoding="utf-8")
        print(f"{file.name}: {len(found.absent)} absent, {len(found.extra)} extra")


if __name__ == "__main__":
    main(sys.argv[1:])
