"""`init`: switch SPMD on in time, or say what used a device too early.

torch_xla decides once, at the first use of a device, whether all devices act as one.
Switching later leaves tensors on a device that no longer exists, and the process dies
in native code. So this module refuses in Python and names the first early use.

Autograd decides once too: its first backward, on any device, starts a thread for each
device there is. If the XLA runtime is not up by then, every later backward on it fails
with an internal assertion. So `init` brings the runtime up and tries one backward.
"""

from __future__ import annotations

import gc
import os
import sys
from typing import Any, Literal

Runtime = Literal["torch_xla", "jax"]
MAX_CPU_DEVICES = 127
"""With more local devices torch's autograd engine fails (one thread a device)."""

_runtime: Runtime | None = None
_autograd_works = False


def runtime() -> Runtime:
    """What executes: ``torch_xla``, or ``jax`` if `init` chose it."""
    return _runtime or "torch_xla"


def device_types() -> tuple[str, ...]:
    """Types of torch devices whose tensors can be split here.

    With jax tensors wait on the CPU: a compiled step takes their pieces from there.
    """
    return ("xla", "meta", "cpu") if runtime() == "jax" else ("xla", "meta")


def init(
    *,
    cpu_devices: int | None = None,
    runtime: Literal["torch_xla", "jax", "auto"] | None = None,
) -> None:
    """Switch SPMD mode on; call before anything is put on the XLA device.

    The first mesh or annotation calls this too, so a script needs it only to choose
    the runtime or the number of CPU devices, or to fail early.

    Args:
        cpu_devices: Run on this many virtual CPU devices. Default: what the
            environment says (``CPU_NUM_DEVICES``, or jax's own settings).
        runtime: What executes. ``"torch_xla"`` (default): lazily or compiled.
            ``"jax"``: steps compiled by `spmd.compile_step` run on jax's devices, GPUs
            included; models and batches stay on the CPU, and a mesh counts jax's
            devices over all processes. ``"auto"``: jax where it sees a GPU or TPU.

    Raises:
        TypeError: `cpu_devices` is not an int.
        ValueError: `cpu_devices` is not in 1..127, or an unknown runtime.
        RuntimeError: A device was used before this call, a backward ran on the CPU
            before it, or the runtime is another one already, or already runs with
            another number of devices.
    """
    if _choose_runtime(runtime, cpu_devices) == "jax":
        from spmd._pjrt import client as pjrt
        from spmd._pjrt import processes as pjrt_processes

        pjrt.check_version()
        if cpu_devices is not None:
            _check_cpu_count(cpu_devices)
            pjrt_processes.choose_cpu(cpu_devices)
        # torch_xla only traces: on an accelerator it would lock jax out of it.
        os.environ["PJRT_DEVICE"] = "CPU"
        cpu_devices = None
    if cpu_devices is not None:
        _choose_cpu(cpu_devices)
    elif os.environ.get("PJRT_DEVICE") == "CPU":
        _check_cpu_count(_env_cpu_devices())
    from spmd._torch_xla import seam

    seam.check_version()
    if not seam.spmd_is_on():
        if seam.device_was_used():
            raise RuntimeError(
                "SPMD mode was switched on too late: the XLA device was already used "
                f"by {_first_early_use()}. Call spmd.init() before that line, best "
                "right after the imports"
            )
        seam.switch_spmd_on()
    _check_running_count(cpu_devices)
    _check_autograd()
    from spmd._remat import checkpoint

    checkpoint.install()


def num_devices() -> int:
    """Devices over all processes; switches SPMD mode on.

    Returns:
        What ``-1`` in a mesh fills up to.

    Raises:
        RuntimeError: See `init`.
    """
    init()
    if runtime() == "jax":
        from spmd._pjrt import processes as pjrt_processes

        return pjrt_processes.num_devices()
    from spmd._torch_xla import seam

    return seam.num_devices()


