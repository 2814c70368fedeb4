"""FSDPv2: fully sharded data parallelism by annotation, in one wrapper."""

from fsdpv2._fsdp_config import from_fsdp_config
from fsdpv2._fully_shard import fully_shard
from fsdpv2._materialize import materialize
from fsdpv2._policy import (
    WrapPolicy,
    size_based_auto_wrap_policy,
    transformer_auto_wrap_policy,
)
from fsdpv2._precision import MixedPrecision
from fsdpv2._wrap import FSDPv2

__all__ = [
    "FSDPv2",
    "MixedPrecision",
    "WrapPolicy",
    "from_fsdp_config",
    "fully_shard",
    "materialize",
    "size_based_auto_wrap_policy",
    "transformer_auto_wrap_policy",
]
