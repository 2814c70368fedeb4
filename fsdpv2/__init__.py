"""FSDPv2: fully sharded data parallelism by annotation, in one wrapper."""

from fsdpv2._policy import (
    WrapPolicy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from fsdpv2._wrap import FSDPv2

__all__ = [
    "FSDPv2",
    "WrapPolicy",
    "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy",
]
