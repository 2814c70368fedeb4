"""Turn what went wrong in a compile into a `CompileError` that says what to change."""

from __future__ import annotations

from collections.abc import Mapping

from profiling._compiling import words as compiler_words
from profiling._compiling.compiled import Compiled, CompileError
from profiling._memory.temporaries import largest_temporaries
from profiling._targets.target import Target
from spmd._program.program import Program
from spmd._program.summary import bytes_text

_NUM_LARGEST = 5
# XLA's GPU compiler writes products as Triton kernels, and fails on some whose operand
# it transposes in them; it has others for the same products.
_NO_TILES = "Couldn't find output tile sizes"
_WITHOUT_TRITON = (
    "; XLA found no tiles for a product that it wrote as a Triton kernel: compile with "
    "flags={'xla_gpu_enable_triton_gemm': False}, and run with "
    "XLA_FLAGS=--xla_gpu_enable_triton_gemm=false"
)


def holders(
    program: Program, compiled: Compiled | None, words: str = ""
) -> dict[str, int]:
    """What holds the memory of a device.

    Args:
        program: What was compiled.
        compiled: None where the compiler gave nothing: inputs are known then, and what
            its words say of temporaries.
        words: What the compiler said.

    Returns:
        Bytes of one device: inputs by role, outputs with memory of their own and
        temporaries, largest first; then the largest inputs and temporaries by name.
        Temporaries may share memory.
    """
    roles: dict[str, int] = {}
    named: dict[str, int] = {}
    for value in program.inputs:
        size = value.device_bytes(program.mesh)
        role = f"inputs of role {value.role}"
        roles[role] = roles.get(role, 0) + size
        named[f"input {value.name}"] = size
    if compiled is not None:
        memory = compiled.memory
        roles["temporaries"] = memory.temp_bytes
        roles["outputs of their own"] = memory.output_bytes - memory.alias_bytes
        largest = largest_temporaries(compiled.buffers or b"", _NUM_LARGEST)
        named |= {f"temporary {name}": size for name, size in largest.items()}
    elif (said := compiler_words.temporary_bytes(words)) is not None:
        roles["temporaries"] = said
    return {**_largest(roles), **dict(list(_largest(named).items())[:_NUM_LARGEST])}


def _largest(sizes: Mapping[str, int]) -> dict[str, int]:
    kept = {name: size for name, size in sizes.items() if size}
    return dict(sorted(kept.items(), key=lambda item: -item[1]))


def too_big(program: Program, compiled: Compiled) -> CompileError:
    """The error for a program that compiles, but for which a device has too little.

    Args:
        program: What was compiled.
        compiled: What the compiler made.

    Returns:
        An error of kind `memory`.
    """
    held = holders(program, compiled)
    capacity = compiled.target.hbm_bytes or 0
    return CompileError(
        f"{compiled.target.text}: out of memory by {bytes_text(compiled.over_bytes)} "
        f"({compiled.over_bytes} bytes): program {program.name!r} needs "
        f"{bytes_text(compiled.memory.total_bytes)} on each device, which has "
        f"{bytes_text(capacity)}; {_held_text(held)}",
        kind="memory",
        target=compiled.target,
        words="\n".join(compiled.warnings),
        over_bytes=compiled.over_bytes,
        holders=held,
        compiled=compiled,
    )


def failed(
    program: Program, target: Target, code: int, log: str, said: str | None
) -> CompileError:
    """The error for a compile without a result.

    Args:
        program: What was to be compiled.
        target: For what.
        code: Exit status of the process.
        log: What it wrote.
        said: The error that it reported before it ended; None where it could not.

    Returns:
        An error of the kind that its words tell.
    """
    words = said or compiler_words.last_words(log)
    kind = compiler_words.kind_of(words) or ("other" if said else "crash")
    if kind == "memory":
        return _refused(program, target, words)
    what = {
        "flag": "its compiler refused a flag",
        "lock": "libtpu is locked by another process; wait until that one ends",
        "other": "its compiler failed",
    }.get(kind, f"its compiler crashed ({compiler_words.how_it_ended(code)})")
    advice = _WITHOUT_TRITON if _NO_TILES in words else ""
    return CompileError(
        f"{target.text}: {what}{advice}; its last words:\n{words or '(none)'}",
        kind=kind,
        target=target,
        words=words,
    )


def _refused(program: Program, target: Target, words: str) -> CompileError:
    missing = compiler_words.missing_bytes(words)
    amount = "" if missing is None else f" by {bytes_text(missing)}"
    held = holders(program, None, words)
    return CompileError(
        f"{target.text}: out of memory{amount}: program {program.name!r} is too big "
        f"for a device; {_held_text(held)}; its compiler's words:\n{words}",
        kind="memory",
        target=target,
        words=words,
        over_bytes=missing,
        holders=held,
    )


def _held_text(held: Mapping[str, int]) -> str:
    parts = [f"{name} {bytes_text(size)}" for name, size in held.items()]
    return f"held by {', '.join(parts)}; shard more of it, or take more devices"
