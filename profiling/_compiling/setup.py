"""What goes into a compile for a target: devices, flags, and versions."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from types import MappingProxyType
from typing import Any

from profiling._compiling.compiled import CompileError, FlagValue
from profiling._targets.target import Target

_ALWAYS = ("jax", "jaxlib")
_PACKAGES = {
    "cpu": (),
    "gpu": ("jax-cuda12-plugin", "jax-cuda12-pjrt", "nvidia-cuda-nvcc-cu12"),
    "tpu": ("libtpu",),
}

# torch_xla 2.9 `_setup_libtpu_flags` sets these, but only where a chip is present.
TPU_DEFAULTS: Mapping[str, FlagValue] = MappingProxyType(
    {
        "xla_tpu_use_enhanced_launch_barrier": False,
        "xla_latency_hiding_scheduler_rerun": 1,
        "xla_tpu_prefer_async_allgather_to_allreduce": True,
        "xla_tpu_enable_flash_attention": False,
    }
)
V5_DEFAULTS: Mapping[str, FlagValue] = MappingProxyType(
    {
        "xla_enable_async_all_gather": True,
        "xla_enable_async_collective_permute": True,
    }
)


def devices_of(target: Target) -> dict[str, Any]:
    """How to get a target's devices from its compiler.

    Args:
        target: The target.

    Returns:
        What the compiling process reads, JSON.

    Example:
        >>> devices_of(Target.parse("v5e:16x16*2"))["options"]
        {'wrap': [True, True, False], 'num_slices': 2}
    """
    if target.kind == "cpu":
        return {"kind": "cpu", "number": target.num_devices}
    if target.kind == "gpu":
        gpus = target.shape[1]
        hosts = target.near_devices // gpus
        topology = f"{target.num_devices // target.near_devices}x{hosts}x{gpus}"
        description = target.chip.description
        return {"kind": "gpu", "topology": topology, "description": description}
    options: dict[str, Any] = {}
    if any(target.wraps):
        options["wrap"] = [*target.wraps, False][:3]
    if target.num_slices > 1:
        options["num_slices"] = target.num_slices
    if all(size == 1 for size in target.shape):
        options["chips_per_host_bounds"] = [1, 1, 1]
    if target.chip.chip_config:
        options["chip_config_name"] = target.chip.chip_config
    name = f"{target.chip.topology}:{'x'.join(map(str, target.shape))}"
    twist = "_twisted" if target.twisted else ""
    return {"kind": "tpu", "name": name + twist, "options": options}


def flags_for(target: Target, given: Mapping[str, FlagValue]) -> dict[str, FlagValue]:
    """Flags to compile with.

    Args:
        target: The target.
        given: By name, with or without leading dashes; ``"true"`` means True, as on a
            command line.

    Returns:
        The given flags, and for TPUs what torch_xla sets where a chip is present.

    Raises:
        TypeError: A value of another type.
        ValueError: A flag that is reserved, or given twice.

    Example:
        >>> flags_for(Target.parse("h100"), {"--xla_gpu_autotune_level": "0"})
        {'xla_gpu_autotune_level': '0'}
    """
    flags: dict[str, FlagValue] = {}
    for name, value in given.items():
        plain = name.removeprefix("--")
        if plain.startswith("xla_dump_"):
            raise ValueError(
                f"flag {name}: compile uses the xla_dump_ flags itself; what they give "
                f"is in the result's hlo, partitioned and buffers"
            )
        if plain in flags:
            raise ValueError(f"flag {name} is given twice")
        if not isinstance(value, bool | int | float | str):
            raise TypeError(f"flag {name}={value!r}: a bool, number or text is needed")
        # A compile option of GPU and CPU takes a bool as a bool only.
        words = {"true": True, "false": False}
        flags[plain] = words.get(value, value) if isinstance(value, str) else value
    if target.kind == "tpu":
        v5 = target.chip.topology.startswith("v5")
        flags = {**TPU_DEFAULTS, **(V5_DEFAULTS if v5 else {}), **flags}
    return flags


def versions_for(target: Target) -> dict[str, str]:
    """Versions of the packages that compile for a target.

    Args:
        target: The target.

    Returns:
        By package.

    Raises:
        CompileError: A package is not installed; the message has the command.
    """
    found = {}
    for package in (*_ALWAYS, *_PACKAGES[target.kind]):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            if package == "libtpu" and "TPU_LIBRARY_PATH" in os.environ:
                found[package] = os.environ["TPU_LIBRARY_PATH"]
                continue
            extra = "" if package in _ALWAYS else f"[{target.kind}]"
            raise CompileError(
                f"{target.text}: its compiler needs {package}, which is not installed; "
                f"run pip install 'xla-spmd{extra}' (no {target.kind.upper()} is "
                f"needed)",
                kind="missing extra",
                target=target,
            ) from None
    return found
