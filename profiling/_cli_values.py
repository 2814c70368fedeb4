"""Values of the command line's options, read and checked."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import click

from profiling._compiled import FlagValue
from profiling._target import Target

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
