"""Fixes that are flags: those by which a compiler hides more of what moves."""

from __future__ import annotations

from collections.abc import Mapping

from flags import NotInstalledError, options, preset
from profiling._compiling.compiled import FlagValue
from profiling._findings.case import Case
from profiling._findings.finding import Change, Fix
from profiling._tuning.workload import workload

_PRESETS = {"gpu": "gpu-overlap", "tpu": "tpu-overlap"}
_VARIABLES = {"gpu": "XLA_FLAGS", "tpu": "LIBTPU_INIT_ARGS"}
_ESTIMATOR: Mapping[str, FlagValue] = {
    "xla_gpu_enable_analytical_latency_estimator": True
}
"""Better over several hosts, worse in some steps of one: it has to be tried."""


def overlap_fixes(case: Case) -> tuple[Fix, ...]:
    """Sets of flags to try.

    Args:
        case: The step.

    Returns:
        A fix for each set that says something new; none for a CPU, or a dump.
    """
    target = case.schedule.target
    if target is None or target.kind not in _PRESETS:
        return ()
    name = _PRESETS[target.kind]
    try:
        figures = workload(case.program, target)
        own = dict(options(preset(name), workload=figures, backend=target.kind))
    except (NotInstalledError, ValueError):
        own = {}
    sets = [(f"the flags of {name}, sized to this step", own)]
    if target.kind == "gpu":
        words = "let the compiler schedule by its analytical latency estimator"
        sets.append((words, dict(_ESTIMATOR)))
        sets.append((f"{sets[0][0]}, and the estimator", {**own, **_ESTIMATOR}))
    found: dict[tuple[tuple[str, FlagValue], ...], Fix] = {}
    for text, flags in sets:
        new = {n: v for n, v in flags.items() if n not in case.schedule.flags}
        if new:
            change = Change(flags=tuple(new.items()))
            code = f'{_VARIABLES[target.kind]}="{flags_text(new)}"'
            place = "in the environment, before jax or torch_xla is imported"
            found.setdefault(change.flags, Fix(text, code, place, change))
    return tuple(found.values())


def flags_text(flags: Mapping[str, FlagValue]) -> str:
    """Flags as an environment variable takes them.

    Args:
        flags: Values by name.

    Returns:
        Text.

    Example:
        >>> flags_text({"xla_a": True, "xla_b": 7})
        '--xla_a=true --xla_b=7'
    """
    return " ".join(
        f"--{n}={str(v).lower() if isinstance(v, bool) else v}"
        for n, v in flags.items()
    )
