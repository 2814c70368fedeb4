"""`Devices`: what runs the steps, asked without starting anything."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from profiling._metrics.values import is_jax, is_xla
from spmd._host_spans import COMPILE, counts

_JIT_COMPILED = "/jax/core/compile/backend_compile_duration"
_STATM = "/proc/self/statm"
_num_jits = 0
_is_listening = False


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """Memory of the fullest device of this process.

    Attributes:
        peak_bytes: Most that was in use since the process began.
        limit_bytes: What there is; None if the device does not say.
    """

    peak_bytes: int
    limit_bytes: int | None


@dataclass(frozen=True, slots=True)
class Devices:
    """Where a loop runs.

    Attributes:
        runtime: ``torch_xla``, ``jax``, or empty for neither.
        num: Devices over all processes.
        process: Index of this process.
        num_processes: Processes.
        local: jax's devices of this process.
    """

    runtime: str = ""
    num: int = 1
    process: int = 0
    num_processes: int = 1
    local: tuple[Any, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, values: Iterable[Any]) -> Devices:
        """Find out from the values of a step, or else from what spmd runs on.

        Args:
            values: From `keep`; nothing is known from floats.

        Returns:
            One device of one process where nothing tells.
        """
        for value in values:
            if is_xla(value):
                return cls._torch_xla()
            if is_jax(value):
                sharding = getattr(value, "array", value).sharding
                return cls._jax(len(sharding.device_set), sharding.addressable_devices)
        return cls._of_spmd()

    @classmethod
    def _of_spmd(cls) -> Devices:
        runtime = sys.modules.get("spmd._runtime")
        if runtime is not None and runtime.runtime() == "jax":
            import jax

            return cls._jax(jax.device_count(), jax.local_devices())
        torch_xla = sys.modules.get("spmd._torch_xla.seam")
        if torch_xla is not None and torch_xla.runtime_is_up():
            return cls._torch_xla()
        return cls()

    @classmethod
    def _torch_xla(cls) -> Devices:
        from spmd._torch_xla import seam

        return cls(
            "torch_xla",
            seam.num_devices() if seam.spmd_is_on() else 1,
            seam.process_index(),
            seam.num_processes(),
        )

    @classmethod
    def _jax(cls, num: int, local: Iterable[Any]) -> Devices:
        import jax

        return cls("jax", num, jax.process_index(), jax.process_count(), tuple(local))

    def memory(self) -> DeviceMemory | None:
        """Ask the devices.

        Returns:
            None where they do not say: CPU devices, and torch_xla's under SPMD.
        """
        found = [stats for d in self.local if (stats := d.memory_stats())]
        peaks = [s.get("peak_bytes_in_use", s.get("bytes_in_use")) for s in found]
        limits = [s["bytes_limit"] for s in found if s.get("bytes_limit")]
        known = [peak for peak in peaks if peak is not None]
        if not known:
            return None
        return DeviceMemory(max(known), min(limits) if limits else None)

    def num_compiles(self) -> int | None:
        """Programs that this process has compiled.

        Returns:
            torch_xla: all of them. jax: those of spmd, and since `listen` those of
            `jax.jit`. None where neither runs.
        """
        if self.runtime == "torch_xla":
            import torch_xla.debug.metrics as metrics

            return int(metrics.counter_value("UncachedCompile") or 0)
        if self.runtime == "jax":
            return counts().get(COMPILE, 0) + _num_jits
        return None


def listen() -> None:
    """Count from now on what `jax.jit` compiles, if jax is there."""
    global _is_listening
    jax = sys.modules.get("jax")
    if jax is not None and not _is_listening:
        _is_listening = True
        jax.monitoring.register_event_duration_secs_listener(_on_event)


def _on_event(event: str, duration: float, **_: Any) -> None:
    global _num_jits
    if event == _JIT_COMPILED:
        _num_jits += 1


def host_memory() -> int | None:
    """Resident memory of this process.

    Returns:
        Bytes; None where Linux's ``/proc`` is not.
    """
    try:
        file = os.open(_STATM, os.O_RDONLY)  # a Path costs five times that
        try:
            pages = os.read(file, 256).split()[1]
        finally:
            os.close(file)
        return int(pages) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return None
