"""Whether a compiler takes a value, and what it means."""

from __future__ import annotations

import re

from flags._flag import INTEGERS, Channel, Flag, FlagValue

_TRUE = {"true", "1"}
_FALSE = {"false", "0"}
# absl, which reads LIBTPU_INIT_ARGS, takes these besides.
_TRUE_TPU = _TRUE | {"t", "yes", "y"}
_FALSE_TPU = _FALSE | {"f", "no", "n"}
_TRISTATE = {"auto", "true", "enabled", "false", "disabled"}
_DECIMAL = re.compile(r"[-+]?[0-9]+")
_HEX = re.compile(r"[-+]?0[xX][0-9a-fA-F]+")
_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)([kKmMgG])i?[bB]?")
_DETECTION = ("none", "warning", "fail")
_MEMORY = ("private", "symmetric", "peer")
WORDS = {
    "xla_detect_unstable_reductions": _DETECTION,
    "xla_detect_unstable_reductions_post_optimizations": _DETECTION,
    "xla_gpu_detect_inf": _DETECTION,
    "xla_gpu_detect_nan": _DETECTION,
    "xla_gpu_all_gather_mode": _MEMORY,
    "xla_gpu_collective_permute_mode": _MEMORY,
    "xla_gpu_ragged_all_to_all_mode": _MEMORY,
}
"""Flags that take words in XLA_FLAGS which are not the names of their values."""

ANY_CASE = {
    "xla_cpu_experimental_xnn_graph_fusion_mode",
    "xla_cpu_opt_preset",
    "xla_gpu_enable_while_loop_unrolling",
}
"""Flags that take their value's name in any case in XLA_FLAGS; others do not."""

_BYTES = {"k": 10, "m": 20, "g": 30}


def problem(flag: Flag, value: str | None, channel: Channel) -> str | None:
    """What is wrong with a value.

    Args:
        flag: The flag.
        value: As it is written; None for a bare ``--flag``.
        channel: Where it is written.

    Returns:
        What is allowed; None where nothing is wrong.

    Example:
        >>> threshold = Flag("xla_x_bytes", "int64", ("XLA_FLAGS",))
        >>> problem(threshold, "1GB", "XLA_FLAGS")
        'needs a whole number (1073741824)'
    """
    if flag.type in {"bool", "tristate"}:
        return _bool_problem(flag, value, channel)
    if value is None:
        return None if flag.type == "unknown" else f"needs a value: --{flag.name}=..."
    if flag.type in INTEGERS:
        return _integer_problem(flag.type, value, channel)
    if flag.type == "float":
        try:
            float(value)
        except ValueError:
            return "needs a number"
    if flag.type == "enum":
        return _enum_problem(flag, value, channel)
    return None


def _bool_problem(flag: Flag, value: str | None, channel: Channel) -> str | None:
    if value is None:
        return None
    word = value.lower()
    if flag.type == "tristate":
        return None if word in _TRISTATE else "needs true, false or auto"
    if channel == "options":
        allowed = {"true", "false"}
    else:
        tpu = channel == "LIBTPU_INIT_ARGS"
        allowed = _TRUE_TPU | _FALSE_TPU if tpu else _TRUE | _FALSE
    return None if word in allowed else "needs true or false"


def _integer_problem(kind: str, value: str, channel: Channel) -> str | None:
    lowest, highest = INTEGERS[kind]
    tpu = channel == "LIBTPU_INIT_ARGS"
    if _DECIMAL.fullmatch(value) or (tpu and _HEX.fullmatch(value)):
        if lowest <= int(value, 0 if "x" in value.lower() else 10) <= highest:
            return None
        return f"needs a whole number from {lowest} to {highest}"
    meant = meant_number(value)
    return f"needs a whole number{'' if meant is None else f' ({meant})'}"


def meant_number(value: str) -> int | None:
    """The number of bytes that a text such as ``64MB`` stands for.

    Args:
        value: As it is written.

    Returns:
        None for a text that is no size.

    Example:
        >>> meant_number("64MB"), meant_number("two")
        (67108864, None)
    """
    found = _SIZE.fullmatch(value)
    if found is None:
        return None
    return int(float(found[1]) * 2 ** _BYTES[found[2].lower()])


def _enum_problem(flag: Flag, value: str, channel: Channel) -> str | None:
    if channel == "LIBTPU_INIT_ARGS" or not flag.choices:
        return None  # libtpu has short names of its own
    if flag.repeated and not value:
        return None
    words = value.split(",") if flag.repeated else [value]
    if channel == "XLA_FLAGS" and flag.name in ANY_CASE:
        words = [value.upper()]
    if channel == "XLA_FLAGS" and flag.name in WORDS:
        known = WORDS[flag.name]
        wrong = value not in known
    elif channel == "XLA_FLAGS" and flag.repeated:
        # In any case, without the common prefix; "+FUSION,-CUBLAS" changes a list.
        known = flag.choices
        ends = [choice.lower() for choice in known]
        plain = [word.strip().lstrip("+-").lower() for word in words]
        wrong = not all(any(end.endswith(w) for end in ends) for w in plain)
    else:
        known = flag.choices
        wrong = not all(
            w in known or (channel == "options" and w.isdigit()) for w in words
        )
    kind = "any" if flag.repeated else "one"
    return f"needs {kind} of {', '.join(known)}" if wrong else None


def same(flag: Flag, value: str | None, default: str) -> bool:
    """Whether a value is the default.

    Args:
        flag: The flag.
        value: As it is written; None for a bare ``--flag``.
        default: As the library writes it.

    Returns:
        True if setting the flag changes nothing.

    Example:
        >>> same(Flag("xla_x", "bool", ()), None, "true")
        True
    """
    return _meaning(flag, "true" if value is None else value) == _meaning(flag, default)


def _meaning(flag: Flag, value: str) -> object:
    word = value.strip().lower()
    if word in _TRUE_TPU - {"1"} or (flag.type == "bool" and word == "1"):
        return True
    if word in _FALSE_TPU - {"0"} or (flag.type == "bool" and word == "0"):
        return False
    if flag.type == "tristate" and word in {"enabled", "disabled"}:
        return word == "enabled"
    if flag.repeated:
        return tuple(sorted(word.split(",")))
    try:
        return float(word) if flag.type == "float" else int(word, 0)
    except ValueError:
        return word


def as_option(flag: Flag, value: FlagValue) -> FlagValue:
    """A value as a compile option takes it.

    Args:
        flag: The flag.
        value: A value, or the text of one.

    Returns:
        A bool for a bool, a whole number for an integer, else what was given.

    Example:
        >>> as_option(Flag("xla_x", "bool", ("options",)), "true")
        True
    """
    if not isinstance(value, str):
        return value
    if flag.type == "bool" and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    if flag.type in INTEGERS and _DECIMAL.fullmatch(value):
        return int(value)
    return value
