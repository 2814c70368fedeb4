"""A program's counts and bytes by role, as text for people."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from spmd._program.value import ROLES, Value

if TYPE_CHECKING:
    from spmd._program.program import Program

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


def summary(program: Program) -> str:
    """Counts and bytes by role.

    Args:
        program: The program.

    Returns:
        Several lines. Bytes per device count the padding of dims that do not divide.
    """
    mesh = program.mesh
    lines = [
        f"program {program.name!r}, fingerprint {program.fingerprint[:16]}",
        f"{'one device' if mesh is None else f'{mesh!r}, {mesh.size} devices'}; module "
        f"{bytes_text(len(program.module))}",
        f"{'':<22}{'number':>8}{'whole':>12}{'per device':>12}",
    ]
    for title, values in (("input", program.inputs), ("output", program.outputs)):
        lines += _rows(program, title, values)
    num_updates = sum(v.updates is not None for v in program.outputs)
    lines.append(
        f"{num_updates} outputs are next values of inputs, {len(program.donations)} "
        f"reuse their memory; {len(program.constants)} values kept, "
        f"{len(program.annotations)} annotations inside"
    )
    if program.versions:
        lines.append(
            "made by " + ", ".join(f"{k} {v}" for k, v in program.versions.items())
        )
    return "\n".join(lines)


def _rows(program: Program, title: str, values: Sequence[Value]) -> list[str]:
    lines = []
    for role in (*ROLES, "all"):
        found = [v for v in values if role in (v.role, "all")]
        if found:
            whole = sum(v.size_bytes for v in found)
            piece = sum(v.device_bytes(program.mesh) for v in found)
            lines.append(
                f"{title + ' ' + role:<22}{len(found):>8}{bytes_text(whole):>12}"
                f"{bytes_text(piece):>12}"
            )
    return lines


def bytes_text(count: int) -> str:
    """A number of bytes for people.

    Args:
        count: Number of bytes.

    Returns:
        Three digits or so, and a unit.

    Example:
        >>> bytes_text(1536), bytes_text(70_000_000_000)
        ('1.5 KiB', '65.2 GiB')
    """
    size, unit = float(count), 0
    while size >= 1000 and unit < len(_UNITS) - 1:
        size, unit = size / 1024, unit + 1
    return f"{count} B" if unit == 0 else f"{size:.3g} {_UNITS[unit]}"
