"""The seam to jax: nothing outside this package touches its internals."""
