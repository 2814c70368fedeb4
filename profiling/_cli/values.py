"""Values of the command line's options, read and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from flags import NotInstalledError, Preset, options, preset
from profiling._compiling.compiled import FlagValue
from profiling._targets.target import Target

if TYPE_CHECKING:
    from spmd._program.program import Program

_MESH = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(-1|[1-9]\d*)\s*")


def targets_from(texts: Sequence[str], file: Path | None) -> tuple[Target, ...]:
    """Read ``--target``.

    Args:
        texts: As they were given.
        file: YAML of further chips.

    Returns:
        The targets, each once.

    Raises:
        click.UsageError: A text that is no target, or a file that is none.
    """
    try:
        return tuple(Target.parse(t, file=file) for t in dict.fromkeys(texts))
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(str(error)) from error


def flags_from(texts: Sequence[str]) -> dict[str, FlagValue]:
    """Read ``--flag``.

    Args:
        texts: ``name=value``; a name alone means true.

    Returns:
        Values by name.

    Raises:
        click.UsageError: A flag without a name, or given twice.

    Example:
        >>> flags_from(["xla_gpu_autotune_level=0", "--xla_cpu_enable_fast_math"])
        {'xla_gpu_autotune_level': '0', 'xla_cpu_enable_fast_math': True}
    """
    flags: dict[str, FlagValue] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        name = name.strip().removeprefix("--")
        if not re.fullmatch(r"\w+", name):
            raise click.UsageError(
                f"--flag {text!r}: write name=value, such as xla_gpu_autotune_level=0"
            )
        if name in flags:
            raise click.UsageError(f"--flag {text!r}: {name} is given twice")
        flags[name] = value if equals else True
    return flags


def preset_from(text: str) -> Preset:
    """Read ``--preset``.

    Args:
        text: A preset's name, or a YAML file.

    Returns:
        The preset.

    Raises:
        click.UsageError: There is no such preset or file, or the file holds none.

    Example:
        >>> preset_from("gpu-overlap").backend
        'gpu'
    """
    try:
        return preset(text)
    except OSError as error:
        raise click.UsageError(f"--preset {text}: {error.strerror}") from error
    except ValueError as error:
        raise click.UsageError(f"--preset: {error}") from error


def with_preset(
    entry: Preset, program: Program, target: Target, given: Mapping[str, FlagValue]
) -> tuple[dict[str, FlagValue], tuple[str, ...]]:
    """A preset's flags for one target, under those of ``--flag``.

    Args:
        entry: The preset.
        program: What values are computed from.
        target: What it is compiled for.
        given: Flags of ``--flag``, which stay as they are.

    Returns:
        All flags, and a line for each that the preset would set otherwise.

    Raises:
        click.UsageError: A preset for something else, a figure of the step that is
            missing, or a flag that the installed compiler has no option for.
    """
    from profiling._tuning.workload import workload

    if entry.backend not in {None, target.kind}:
        raise click.UsageError(
            f"--preset {entry.name} is for {entry.backend}, --target {target.text} is "
            f"a {target.kind}; inspect them one by one"
        )
    try:
        figures = workload(program, target)
        found = dict(options(entry, workload=figures, backend=target.kind))
    except (NotInstalledError, ValueError) as error:
        raise click.UsageError(f"--preset {entry.name}: {error}") from error
    messages = tuple(
        f"{name} stays at {_value_text(given[name])}, as --flag has it; preset "
        f"{entry.name} has {_value_text(value)}"
        for name, value in found.items()
        if name in given and _value_text(given[name]) != _value_text(value)
    )
    return {**found, **given}, messages


def _value_text(value: FlagValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def mesh_from(text: str | None) -> dict[str, int] | None:
    """Read ``--mesh``.

    Args:
        text: ``fsdp=4,tensor=2``; one size may be -1.

    Returns:
        Sizes by axis; None where it was not given.

    Raises:
        click.UsageError: Text that is none.

    Example:
        >>> mesh_from("fsdp=4,tensor=2")
        {'fsdp': 4, 'tensor': 2}
    """
    if text is None:
        return None
    axes: dict[str, int] = {}
    for part in text.split(","):
        match = _MESH.fullmatch(part)
        if match is None or match[1] in axes:
            what = "is given twice" if match else "is no axis with a size"
            raise click.UsageError(
                f"--mesh {text!r}: {part.strip()!r} {what}; write the axes outermost "
                f"first, such as fsdp=4,tensor=2"
            )
        axes[match[1]] = int(match[2])
    return axes
