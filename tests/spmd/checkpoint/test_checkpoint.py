"""The public names of `spmd.checkpoint`."""

import inspect

import pytest

import spmd
from spmd import checkpoint
from tests.meta.test_project import sort_key, undocumented_raises


def test_names_resolve_and_say_what_they_raise():
    assert checkpoint.__all__ == sorted(set(checkpoint.__all__), key=sort_key)
    for name in checkpoint.__all__:
        value = getattr(checkpoint, name)
        assert inspect.getdoc(value), name
        assert list(undocumented_raises(name, value)) == []
    assert set(checkpoint.__all__) <= set(dir(checkpoint))
    assert spmd.checkpoint is checkpoint and "checkpoint" in spmd.__all__


def test_an_unknown_name():
    with pytest.raises(AttributeError, match=r"'spmd.checkpoint' has no attribute 'x'"):
        _ = checkpoint.x


def test_importing_loads_nothing_heavy(run_script):
    done = run_script(
        """
        import sys
        import spmd
        spmd.checkpoint.CheckpointError
        import spmd.checkpoint._cli
        heavy = {"torch", "torch_xla", "jax", "jaxlib", "fsspec", "numpy"}
        assert not heavy & set(sys.modules), heavy & set(sys.modules)
        """
    )
    assert done.rc == 0, done.stderr
