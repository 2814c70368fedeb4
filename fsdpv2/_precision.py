"""`MixedPrecision`: which dtype is stored, computed with, and reduced in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from spmd._names.rebuild import rebuild

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class MixedPrecision:
    """Dtypes of a wrapped model.

    Attributes:
        compute: What weights are gathered and used in.
        reduce: What gradients of linear layers and embeddings are reduced in (other
            layers': in what they compute). None: as `compute`, which halves the bytes
            on the wire.
        param: What parameters, gradients and optimizer state are kept in: the master
            copy. None: as the model has them.
        output: What a wrapped module's output is cast to. None: it is left.
        cast_inputs: Whether floating-point inputs are cast to `compute`.

    Raises:
        TypeError: A dtype that is none, or not of floating point.

    Example:
        >>> MixedPrecision().compute
        torch.bfloat16
    """

    compute: torch.dtype = torch.bfloat16
    reduce: torch.dtype | None = torch.float32
    param: torch.dtype | None = torch.float32
    output: torch.dtype | None = None
    cast_inputs: bool = True

    def __post_init__(self) -> None:
        for name in ("compute", "reduce", "param", "output"):
            value = getattr(self, name)
            if value is None and name != "compute":
                continue
            if not isinstance(value, torch.dtype) or not value.is_floating_point:
                raise TypeError(
                    f"MixedPrecision: {name}={value!r}; a floating-point dtype such as "
                    f"torch.bfloat16 is needed"
                )

    def cast_inputs_of(self, tree: T) -> T:
        """Cast what enters a module.

        Args:
            tree: Nested containers.

        Returns:
            The same, floating-point tensors in the compute dtype.
        """
        return _cast(tree, self.compute) if self.cast_inputs else tree

    def cast_output(self, tree: T) -> T:
        """Cast what leaves a module.

        Args:
            tree: Nested containers.

        Returns:
            The same, floating-point tensors in the output dtype.
        """
        return tree if self.output is None else _cast(tree, self.output)


def as_precision(policy: Any) -> MixedPrecision | None:
    """A policy of any accepted form.

    Args:
        policy: A `MixedPrecision`, a dtype to compute in, FSDP2's
            `MixedPrecisionPolicy`, FSDP1's `MixedPrecision`, or None.

    Returns:
        None where there is nothing to cast.

    Raises:
        TypeError: Anything else.
    """
    if policy is None or isinstance(policy, MixedPrecision):
        return policy
    if isinstance(policy, torch.dtype):
        return MixedPrecision(policy)
    if not hasattr(policy, "param_dtype") or not hasattr(policy, "reduce_dtype"):
        raise TypeError(
            f"FSDPv2: mixed_precision={policy!r}; a fsdpv2.MixedPrecision, a dtype, or "
            f"torch's MixedPrecisionPolicy is needed"
        )
    if policy.param_dtype is None:
        return None
    inputs = getattr(policy, "cast_forward_inputs", True)
    return MixedPrecision(
        compute=policy.param_dtype,
        reduce=policy.reduce_dtype,
        param=None,  # torch keeps what the model has
        output=getattr(policy, "output_dtype", None),
        cast_inputs=getattr(policy, "cast_root_forward_inputs", inputs),
    )


def to_master(module: nn.Module, precision: MixedPrecision | None) -> None:
    """Have a module keep its floating-point parameters in the master dtype, in place.

    Args:
        module: Any module.
        precision: Dtypes, or None.
    """
    if precision is None or precision.param is None:
        return
    for parameter in module.parameters():
        if parameter.is_floating_point() and parameter.dtype != precision.param:
            parameter.data = parameter.data.to(precision.param)


def _cast(tree: T, dtype: torch.dtype) -> T:
    def one(leaf: Any) -> Any:
        floating = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.to(dtype) if floating else leaf

    return rebuild(tree, one)
