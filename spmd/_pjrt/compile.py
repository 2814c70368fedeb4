"""Compiling for devices that are not here: the part of the jax seam behind `profiling`.

Written against jax 0.10, like `spmd._pjrt.client`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.experimental import topologies

from spmd._pjrt.client import (
    _OPTION_ERRORS,
    Device,
    _compile_options,
    check_version,
    xla_client,
)
from spmd._program.stablehlo import Shardings, annotate, free_results, opened

MEMORY_FIGURES = (
    "argument_size_in_bytes",
    "output_size_in_bytes",
    "alias_size_in_bytes",
    "temp_size_in_bytes",
    "generated_code_size_in_bytes",
    "peak_memory_in_bytes",
)


@dataclass(frozen=True, slots=True)
class Compilation:
    """What a compiler gave without a device.

    Attributes:
        hlo: The optimised module of one device, scheduled: a serialised HloModuleProto.
        memory: Bytes of one device by the names of `MEMORY_FIGURES`.
        compiler: What the compiler says of its version.
    """

    hlo: bytes
    memory: Mapping[str, int]
    compiler: str


def tpu_devices(name: str, **options: Any) -> tuple[Device, ...]:
    """Devices of TPU slices, from libtpu.

    Args:
        name: Topology, such as ``v5e:4x4``.
        options: What libtpu takes besides: `num_slices`, `wrap`,
            `chips_per_host_bounds`, `chip_config_name`.

    Returns:
        In partition order.

    Raises:
        RuntimeError: libtpu's refusal, in its words.
    """
    check_version()
    return _devices(name, "tpu", options)


def gpu_devices(description: str, topology: str) -> tuple[Device, ...]:
    """Devices of GPU hosts, from jax's CUDA plugin.

    Args:
        description: XLA's GpuTargetConfigProto as text.
        topology: ``2x1x8`` for 2 NVLink domains of 1 host with 8 GPUs.

    Returns:
        In partition order.

    Raises:
        RuntimeError: The plugin's refusal, in its words.
    """
    check_version()
    options = {"target_config": description, "topology": topology}
    return _devices("spmd", "cuda", options)


def cpu_devices(number: int) -> tuple[Device, ...]:
    """CPU devices; jax must not have been used before in this process.

    Args:
        number: How many.

    Returns:
        In partition order.

    Raises:
        RuntimeError: jax has been used before.
    """
    check_version()
    jax.config.update("jax_num_cpu_devices", number)
    return tuple(jax.devices("cpu"))


def _devices(
    name: str, platform: str, options: Mapping[str, Any]
) -> tuple[Device, ...]:
    found = topologies.get_topology_desc(name, platform, **options)
    return tuple(found.devices)


def compile_only(
    module: bytes,
    order: Sequence[Device],
    *,
    inputs: Shardings,
    outputs: Shardings,
    donated: Mapping[int, int],
    options: Mapping[str, Any],
) -> Compilation:
    """Partition and compile a module without running it.

    Args:
        module: StableHLO portable artifact, or MLIR text.
        order: Devices in partition order; their number is the number of partitions.
        inputs: Sharding of each argument.
        outputs: Sharding of each result; the compiler chooses where none is said.
        donated: Result index by the index of the argument that gives it its buffer.
        options: XLA flags by name.

    Returns:
        The optimised module and its figures.

    Raises:
        RuntimeError: The compiler failed, in its words.
        ValueError: A flag that this compiler does not have or a value it does not take,
            in its words; a module that jax cannot read.
    """
    order = tuple(order)
    client = order[0].client
    ours = _compile_options(order, options, shardy=False)
    with opened(module) as parsed:
        annotate(parsed, inputs=inputs, outputs=outputs, donated=donated)
        build = ours.executable_build_options
        build.allow_spmd_sharding_propagation_to_output = free_results(parsed)
        # CPU has a client that runs; the others are clients for compiling only.
        call = client.compile_and_load if client.platform == "cpu" else client.compile
        try:
            made = call(
                parsed,
                executable_devices=xla_client.DeviceList(order),
                compile_options=ours,
            )
        except jax.errors.JaxRuntimeError as error:
            if any(text in str(error) for text in _OPTION_ERRORS):
                raise ValueError(str(error)) from error
            raise RuntimeError(str(error)) from error
    (hlo,) = made.hlo_modules()
    stats = made.get_compiled_memory_stats()
    memory = {name: int(getattr(stats, name)) for name in MEMORY_FIGURES}
    return Compilation(
        hlo.as_serialized_hlo_module_proto(), memory, client.platform_version
    )
