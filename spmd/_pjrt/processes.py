"""jax's devices and processes: how many, whose, and telling each other something.

With `client`, all that touches jax's internals; written against jax 0.10.
"""

from __future__ import annotations

from typing import Any

import jax
from jax._src import distributed, xla_bridge


def num_devices() -> int:
    """Devices over all processes."""
    return jax.device_count()


def processes() -> tuple[tuple[int, ...], ...]:
    """Partitions that each process feeds, in the order of `devices`."""
    owners = [device.process_index for device in jax.devices()]
    return tuple(
        tuple(i for i, owner in enumerate(owners) if owner == process)
        for process in range(jax.process_count())
    )


def process_index() -> int:
    """Index of this process in `processes`."""
    return jax.process_index()


def sees_accelerator() -> bool:
    """Whether jax's default devices are GPUs or TPUs."""
    return jax.default_backend() != "cpu"


def choose_cpu(count: int) -> None:
    """Have this process run jax on virtual CPU devices; starts jax's backend.

    Args:
        count: How many in this process.

    Raises:
        RuntimeError: jax already runs with another number, or not on the CPU.
    """
    if not xla_bridge.backends_are_initialized():
        jax.config.update("jax_platforms", "cpu")
        jax.config.update("jax_num_cpu_devices", count)
    have = f"{jax.local_device_count()} {jax.default_backend()}"
    if have != f"{count} cpu":
        raise RuntimeError(
            f"init: cpu_devices={count}, but jax already runs with {have} devices; "
            f"call spmd.init(runtime='jax', cpu_devices={count}) before jax is used"
        )


def publish(key: str, text: str) -> None:
    """Tell all processes something through jax.distributed's key-value store.

    Args:
        key: Unique over the run.
        text: What to tell.

    Raises:
        RuntimeError: Several processes without jax.distributed.
    """
    _client().key_value_set(key, text)


def read(key: str, *, timeout_s: float) -> str | None:
    """What a process published.

    Args:
        key: The key.
        timeout_s: How long to wait for it.

    Returns:
        The text; None where it did not come in time.

    Raises:
        RuntimeError: Several processes without jax.distributed.
    """
    try:
        return _client().blocking_key_value_get(key, int(timeout_s * 1000))
    except jax.errors.JaxRuntimeError as error:
        if "DEADLINE_EXCEEDED" in str(error):
            return None
        raise


def _client() -> Any:
    client = distributed.global_state.client
    if client is None:
        raise RuntimeError(
            f"{jax.process_count()} processes without jax.distributed; call "
            f"jax.distributed.initialize() first"
        )
    return client
