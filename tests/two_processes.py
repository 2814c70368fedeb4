"""The head of a script that starts itself twice, as two processes of jax.

Given one argument it takes a port and runs two children with it; these know `index`.
"""

TWO_PROCESSES = """
import subprocess, sys, socket

if len(sys.argv) == 2:
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = str(probe.getsockname()[1])
    args = [sys.executable, __file__, sys.argv[1]]
    children = [subprocess.Popen([*args, port, str(i)]) for i in (0, 1)]
    sys.exit(max(child.wait() for child in children))

folder, port, index = sys.argv[1], sys.argv[2], int(sys.argv[3])
import jax
jax.config.update("jax_platforms", "cpu")
jax.config.update("jax_num_cpu_devices", 4)
jax.config.update("jax_cpu_collectives_implementation", "gloo")
jax.distributed.initialize(f"localhost:{port}", 2, index)
import spmd
spmd.init(runtime="jax", cpu_devices=4)
"""
