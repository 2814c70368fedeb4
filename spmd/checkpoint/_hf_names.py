"""How transformers names and fuses weights, in files and in a model.

The only module that touches transformers' conversion of weights. Written against
transformers 5.24; where there is none, or an older one, names are left as they are.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

Convert = Callable[[Mapping[str, torch.Tensor]], dict[str, torch.Tensor]]


@dataclass(frozen=True, slots=True)
class Group:
    """Tensors that become others together.

    Attributes:
        names: What they are called.
        convert: Makes the others of them; None if the one is only renamed, if at all.
        renamed: What the one is called then.
    """

    names: tuple[str, ...]
    convert: Convert | None = None
    renamed: str = ""


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside wrappers such as FSDPv2.

    Args:
        model: Any module.
    """
    while True:
        inner = vars(model).get("_wrapped")
        if inner is None:
            inner = model._modules.get("_orig_mod")
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            inner = model.module
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def to_files(model: nn.Module, names: Iterable[str]) -> list[Group]:
    """How a model's tensors are to be called in files.

    Args:
        model: Unwrapped.
        names: Of its tensors.

    Returns:
        Groups in the order of the names.
    """
    loading, mapping = _mapping(model, keep_legacy=False)
    if not mapping:
        return [Group((name,), renamed=name) for name in names]
    reverse = [entry.reverse_transform() for entry in mapping[::-1]]
    renamings, converters = _kinds(loading, reverse)
    groups: dict[str, list[str]] = {}
    for name in names:
        renamed, pattern = loading.apply_converters(name, converters)
        if pattern is None:
            renamed = loading.apply_renamings(name, renamings)
        groups.setdefault(f"{pattern}/{renamed}", []).append(name)
    found = []
    for key, members in groups.items():
        pattern, _, renamed = key.partition("/")
        if pattern == "None":
            found.append(Group(tuple(members), renamed=renamed))
        else:
            found.append(Group(tuple(members), _reverting(loading, model)))
    return found


def to_model(model: nn.Module, names: Iterable[str]) -> list[Group]:
    """How tensors in files are called in a model.

    Args:
        model: Unwrapped.
        names: In the files.

    Returns:
        Groups.
    """
    loading, mapping = _mapping(model, keep_legacy=True)
    if loading is None:
        return [Group((name,), renamed=name) for name in names]
    renamings, converters = _kinds(loading, mapping)
    known = model.state_dict()
    prefix = getattr(model, "base_model_prefix", "")
    by_pattern = {p: c for c in converters for p in c.source_patterns}
    plain, fused = [], {}
    for name in sorted(names, key=loading.dot_natural_key):
        renamed, pattern = loading.rename_source_key(
            name, renamings, converters, prefix, known
        )
        if pattern is None:
            plain.append(Group((name,), renamed=renamed))
        else:
            fused.setdefault(renamed, []).append((name, pattern))
    return plain + [
        Group(
            tuple(name for name, _ in members),
            _fusing(model, target, by_pattern, dict(members)),
        )
        for target, members in fused.items()
    ]


def tied_targets(model: nn.Module) -> set[str]:
    """Names of tied weights that transformers leaves out of files.

    Args:
        model: Unwrapped.
    """
    return set(getattr(model, "all_tied_weights_keys", None) or ())


def _reverting(loading: Any, model: nn.Module) -> Convert:
    def convert(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        return loading.revert_weight_conversion(model, dict(tensors))

    return convert


def _fusing(
    model: nn.Module,
    target: str,
    converters: Mapping[str, Any],
    patterns: dict[str, str],
) -> Convert:
    def convert(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        mapping = copy.deepcopy(converters[next(iter(patterns.values()))])
        for name, tensor in tensors.items():
            mapping.add_tensor(target, name, patterns[name], tensor)
        made = mapping.convert(target, model=model, config=model.config)
        return {k: v[0] if isinstance(v, list) else v for k, v in made.items()}

    return convert


def _mapping(model: nn.Module, *, keep_legacy: bool) -> tuple[Any, list[Any]]:
    """The module of transformers for this, and its transforms for a model."""
    if not hasattr(model, "config"):
        return None, []
    try:
        from transformers import PreTrainedModel
        from transformers import core_model_loading as loading
        from transformers.conversion_mapping import get_model_conversion_mapping
    except ImportError:
        return None, []
    if not isinstance(model, PreTrainedModel):
        return None, []
    mapping = getattr(model, "_weight_conversions", None)
    if mapping is None:
        mapping = get_model_conversion_mapping(model, add_legacy=keep_legacy)
        if not keep_legacy:
            # As transformers does: it cannot be known whether files had the prefix.
            mapping = [m for m in mapping if not isinstance(m, loading.PrefixChange)]
    return loading, list(mapping)


def _kinds(loading: Any, mapping: list[Any]) -> tuple[list[Any], list[Any]]:
    return (
        [m for m in mapping if isinstance(m, loading.WeightRenaming)],
        [m for m in mapping if isinstance(m, loading.WeightConverter)],
    )
