"""What a compiler says before it ends: its warnings, its last words, what they mean."""

from __future__ import annotations

import re
import signal

from profiling._compiling.compiled import ErrorKind

# glog: severity, month and day, time, thread, file:line] text
_LOGGED = re.compile(r"^([IWEF])(\d{4}) [\d:.]+ +\d+ ([\w./-]+:\d+)\] (.*)")
# Said of every compile without a device, and of nothing that anybody can change.
_NOISE = (
    "GSPMD sharding propagation is going to be deprecated",
    "unexpected worker hostname",
    "Unable to register cu",
    "Failed to find host bounds for accelerator type",
    "could not determine TPU",
    "Logging before InitGoogle",
    "CUDA initialization",
    "cuda_platform.cc",
    "RAW: ",
    "The log function has NOT been set",
    "Collective matmul V1 is enabled",
    # One of torch_xla's defaults that libtpu no longer has.
    "field with name: xla_tpu_use_enhanced_launch_barrier",
)
_LOCK = ("libtpu multi-process lockfile", "libtpu_lockfile")
_FLAG = (
    "No such compile option",
    "While setting option",
    "Unknown flag",
    "Unknown command line flag",
)
_SIZE = r"([\d.]+)([KMGTP]?)(?:i?B)?\b"
_NEED = re.compile(rf"Used {_SIZE} of {_SIZE} \w*|\({_SIZE}\) exceeds[^(]*\({_SIZE}\)")
_OVER = re.compile(rf"[Ee]xceeded \w+ capacity by {_SIZE}")
_TEMPORARIES = re.compile(rf"HLO temporaries \({_SIZE}\)")
_MOST_LINES = 30


def warnings(stderr: str) -> tuple[str, ...]:
    """What a compiler warned of.

    Args:
        stderr: All that its process wrote.

    Returns:
        Each warning once, without time and place of the source.

    Example:
        >>> warnings("W1129 15:37:00.6 7601 spmd_partitioner.cc:1] [SPMD] Involuntary")
        ('[SPMD] Involuntary',)
    """
    found: dict[str, None] = {}
    for line in stderr.splitlines():
        logged = _LOGGED.match(line)
        if logged and logged[1] in "WE" and not _is_noise(line):
            found[logged[4].strip()] = None
    return tuple(found)


def last_words(stderr: str) -> str:
    """The end of what a process wrote before it died.

    Args:
        stderr: All that it wrote.

    Returns:
        Fatal messages where there are any, else the last lines that say something.
    """
    lines = [line for line in stderr.splitlines() if line.strip()]
    fatal = [m[4] for m in map(_LOGGED.match, lines) if m and m[1] == "F"]
    if fatal:
        return "\n".join(dict.fromkeys(fatal))
    kept = [line for line in lines if not _is_noise(line)]
    return "\n".join(kept[-_MOST_LINES:])


def kind_of(words: str) -> ErrorKind | None:
    """What a compiler's message is about.

    Args:
        words: The message.

    Returns:
        None where that is not known.
    """
    if any(text in words for text in _LOCK):
        return "lock"
    if any(text in words for text in _FLAG):
        return "flag"
    if "RESOURCE_EXHAUSTED" in words:
        return "memory"
    return None


def how_it_ended(code: int) -> str:
    """How a process without a result ended.

    Args:
        code: Its exit status, below zero for a signal.

    Returns:
        Such as ``killed by SIGKILL``.
    """
    if code >= 0:
        return f"ended with exit status {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = ", as the system does when memory runs out" if name == "SIGKILL" else ""
    return f"killed by {name}{hint}"


def missing_bytes(words: str) -> int | None:
    """How much memory a compiler says is missing.

    Args:
        words: Its message.

    Returns:
        Bytes, as exact as the compiler wrote them; None where it does not say.

    Example:
        >>> missing_bytes(
        ...     "temporaries (20.00G) exceeds available HBM (15.75G)."
        ... ) / 2**30
        4.25
    """
    over = _OVER.search(words)
    if over:
        return _bytes(over[1], over[2])
    need = _NEED.search(words)
    if not need:
        return None
    used, used_unit, limit, limit_unit = (g for g in need.groups() if g is not None)
    return _bytes(used, used_unit) - _bytes(limit, limit_unit)


def temporary_bytes(words: str) -> int | None:
    """How much memory a compiler says temporaries need.

    Args:
        words: Its message.

    Returns:
        Bytes, as exact as the compiler wrote them; None where it does not say.
    """
    said = _TEMPORARIES.search(words)
    return None if said is None else _bytes(said[1], said[2])


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * 1024 ** ("KMGTP".index(unit) + 1 if unit else 0))


def _is_noise(line: str) -> bool:
    return any(text in line for text in _NOISE)
