"""The states of the random generators of this process."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


def host_state() -> dict[str, Any]:
    """States of torch's generator on the CPU, Python's, and numpy's.

    Returns:
        Plain values and tensors.
    """
    state = {"torch": torch.get_rng_state(), "python": _plain(random.getstate())}
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = [name, torch.from_numpy(keys.astype("int64")), *rest]
    return state


def set_host_state(state: dict[str, Any]) -> None:
    """Put the generators into a state.

    Args:
        state: From `host_state`.
    """
    torch.set_rng_state(state["torch"])
    random.setstate(_tuples(state["python"]))
    if "numpy" in state:
        import numpy

        name, keys, *rest = state["numpy"]
        keys = keys.numpy().astype("uint32")
        numpy.random.set_state((name, keys, *rest))


def all_states() -> dict[str, Any]:
    """`host_state`, and the seed of the devices where there are any."""
    state = host_state()
    if _has_devices():
        from spmd._torch_xla import graph as torch_xla_graph

        state["devices"] = torch_xla_graph.seed()
    return state


def set_all_states(state: dict[str, Any]) -> None:
    """Put all generators into a state.

    Args:
        state: From `all_states`.
    """
    set_host_state(state)
    if "devices" in state and _has_devices():
        from spmd._torch_xla import graph as torch_xla_graph

        torch_xla_graph.set_seed(state["devices"])


def same(one: dict[str, Any], two: dict[str, Any]) -> bool:
    """Whether two states are the same.

    Args:
        one: From `host_state`.
        two: From `host_state`.
    """
    if not torch.equal(one["torch"], two["torch"]):
        return False
    if one["python"] != two["python"] or ("numpy" in one) != ("numpy" in two):
        return False
    if "numpy" not in one:
        return True
    mine, theirs = one["numpy"], two["numpy"]
    return torch.equal(mine[1], theirs[1]) and mine[2:] == theirs[2:]


def _has_devices() -> bool:
    if "torch_xla" not in sys.modules:
        return False
    from spmd._torch_xla import seam

    return seam.runtime_is_up()


def _plain(value: Any) -> Any:
    return [_plain(v) for v in value] if isinstance(value, tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(_tuples(v) for v in value) if isinstance(value, list) else value
