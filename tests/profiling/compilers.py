"""Which compilers are installed."""

from importlib.metadata import PackageNotFoundError, version

import pytest

from profiling._targets.target import Target

NEEDS = {"gpu": "jax-cuda12-plugin", "tpu": "libtpu"}


def need(target: str) -> str:
    """Skip where a target's compiler is not installed."""
    kind = Target.parse(target).kind
    if kind in NEEDS:
        try:
            version(NEEDS[kind])
        except PackageNotFoundError:
            pytest.skip(f"{target} needs pip install 'xla-spmd[{kind}]'")
    return target
