"""Take over the `fsdp_config` of Hugging Face's Trainer."""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from fsdpv2._policy import size_based_auto_wrap_policy, transformer_auto_wrap_policy
from fsdpv2._precision import MixedPrecision

_USED = (
    "activation_checkpointing",
    "min_num_params",
    "transformer_layer_cls_to_wrap",
    "xla",
    "xla_fsdp_grad_ckpt",
    "xla_fsdp_settings",
    "xla_fsdp_v2",
)
_COMPILERS = (
    "auto_wrap_policy",
    "backward_prefetch",
    "cpu_ram_efficient_loading",
    "forward_prefetch",
    "limit_all_gathers",
    "reshard_after_forward",
    "sharding_strategy",
    "state_dict_type",
    "sync_module_states",
    "use_orig_params",
    "version",
)
"""Keys that say how torch's FSDP gathers and loads: here the compiler's part."""

_REFUSED = {
    "offload_params": "parameters stay on the devices",
    "cpu_offload": "parameters stay on the devices",
}
_SETTINGS = ("compute_dtype", "fp32_reduce_scatter", "reshard_after_forward")


def from_fsdp_config(config: Mapping[str, Any] | str | Path) -> dict[str, Any]:
    """Options of `FSDPv2` from an ``fsdp_config`` of Hugging Face's Trainer.

    Layer classes and sizes become `auto_wrap_policy`; ``xla_fsdp_grad_ckpt`` and
    ``activation_checkpointing`` become ``remat="full"``; ``compute_dtype`` and
    ``fp32_reduce_scatter`` in ``xla_fsdp_settings`` become `mixed_precision`. Keys
    about prefetching, gathering and loading are the compiler's here and have no effect.

    Args:
        config: The dictionary, with or without ``fsdp_`` before its keys, or the path
            of a JSON file.

    Returns:
        Keyword arguments of `FSDPv2`.

    Raises:
        ValueError: A key that is unknown, or asks for what there is not.

    Example:
        >>> from_fsdp_config({"xla_fsdp_v2": True, "xla_fsdp_grad_ckpt": True})
        {'remat': 'full'}
    """
    given: Any = config
    if isinstance(config, str | Path):
        given = json.loads(Path(config).read_text(encoding="utf-8"))
    named = {key.removeprefix("fsdp_"): value for key, value in given.items()}
    _check(named)
    options: dict[str, Any] = {}
    layers = named.get("transformer_layer_cls_to_wrap")
    if named.get("min_num_params"):
        size = int(named["min_num_params"])
        options["auto_wrap_policy"] = size_based_auto_wrap_policy(size)
    elif layers:
        names = layers.split(",") if isinstance(layers, str) else layers
        options["auto_wrap_policy"] = transformer_auto_wrap_policy(
            [n.strip() if isinstance(n, str) else n for n in names]
        )
    if named.get("xla_fsdp_grad_ckpt") or named.get("activation_checkpointing"):
        options["remat"] = "full"
    settings = named.get("xla_fsdp_settings") or {}
    if settings.get("compute_dtype") is not None:
        options["mixed_precision"] = _precision(settings)
    return options


def _check(named: Mapping[str, Any]) -> None:
    if named.get("xla_fsdp_v2") is False:
        raise ValueError(
            "fsdp_config: xla_fsdp_v2=False asks for torch_xla's first FSDP, which has "
            "a process for each device; set it to True"
        )
    for key, value in named.items():
        if key in _REFUSED and value:
            raise ValueError(
                f"fsdp_config: {key}={value!r} is not there: {_REFUSED[key]}; take the "
                f"key out"
            )
        _check_known(key, (*_USED, *_COMPILERS, *_REFUSED), "fsdp_config")
    for key in named.get("xla_fsdp_settings") or {}:
        _check_known(key, _SETTINGS, "fsdp_config['xla_fsdp_settings']")


def _check_known(key: str, known: tuple[str, ...], where: str) -> None:
    if key not in known:
        near = difflib.get_close_matches(key, known, n=3) or known
        raise ValueError(
            f"{where}: unknown key {key!r}; did you mean {' or '.join(near)}?"
        )


def _precision(settings: Mapping[str, Any]) -> MixedPrecision:
    name = settings["compute_dtype"]
    dtype = name
    if isinstance(name, str):
        dtype = getattr(torch, name.removeprefix("torch."), None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(
            f"fsdp_config: compute_dtype={name!r} is no dtype; 'bfloat16' or 'float32'"
        )
    wide = settings.get("fp32_reduce_scatter", False)
    return MixedPrecision(dtype, reduce=torch.float32 if wide else dtype)
