"""Compiler-based SPMD sharding for PyTorch on XLA: annotate, and the compiler splits.

Names that need torch load it on first use, so that reading a plan or a program does not
pay for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spmd import checkpoint
    from spmd._annotation import Annotation
    from spmd._auto_plan import auto_plan
    from spmd._batch import shard_batch
    from spmd._capture_checks import CaptureError
    from spmd._convert import mesh_from, placements_from_spec, spec_from
    from spmd._host_reads import HostReadError
    from spmd._hosts import data_rank
    from spmd._loader import ShardedLoader
    from spmd._mark import (
        clear_sharding,
        get_sharding,
        mark_sharding,
        replicate,
    )
    from spmd._mesh import Mesh
    from spmd._module import shard_module, to_device
    from spmd._optimizer import shard_optimizer
    from spmd._plan import Plan, ResolvedPlan
    from spmd._preserve import PRESERVED, sharding_preserving
    from spmd._prime import prime_optimizer
    from spmd._program import Program
    from spmd._replay import CompiledStep
    from spmd._runtime import init
    from spmd._shard_as import shard_as
    from spmd._sharding import HloSharding
    from spmd._stand_in import meta_parameters
    from spmd._step import compile_step
    from spmd._table import ShardingTable, sharding_table
    from spmd._trace import trace
    from spmd._visualize import visualize

_HOME = {
    "PRESERVED": "_preserve",
    "Annotation": "_annotation",
    "CaptureError": "_capture_checks",
    "CompiledStep": "_replay",
    "HloSharding": "_sharding",
    "HostReadError": "_host_reads",
    "Mesh": "_mesh",
    "Plan": "_plan",
    "Program": "_program",
    "ResolvedPlan": "_plan",
    "ShardedLoader": "_loader",
    "ShardingTable": "_table",
    "auto_plan": "_auto_plan",
    "clear_sharding": "_mark",
    "compile_step": "_step",
    "data_rank": "_hosts",
    "get_sharding": "_mark",
    "init": "_runtime",
    "mark_sharding": "_mark",
    "mesh_from": "_convert",
    "meta_parameters": "_stand_in",
    "placements_from_spec": "_convert",
    "prime_optimizer": "_prime",
    "replicate": "_mark",
    "shard_as": "_shard_as",
    "shard_batch": "_batch",
    "shard_module": "_module",
    "shard_optimizer": "_optimizer",
    "sharding_preserving": "_preserve",
    "sharding_table": "_table",
    "spec_from": "_convert",
    "to_device": "_module",
    "trace": "_trace",
    "visualize": "_visualize",
}

__all__ = [
    "PRESERVED",
    "Annotation",
    "CaptureError",
    "CompiledStep",
    "HloSharding",
    "HostReadError",
    "Mesh",
    "Plan",
    "Program",
    "ResolvedPlan",
    "ShardedLoader",
    "ShardingTable",
    "auto_plan",
    "checkpoint",
    "clear_sharding",
    "compile_step",
    "data_rank",
    "get_sharding",
    "init",
    "mark_sharding",
    "mesh_from",
    "meta_parameters",
    "placements_from_spec",
    "prime_optimizer",
    "replicate",
    "shard_as",
    "shard_batch",
    "shard_module",
    "shard_optimizer",
    "sharding_preserving",
    "sharding_table",
    "spec_from",
    "to_device",
    "trace",
    "visualize",
]


def __getattr__(name: str) -> Any:
    """Load a public name from its module on first use."""
    if name == "checkpoint":  # a package of names that load on first use themselves
        return importlib.import_module("spmd.checkpoint")
    if name not in _HOME:
        raise AttributeError(f"module 'spmd' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"spmd.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """List the public names, loaded or not."""
    return sorted(set(globals()) | set(__all__))
