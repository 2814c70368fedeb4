"""A step that compiles at once: gradient descent on one weight."""

import jax
import jax.numpy as jnp

from spmd._meshes.mesh import Mesh
from spmd._program.program import Program
from spmd._program.stablehlo import as_artifact
from spmd._program.value import Value

SMALL = 64


def program(num_devices: int, size: int = SMALL) -> Program:
    """Gradient descent on one weight, split by its rows."""

    def step(w, x):
        gradient = jax.grad(lambda w: (jnp.tanh(x @ w) @ w.T).sum())(w)
        return w - 0.1 * gradient, (x @ w).sum()

    rows = 8 * num_devices
    w = jax.ShapeDtypeStruct((size, size), jnp.float32)
    x = jax.ShapeDtypeStruct((rows, size), jnp.float32)
    spec = ("fsdp", None)
    return Program(
        as_artifact(jax.jit(step).lower(w, x).as_text()),
        Mesh({"fsdp": num_devices}),
        (
            Value("w", "parameter", (size, size), "float32", spec, donated_to=0),
            Value("x", "input", (rows, size), "float32", spec),
        ),
        (
            Value("w", "parameter", (size, size), "float32", updates=0),
            Value("loss", "output", (), "float32"),
        ),
    )
