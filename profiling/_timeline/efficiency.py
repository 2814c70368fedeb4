"""What share of its peak a device reaches, and what a thing costs at least.

The only constants of the estimate beyond a target's own figures. There is one set for
each kind of device; none is fitted to a program. Where no public figure is known, the
reason says that it is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from profiling._targets.chip import Kind


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares and overheads of one kind of device.

    Attributes:
        matmul: Share of the matrix units' peak that a large matmul reaches.
        memory: Share of the memory's bandwidth that a large copy reaches.
        link: Share of a link's bandwidth that a large transfer reaches.
        vector: FLOP/s outside of the matrix units, as a share of `vector_of`'s peak.
        vector_of: Dtype whose peak that is.
        vector_memory: Bandwidth of the on-chip memory that XLA places buffers in, as a
            multiple of the memory's.
        launch_s: Seconds of one kernel beyond its work.
        collective_s: Seconds of one collective beyond its steps.
    """

    matmul: float
    memory: float
    link: float
    vector: float
    vector_of: str
    vector_memory: float
    launch_s: float
    collective_s: float


EFFICIENCY: Mapping[Kind, Efficiency] = {
    # matmul: 780 of 989 TFLOP/s on H100 (gist.github.com/Chillee/2ec89696db8b7ed1c244).
    # memory: 1.80 of 2.04 TB/s on A100 80 GB, read by a kernel made for it (thread
    #   339083 of forums.developer.nvidia.com).
    # link: NCCL reaches 370 of 450 GB/s of H100's NVLink; its protocol takes about 20%
    #   (a maintainer in NVIDIA/nccl-tests issue 212).
    # vector: targets give the FP32 rate outside of the tensor cores.
    # launch_s: XLA's own cost model has 1 us between kernels (gpu_performance_model);
    #   another for what ramps up and tails off inside of one is assumed.
    # collective_s: NCCL's base latency of Ring/Simple (src/graph/tuning.cc, baseLat).
    "gpu": Efficiency(0.80, 0.88, 0.82, 1.0, "float32", 1.0, 2e-6, 8.4e-6),
    # matmul and memory: assumed.
    # link: jax-ml.github.io/scaling-book/sharding measures 95% of 45 GB/s a port for
    #   an all-gather of more than 10 MB on v5e, where the vendor says 50.
    # vector: the same book (tpus, appendix A) has 1.4e13 FLOP/s in v5p's vector units,
    #   459e12 in its matrix units.
    # vector_memory: VMEM has about 22 times the bandwidth of HBM, the same book (tpus).
    # launch_s, collective_s: assumed; one program runs on the core without a host.
    "tpu": Efficiency(0.90, 0.90, 0.86, 1 / 32, "bfloat16", 22.0, 1e-6, 2e-6),
    # Nominal, as the target's own figures are.
    "cpu": Efficiency(1.0, 1.0, 1.0, 1.0, "float32", 1.0, 1e-6, 1e-6),
}
"""By a target's kind."""


@dataclass(frozen=True, slots=True)
class Protocol:
    """A protocol for small messages.

    Attributes:
        base_s: Seconds of one collective beyond its steps.
        latency: Share of a link's latency that a step takes.
        bandwidth: Share of the bandwidth reached otherwise.
    """

    base_s: float
    latency: float
    bandwidth: float


LOW_LATENCY = Protocol(6.6e-6, 0.18, 0.5)
"""NCCL's LL, which sends a flag with every 4 bytes: half of the bandwidth, 0.6 us of
NVLink's 3.4 and 2.7 of InfiniBand's 14 (src/graph/tuning.cc)."""

SECTOR_BYTES = 64
"""Bytes that a GPU's cache fetches from memory where a thread wants fewer. It can be 32
to 128 (``cudaLimitMaxL2FetchGranularity``, in sectors of 32); no vendor's page was
found that says the default, so the middle is taken. On the runs of
`benchmarks/bench_estimates.py` 32, 64 and 128 give median errors of 18, 15 and 11%."""

FFT_TILE_BYTES = 48 * 1024
"""A transform that fits a thread block's shared memory (48 KiB without opting in to
more, CUDA C programming guide) reads and writes memory once; a longer one goes in
parts."""
