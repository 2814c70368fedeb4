"""Compiler-based SPMD sharding for PyTorch on XLA: annotate, and the compiler splits.

Names that need torch load it on first use, so that reading a plan or a program does not
pay for it.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spmd import checkpoint
    from spmd._auto.plan import auto_plan
    from spmd._batches.batch import shard_batch
    from spmd._batches.hosts import data_rank
    from spmd._batches.loader import ShardedLoader
    from spmd._capture.checks import CaptureError
    from spmd._capture.host_reads import HostReadError
    from spmd._capture.prime import prime_optimizer
    from spmd._marking.annotation import Annotation
    from spmd._marking.mark import (
        clear_sharding,
        get_sharding,
        mark_sharding,
        replicate,
    )
    from spmd._marking.optimizer import shard_optimizer
    from spmd._meshes.convert import mesh_from, placements_from_spec, spec_from
    from spmd._meshes.mesh import Mesh
    from spmd._meshes.sharding import HloSharding
    from spmd._ops.shard_as import shard_as
    from spmd._plans.module import shard_module, to_device
    from spmd._plans.plan import Plan, ResolvedPlan
    from spmd._preserve.preserve import PRESERVED, sharding_preserving
    from spmd._program.program import Program
    from spmd._replay.replay import CompiledStep
    from spmd._replay.step import compile_step
    from spmd._runtime import init
    from spmd._shown.table import ShardingTable, sharding_table
    from spmd._shown.visualize import visualize
    from spmd._trace.stand_in import meta_parameters
    from spmd._trace.trace import trace

_HOME = {
    "PRESERVED": "_preserve.preserve",
    "Annotation": "_marking.annotation",
    "CaptureError": "_capture.checks",
    "CompiledStep": "_replay.replay",
    "HloSharding": "_meshes.sharding",
    "HostReadError": "_capture.host_reads",
    "Mesh": "_meshes.mesh",
    "Plan": "_plans.plan",
    "Program": "_program.program",
    "ResolvedPlan": "_plans.plan",
    "ShardedLoader": "_batches.loader",
    "ShardingTable": "_shown.table",
    "auto_plan": "_auto.plan",
    "clear_sharding": "_marking.mark",
    "compile_step": "_replay.step",
    "data_rank": "_batches.hosts",
    "get_sharding": "_marking.mark",
    "init": "_runtime",
    "mark_sharding": "_marking.mark",
    "mesh_from": "_meshes.convert",
    "meta_parameters": "_trace.stand_in",
    "placements_from_spec": "_meshes.convert",
    "prime_optimizer": "_capture.prime",
    "replicate": "_marking.mark",
    "shard_as": "_ops.shard_as",
    "shard_batch": "_batches.batch",
    "shard_module": "_plans.module",
    "shard_optimizer": "_marking.optimizer",
    "sharding_preserving": "_preserve.preserve",
    "sharding_table": "_shown.table",
    "spec_from": "_meshes.convert",
    "to_device": "_plans.module",
    "trace": "_trace.trace",
    "visualize": "_shown.visualize",
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
