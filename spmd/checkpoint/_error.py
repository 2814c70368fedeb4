"""`CheckpointError`: a checkpoint that cannot be written or read."""

from __future__ import annotations


class CheckpointError(RuntimeError):
    """A checkpoint that is damaged, incomplete or could not be written.

    A model that does not fit a good checkpoint is a `ValueError` instead: another
    checkpoint would not help.
    """
