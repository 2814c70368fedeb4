"""Ask a library itself what it accepts, in a process of its own.

A bad flag ends the process that reads it, so each question costs a child process.
"""

from __future__ import annotations

import os
import subprocess
import sys

from flags._flag import Channel
from flags._library import Library

TIMEOUT_S = 120.0

# Enough of XLA's description of a GPU for a small program to be compiled for it.
_GPU = (
    "gpu_device_info { threads_per_block_limit: 1024 threads_per_warp: 32"
    " shared_memory_per_block: 49152 shared_memory_per_core: 233472"
    " threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128"
    " block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535"
    " memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98"
    " device_memory_size: 84942979072 shared_memory_per_block_optin: 232448"
    " cuda_compute_capability { major: 9 } registers_per_core_limit: 65536"
    " registers_per_block_limit: 65536 }"
    ' platform_name: "CUDA" dnn_version_info { major: 9 }'
)
# Each reads its variable when it first compiles, or is first asked for a device.
_START = {
    "torch_xla": "import torch, torch_xla; print(torch.ones(2, device='xla') + 1)",
    "jaxlib": "import jax; print(jax.numpy.ones(2) + 1)",
}
# jaxlib reads XLA_FLAGS once, when it first compiles; then comes the plugin's reading.
_PLUGIN = """
import os, sys
import jax
given = os.environ.pop("XLA_FLAGS", None)
jax.numpy.ones(2) + 1
if given is not None:
    os.environ["XLA_FLAGS"] = given
from jax.experimental.topologies import get_topology_desc
from jax.sharding import SingleDeviceSharding
topology = get_topology_desc({topology})
one = SingleDeviceSharding(topology.devices[0])
step = jax.jit(lambda x: x + 1, in_shardings=one, out_shardings=one)
lowered = step.lower(jax.ShapeDtypeStruct((8, 128), "float32"))
"""
_TOPOLOGY = {
    "cuda": f"'spmd', 'cuda', target_config={_GPU!r}, topology='1x1x1'",
    "libtpu": "'v5e:2x2', 'tpu'",
}
_COMPILE = """
lowered.compile(eval(sys.argv[1]) if len(sys.argv) > 1 else None)
"""
_TRY_OPTIONS = """
for name in sys.stdin.read().split():
    try:
        lowered.compile({{name: "?"}})
    except Exception as error:
        if "No such compile option" in str(error):
            continue
    print(name, flush=True)
"""
_DROPPED = ("XLA_FLAGS", "LIBTPU_INIT_ARGS", "PJRT_DEVICE", "JAX_PLATFORMS")
_SET = {
    "PJRT_DEVICE": "CPU",
    "JAX_PLATFORMS": "cpu",
    "CPU_NUM_DEVICES": "1",
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # no chip is opened, so several may load it
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-8",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
    "TPU_LOG_DIR": "disabled",
}


def start(
    library: Library,
    text: str | None,
    *,
    channel: Channel = "XLA_FLAGS",
    options: dict[str, object] | None = None,
    timeout_s: float = TIMEOUT_S,
) -> tuple[int, str]:
    """Start a library with a line of flags, and let it compile something small.

    Args:
        library: Any of ours.
        text: Value of a variable; None to leave it unset.
        channel: The variable.
        options: Compile options; for plugins.
        timeout_s: Seconds after which it is given up.

    Returns:
        Exit status of the process and what it wrote to stderr.

    Raises:
        TimeoutError: It took too long.
    """
    if library.name in _START:
        source = _START[library.name]
    else:
        source = _PLUGIN.format(topology=_TOPOLOGY[library.name]) + _COMPILE
    arguments = [] if options is None else [repr(options)]
    variables = {} if text is None else {channel: text}
    code, _, said = _run(library, source, arguments, variables, "", timeout_s)
    return code, said


def accepted_options(
    library: Library, names: list[str], *, timeout_s: float = TIMEOUT_S
) -> frozenset[str]:
    """Which names a plugin takes as compile options, whatever their value.

    Args:
        library: ``cuda`` or ``libtpu``.
        names: Candidates.
        timeout_s: Seconds after which it is given up.

    Returns:
        Those that are compile options.

    Raises:
        RuntimeError: The process died.
        TimeoutError: It took too long.
    """
    source = _PLUGIN.format(topology=_TOPOLOGY[library.name]) + _TRY_OPTIONS.format()
    code, out, said = _run(library, source, [], {}, "\n".join(names), timeout_s)
    if code != 0:
        raise RuntimeError(
            f"{library.name} ended with exit status {code} while it was asked for its "
            f"options: {said.strip()[-500:]}"
        )
    return frozenset(out.split())


def _run(
    library: Library,
    source: str,
    arguments: list[str],
    variables: dict[str, str],
    stdin: str,
    timeout_s: float,
) -> tuple[int, str, str]:
    environment = {k: v for k, v in os.environ.items() if k not in _DROPPED}
    try:
        # -P: a jax.py in the current folder must not stand in for jax.
        done = subprocess.run(
            [sys.executable, "-P", "-c", source, *arguments],
            env={**environment, **_SET, **variables},
            input=stdin.encode(),
            capture_output=True,
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError(
            f"{library.name} did not start within {timeout_s:g} s; what it accepts "
            f"cannot be confirmed"
        ) from None
    out, said = (part.decode(errors="replace") for part in (done.stdout, done.stderr))
    return done.returncode, out, said
