"""Compile a program for devices that are not here, with the target's own compiler.

The compiler runs in a process of its own: whatever becomes of it ends as a
`CompileError`. It sees the flags that are given and no others: `XLA_FLAGS` and
`LIBTPU_INIT_ARGS` of this process are not passed on.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from profiling._compiling import cache, process, words
from profiling._compiling.compiled import Compiled, CompileError, FlagValue, Memory
from profiling._compiling.failed import failed, too_big
from profiling._compiling.setup import devices_of, flags_for, versions_for
from profiling._targets.target import Target
from spmd._program.program import Program

Progress = Callable[[str, float], None]
"""Called with the target's text and the seconds so far, about twice a second."""


def compile_program(
    program: Program,
    target: Target | str,
    *,
    flags: Mapping[str, FlagValue] | None = None,
    timeout_s: float = 1800.0,
    cache_dir: str | Path | None = None,
    progress: Progress | None = None,
) -> Compiled:
    """Compile a program for a target, or read it from the cache.

    Args:
        program: For as many devices as the target has.
        target: A target or its text, such as ``h100:2x8``.
        flags: XLA flags by name. For TPUs those that torch_xla sets where a chip is
            present come on top, unless given here.
        timeout_s: Seconds after which the compiler is stopped.
        cache_dir: Where results are kept; None for the user's cache folder.
        progress: Called while the compiler runs.

    Returns:
        What the compiler made.

    Raises:
        CompileError: The compiler crashed, refused a flag, took too long, is not
            installed or locked, or the program is too big for the target: see its
            `kind`.
        ValueError: A target that is none or has another number of devices, or a flag
            that is reserved.
    """
    if isinstance(target, str):
        target = Target.parse(target)
    if program.num_devices != target.num_devices:
        raise ValueError(
            f"program {program.name!r} is for {program.num_devices} devices "
            f"({program.mesh or 'no mesh'}), {target.text} has {target.num_devices}; "
            f"trace it for a mesh of {target.num_devices} or take another target"
        )
    job = _Job.of(program, target, flags or {})
    folder = cache.default_dir() if cache_dir is None else Path(cache_dir)
    key = job.key()
    compiled = cache.load(folder, key, target)
    if compiled is None:
        compiled = _run(job, timeout_s, progress)
        cache.save(folder, key, compiled)
    if compiled.over_bytes:
        raise too_big(program, compiled)
    return compiled


@dataclass(frozen=True, slots=True)
class _Job:
    """All that a compile depends on."""

    program: Program
    target: Target
    flags: Mapping[str, FlagValue]
    devices: Mapping[str, Any]
    versions: Mapping[str, str]

    @classmethod
    def of(
        cls, program: Program, target: Target, flags: Mapping[str, FlagValue]
    ) -> _Job:
        return cls(
            program,
            target,
            flags_for(target, flags),
            devices_of(target),
            versions_for(target),
        )

    def key(self) -> str:
        return cache.key_of(
            {
                "program": self.program.fingerprint,
                # Source lines are no part of its identity, but of what is shown.
                "module": hashlib.sha256(self.program.module).hexdigest(),
                "devices": self.devices,
                "flags": self.flags,
                "versions": self.versions,
            }
        )

    def write(self, folder: Path) -> None:
        self.program.save(folder / "program.spmd")
        content = {"devices": self.devices, "flags": self.flags}
        (folder / "job.json").write_text(json.dumps(content), encoding="utf-8")


def _run(job: _Job, timeout_s: float, progress: Progress | None) -> Compiled:
    target = job.target

    def tick(elapsed_s: float) -> None:
        if progress is not None:
            progress(target.text, elapsed_s)

    with TemporaryDirectory(prefix="spmd-compile-") as name:
        folder = Path(name)
        job.write(folder)
        code, log = process.run(folder, timeout_s, tick)
        if code is None:
            raise CompileError(
                f"{target.text}: the compiler was stopped after {timeout_s:g} s; give "
                f"it a longer timeout_s, or the program fewer layers",
                kind="timeout",
                target=target,
                words=words.last_words(log),
            )
        result = _result(folder)
        if "memory" not in result:
            raise failed(job.program, target, code, log, result.get("error"))
        return Compiled(
            target=target,
            fingerprint=job.program.fingerprint,
            flags=job.flags,
            hlo=(folder / "hlo").read_bytes(),
            partitioned=_bytes(folder / "partitioned"),
            buffers=_bytes(folder / "buffers"),
            memory=Memory.reported(
                result["memory"], peak_is_whole=target.kind != "cpu"
            ),
            compile_s=result["compile_s"],
            versions={**job.versions, "compiler": result["compiler"]},
            warnings=words.warnings(log),
        )


def _result(folder: Path) -> dict[str, Any]:
    """What the process reported; nothing where it died on the way."""
    try:
        return json.loads((folder / "result.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.exists() else None
