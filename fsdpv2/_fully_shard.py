"""`fully_shard`: what FSDP2 users call, in place."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from torch import nn

import spmd
from fsdpv2._precision import as_precision, to_master
from fsdpv2._remat import Remat, check_remat
from fsdpv2._specs import AXIS, MIN_SHARD_ELEMENTS, batch_axes
from fsdpv2._unit import Unit, make_unit, unit_of
from spmd import Mesh
from spmd._plans.module import tie_again, tied_names, to_device

M = TypeVar("M", bound=nn.Module)
_NAMES = {1: (AXIS,), 2: ("replica", AXIS)}


def fully_shard(
    module: M,
    *,
    mesh: Any = None,
    reshard_after_forward: bool | int = True,
    shard_placement_fn: Callable[[nn.Parameter], Any] | None = None,
    mp_policy: Any = None,
    offload_policy: Any = None,
    ignored_params: Iterable[nn.Parameter] | None = None,
    min_shard_elements: int = MIN_SHARD_ELEMENTS,
    remat: Remat = "none",
) -> M:
    """Shard a module in place, with the signature of torch's FSDP2.

    Call it on the layers, then on the model. The module keeps its identity and gets a
    class of its own, as with FSDP2. It is on the devices afterwards, unless on meta.

    Args:
        module: The module.
        mesh: With an axis ``fsdp``; of a mesh without one the last axis splits the
            parameters, and the first of two replicates them. Default: one axis over all
            devices.
        reshard_after_forward: Accepted: how long a gathered weight is kept is the
            compiler's choice, but with `remat` it is gathered again.
        shard_placement_fn: Gives a parameter's `Shard(dim)`, or None for the default.
        mp_policy: A `MixedPrecision`, a dtype, or torch's `MixedPrecisionPolicy`.
        offload_policy: Only torch's default, which offloads nothing.
        ignored_params: Stay whole on every device.
        min_shard_elements: Parameters with fewer elements stay whole.
        remat: As for `FSDPv2`, for this module.

    Returns:
        The same module.

    Raises:
        TypeError: Not a module.
        ValueError: A module that is sharded already, a mesh that does not do, an
            unknown `remat`, or an offload policy.

    Example::

        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
    """
    _check(module, offload_policy)
    check_remat(remat)
    spmd.init()
    mesh = _mesh(mesh)
    precision = as_precision(mp_policy)
    to_master(module, precision)
    if all(p.device.type != "meta" for p in module.parameters()):
        to_device(module)
    for parameter in ignored_params or ():
        spmd.replicate(parameter, mesh)
    for name, parameter in module.named_parameters():
        placement = shard_placement_fn(parameter) if shard_placement_fn else None
        if placement is not None and spmd.get_sharding(parameter) is None:
            spec: list[str | None] = [None] * parameter.ndim
            spec[placement.dim] = AXIS
            spmd.mark_sharding(parameter, mesh, spec, grad=spec, name=name)
    kind = type(module)
    sharded: Any = type(f"FSDP{kind.__name__}", (_FullySharded, kind), {})
    module.__class__ = sharded
    unit = Unit(
        mesh=mesh,
        batch_axes=batch_axes(mesh, None, axis=AXIS),
        shard_output=None,
        min_elements=min_shard_elements,
        remat=remat,
        precision=precision,
    )
    make_unit(module, unit)
    return module


class _FullySharded(nn.Module):
    """What a sharded module does before and after its own class."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        unit = unit_of(self)
        assert unit is not None
        return unit.run(self, super().forward, args, kwargs)

    def set_requires_gradient_sync(self, *_args: Any, **_kwargs: Any) -> None:
        """Accepted: the compiler decides where gradients are reduced."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        ties = tied_names(self)
        super()._apply(fn, recurse)
        tie_again(self, ties)
        self._annotate()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._annotate()

    def _annotate(self) -> None:
        unit = unit_of(self)
        if unit is not None:
            unit.annotate(self)


def _mesh(mesh: Any) -> Mesh:
    if mesh is None:
        return Mesh({AXIS: -1})
    found = spmd.mesh_from(mesh)
    names = _NAMES.get(len(found.axis_names))
    if AXIS in found.axis_names or names is None:
        return found
    return Mesh(found.devices.reshape(-1).tolist(), found.devices.shape, names)


def _check(module: Any, offload_policy: Any) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"fully_shard: a torch.nn.Module is needed, got {type(module).__name__}"
        )
    if unit_of(module) is not None:
        raise ValueError(
            f"fully_shard: this {type(module).__name__} is sharded already; call it "
            f"once for each module, layers first"
        )
    if offload_policy is not None and "CPU" in type(offload_policy).__name__:
        raise ValueError(
            f"fully_shard: offload_policy={offload_policy!r}; parameters stay on the "
            f"devices: leave it out"
        )
    if type(module).forward is nn.Module.forward:
        raise ValueError(
            f"fully_shard: {type(module).__name__} has no forward; shard the modules "
            f"inside it, or the one that calls them"
        )
