"""The one error that another checkpoint would help with."""

import pytest

from spmd import checkpoint
from spmd.checkpoint._error import CheckpointError


def test_it_is_public_and_no_value_error(tmp_path):
    assert checkpoint.CheckpointError is CheckpointError
    assert not issubclass(CheckpointError, ValueError)
    with pytest.raises(RuntimeError, match="holds no complete checkpoint"):
        raise CheckpointError(*checkpoint.verify(tmp_path))
