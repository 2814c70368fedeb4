"""Which submodules get a wrapper of their own."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from torch import nn

LayerClass = str | type[nn.Module]


@dataclass(frozen=True, slots=True)
class WrapPolicy:
    """Chooses the submodules to wrap, by class or by size.

    Attributes:
        classes: Wrap every module of these classes (given by class or by name).
        min_num_params: Wrap a module that holds at least this many parameters that no
            wrapper inside it holds. 0: not by size.

    Raises:
        ValueError: Neither is given.
    """

    classes: tuple[LayerClass, ...] = ()
    min_num_params: int = 0

    def __post_init__(self) -> None:
        if not self.classes and self.min_num_params <= 0:
            raise ValueError(
                "WrapPolicy: give layer classes, e.g. {'LlamaDecoderLayer'}, or "
                f"min_num_params > 0; got {self.min_num_params}"
            )

    def select(self, root: nn.Module) -> tuple[str, ...]:
        """Names of the submodules to wrap, inner ones first.

        Args:
            root: The module being wrapped; never selected itself.

        Returns:
            Module names.

        Raises:
            ValueError: A class that no submodule has.
        """
        if self.classes:
            self._check_classes(root)
        chosen: list[str] = []
        _walk(root, "", self._wants, chosen)
        return tuple(chosen)

    def _wants(self, module: nn.Module, free_params: int) -> bool:
        if any(_is(module, c) for c in self.classes):
            return True
        return 0 < self.min_num_params <= free_params

    def _check_classes(self, root: nn.Module) -> None:
        inner = [m for m in root.modules() if m is not root]
        have = sorted({type(m).__name__ for m in inner})
        for wanted in self.classes:
            if any(_is(m, wanted) for m in inner):
                continue
            name = wanted if isinstance(wanted, str) else wanted.__name__
            if not have:
                raise ValueError(
                    f"auto_wrap_policy: {type(root).__name__} has no submodules to "
                    f"wrap; leave the policy out"
                )
            near = difflib.get_close_matches(name, have, n=3) or have
            raise ValueError(
                f"auto_wrap_policy: no submodule of {type(root).__name__} is a "
                f"{name!r}; did you mean {' or '.join(repr(n) for n in near[:8])}?"
            )


def transformer_auto_wrap_policy(
    transformer_layer_cls: LayerClass | Iterable[LayerClass],
) -> WrapPolicy:
    """Wrap every transformer layer.

    Args:
        transformer_layer_cls: Layer classes, or their names.

    Returns:
        A policy for `FSDPv2(auto_wrap_policy=...)`.

    Raises:
        ValueError: No class given.

    Example:
        >>> transformer_auto_wrap_policy({"LlamaDecoderLayer"})
        WrapPolicy(classes=('LlamaDecoderLayer',), min_num_params=0)
    """
    if isinstance(transformer_layer_cls, str | type):
        transformer_layer_cls = (transformer_layer_cls,)
    return WrapPolicy(classes=tuple(transformer_layer_cls))


def size_based_auto_wrap_policy(min_num_params: int = int(1e8)) -> WrapPolicy:
    """Wrap modules that hold at least so many parameters of their own.

    Args:
        min_num_params: Parameters (elements, not bytes) outside inner wrappers.

    Returns:
        A policy for `FSDPv2(auto_wrap_policy=...)`.

    Raises:
        ValueError: Not a positive number.
    """
    return WrapPolicy(min_num_params=min_num_params)


def select(policy: Any, root: nn.Module) -> tuple[str, ...]:
    """Names of the submodules a policy of any accepted form chooses.

    Args:
        policy: A `WrapPolicy`; layer classes or their names, alone or in a collection;
            or a callable of torch's and torch_xla's FSDP form,
            ``policy(module=, recurse=, nonwrapped_numel= or unwrapped_params=)``.
        root: The module being wrapped.

    Returns:
        Module names, inner ones first.

    Raises:
        TypeError: A policy of another form.
        ValueError: A class that no submodule has.
    """
    if isinstance(policy, str | type):
        policy = (policy,)
    if isinstance(policy, WrapPolicy):
        return policy.select(root)
    if isinstance(policy, set | frozenset | list | tuple) and all(
        isinstance(c, str) or (isinstance(c, type) and issubclass(c, nn.Module))
        for c in policy
    ):
        return transformer_auto_wrap_policy(policy).select(root)
    if not callable(policy):
        raise TypeError(
            f"auto_wrap_policy={policy!r}: give layer classes or their names, "
            f"size_based_auto_wrap_policy(...), or a callable of torch's FSDP form"
        )
    call = _torch_form(policy)
    chosen: list[str] = []
    _walk(
        root,
        "",
        lambda module, num: call(module, False, num),
        chosen,
        lambda module: call(module, True, _num_params(module)),
    )
    return tuple(chosen)


def _torch_form(policy: Callable[..., Any]) -> Callable[[nn.Module, bool, int], bool]:
    """Torch passes the size as `nonwrapped_numel`, torch_xla as `unwrapped_params`."""
    names = inspect.signature(policy).parameters
    size = "unwrapped_params" if "unwrapped_params" in names else "nonwrapped_numel"
    keyword = size in names or any(p.kind == p.VAR_KEYWORD for p in names.values())

    def call(module: nn.Module, recurse: bool, num: int) -> bool:
        if keyword:
            return bool(policy(module=module, recurse=recurse, **{size: num}))
        return bool(policy(module, recurse, num))

    return call


def _walk(
    module: nn.Module,
    name: str,
    wants: Callable[[nn.Module, int], bool],
    chosen: list[str],
    enters: Callable[[nn.Module], bool] = lambda _m: True,
) -> int:
    """Choose below a module; returns its parameters that no chosen module holds."""
    if not enters(module):
        return _num_params(module)
    free = sum(p.numel() for p in module.parameters(recurse=False))
    for key, child in module._modules.items():
        if child is not None:
            path = f"{name}.{key}" if name else key
            free += _walk(child, path, wants, chosen, enters)
    # A list or dict of modules has no forward, so its output cannot be split.
    callable_ = type(module).forward is not nn.Module.forward
    if name and callable_ and wants(module, free):
        chosen.append(name)
        return 0
    return free


def _num_params(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def _is(module: nn.Module, wanted: LayerClass) -> bool:
    if isinstance(wanted, str):
        return any(c.__name__ == wanted for c in type(module).__mro__)
    return isinstance(module, wanted)
