"""Run programs on jax's devices, with the state of the model kept there."""