def _choose_runtime(wanted: str | None, cpu_devices: int | None) -> Runtime:
    """Settle on a runtime, once for the process."""
    global _runtime
    if wanted not in (None, "torch_xla", "jax", "auto"):
        raise ValueError(
            f"init: runtime={wanted!r}; 'torch_xla', 'jax' or 'auto' is needed"
        )
    if wanted is None:
        return runtime()
    if wanted == "auto":
        from spmd._pjrt import processes as pjrt_processes

        sees = cpu_devices is None and pjrt_processes.sees_accelerator()
        wanted = "jax" if sees else "torch_xla"
    chosen: Runtime = "jax" if wanted == "jax" else "torch_xla"
    if _runtime not in (None, chosen):
        raise RuntimeError(
            f"init: runtime={chosen!r}, but this process already runs on "
            f"{_runtime!r}; choose it in the first call of spmd.init"
        )
    _runtime = chosen
    return chosen


def _choose_cpu(count: int) -> None:
    _check_cpu_count(count)
    if "torch_xla" in sys.modules:
        from spmd._torch_xla import seam

        if seam.runtime_is_up():
            return
    os.environ["PJRT_DEVICE"] = "CPU"
    os.environ["CPU_NUM_DEVICES"] = str(count)


def _env_cpu_devices() -> int:
    text = os.environ.get("CPU_NUM_DEVICES", "1")
    if not text.isdigit():
        raise ValueError(f"CPU_NUM_DEVICES={text!r}; a number in 1..{MAX_CPU_DEVICES}")
    return int(text)


def _check_cpu_count(count: int) -> None:
    if isinstance(count, bool) or not isinstance(count, int):
        raise TypeError(f"init: cpu_devices={count!r}; an int is needed")
    if not 1 <= count <= MAX_CPU_DEVICES:
        raise ValueError(
            f"init: {count} CPU devices; 1..{MAX_CPU_DEVICES} work in one process. A "
            f"mesh may be larger than the machine: Mesh({{'fsdp': {count}}}) for "
            f"tracing"
        )


def _check_running_count(cpu_devices: int | None) -> None:
    from spmd._torch_xla import seam

    have = seam.num_devices()
    if cpu_devices is not None and have != cpu_devices:
        raise RuntimeError(
            f"init: cpu_devices={cpu_devices}, but the runtime already runs with "
            f"{have} devices; call spmd.init(cpu_devices={cpu_devices}) first in the "
            f"process"
        )


def _check_autograd() -> None:
    """Refuse a process whose autograd started without the devices; asked once."""
    global _autograd_works
    from spmd._torch_xla import seam

    _autograd_works = _autograd_works or seam.autograd_works()
    if not _autograd_works:
        raise RuntimeError(
            "a backward ran on the CPU before the XLA runtime was up, and from then on "
            "torch's autograd knows the devices of that moment only. Call spmd.init() "
            "before the first backward, best right after the imports"
        )


def _first_early_use() -> str:
    """What put something on the device, as well as can be told afterwards."""
    import torch

    modules, tensors = [], []
    for thing in _objects():
        kind = type(thing)
        if issubclass(kind, torch.nn.Module):
            modules.append(thing)
        elif issubclass(kind, torch.Tensor) and thing.device.type == "xla":
            tensors.append(thing)
    for module in modules:
        own = vars(module).get("_parameters", {})  # none in one that is being built
        for name, parameter in own.items():
            if parameter is not None and parameter.device.type == "xla":
                shape, kind = list(parameter.shape), type(module).__name__
                return f"a model (parameter {name!r} {shape} of {kind})"
    if tensors:
        dtype = str(tensors[0].dtype).removeprefix("torch.")
        return f"a tensor ({dtype}{list(tensors[0].shape)})"
    from spmd._torch_xla import seam

    if seam.seed_was_set():
        return "a random seed (torch_xla.manual_seed or xm.set_rng_state)"
    return "torch_xla.device()"


def _objects() -> list[Any]:
    """What Python's garbage collector knows, oldest first.

    It keeps generations, and inside one the order of creation.
    """
    return [o for generation in (2, 1, 0) for o in gc.get_objects(generation)]
