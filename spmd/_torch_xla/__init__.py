"""The seam to torch_xla: nothing outside this package touches its internals."""
