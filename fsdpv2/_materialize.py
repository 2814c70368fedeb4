"""`materialize`: first values for a model on meta, each piece made where it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
from torch import nn
from torch.nn.utils import stateless

from fsdpv2._recipe import Recipe, Recorder, StackedRecipe
from spmd._marking.mark import get_sharding
from spmd._marking.promise import promise
from spmd._meshes.spec import shard_shape, shard_slices
from spmd._plans.fulfil import watch
from spmd._plans.module import named_tensors, to_device
from spmd._runtime import init, runtime
from spmd._stacked.layers import layers_of, unstacked
from spmd._torch_xla import seam
from spmd._trace.stand_in import exchange

M = TypeVar("M", bound=nn.Module)
InitFn = Callable[[nn.Module], object]


def materialize(module: M, *, init_fn: InitFn | None = None, seed: int = 0) -> M:
    """Initialise a model that was built on meta, in place.

    No host holds the model: each process makes the pieces of its own devices, a tile at
    a time. With ``runtime="jax"`` they are made when `spmd.compile_step`'s first call
    asks for them, and the model stays on meta until then. The values depend on `seed`
    and the parameters' names only: on no mesh, host or order. They are not those that
    ``torch.manual_seed(seed)`` would give.

    Args:
        module: Built in `spmd.meta_parameters` or ``torch.device("meta")``, and wrapped
            or annotated since. Tensors that have values keep them.
        init_fn: Called with every submodule, inner ones first; what it does in place to
            their tensors is noted down and done later. Default: the model's own
            ``_init_weights`` (Hugging Face's), or each module's ``reset_parameters``.
        seed: What random numbers depend on; the same on every host.

    Returns:
        The same module.

    Raises:
        ValueError: Tensors that the initialiser gives no values, or values that are
            computed from other tensors on meta, as `orthogonal_` does.

    Example::

        with spmd.meta_parameters():
            model = LlamaForCausalLM(config)
        model = FSDPv2(model, mesh, auto_wrap_policy={"LlamaDecoderLayer"})
        fsdpv2.materialize(model)
    """
    init()
    with unstacked(module):
        made = _recipes(module, init_fn or _own_init(module), seed)
    recipes = {n: _joined(module, n, made) for n, _ in named_tensors(module)}
    recipes = {n: recipe for n, recipe in recipes.items() if recipe is not None}
    for name, parameter in module.named_parameters():
        if name in recipes:
            _give(parameter, recipes[name])
    for name, buffer in module.named_buffers():
        if name in recipes:
            _exchange(buffer, recipes[name].piece(_all(buffer)))
    if runtime() != "jax":
        return to_device(module)
    watch(module)
    return module


def _recipes(module: nn.Module, initialise: InitFn, seed: int) -> dict[str, Recipe]:
    """How each tensor on meta gets its values, as the initialiser has it."""
    named = dict(named_tensors(module))
    tensors = {n: t for n, t in named.items() if t.device.type == "meta"}
    # What has values keeps them: the initialiser writes to others instead.
    kept = {
        name: torch.empty_like(tensor, device="meta")
        for name, tensor in named.items()
        if name not in tensors
    }
    recorder = Recorder(tensors)
    instead = stateless._reparametrize_module(module, kept, tie_weights=True)
    with torch.no_grad(), instead, recorder:
        for child in _inner_first(module):
            initialise(child)
    recipes = dict(recorder.recipes(seed=seed))
    _check(tensors, recipes, recorder.computed)
    return recipes


def _joined(
    module: nn.Module, name: str, made: dict[str, Recipe]
) -> Recipe | StackedRecipe | None:
    """The recipe of one tensor, of its layers where it is stacked."""
    names = layers_of(module, name)
    if names is None or names[0] not in made:
        return made.get(name)
    return StackedRecipe(tuple(made[n] for n in names))


def _own_init(module: nn.Module) -> InitFn:
    own = getattr(_inside(module), "_init_weights", None)
    if callable(own):
        return own

    def reset(child: nn.Module) -> None:
        for name in ("reset_parameters", "_reset_parameters"):
            method = getattr(child, name, None)
            if callable(method):
                method()
                return

    return reset


def _inner_first(module: nn.Module) -> Iterator[nn.Module]:
    """Every module, without its wrapper."""
    for child in reversed(list(module.modules())):
        yield _inside(child)


def _inside(module: nn.Module) -> nn.Module:
    return module.__dict__.get("_wrapped", module)


def _check(
    tensors: dict[str, torch.Tensor], recipes: dict[str, Recipe], computed: set[str]
) -> None:
    missing = [name for name in tensors if name not in recipes]
    if not missing:
        return
    shown = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
    if computed:
        raise ValueError(
            f"materialize: {shown} get values that are computed from other tensors, "
            f"which are on meta here (orthogonal_ does so); initialise them with "
            f"elementwise operations in init_fn, or build the model on the CPU"
        )
    raise ValueError(
        f"materialize: {len(missing)} tensors get no values: {shown}; give an init_fn "
        f"that initialises them in place. Buffers keep their values where the model is "
        f"built in spmd.meta_parameters() instead of torch.device('meta')"
    )


def _give(parameter: nn.Parameter, recipe: Recipe | StackedRecipe) -> None:
    if runtime() == "jax":
        promise(parameter, recipe.piece)
        return
    known = get_sharding(parameter)
    if known is None:
        _exchange(parameter, recipe.piece(_all(parameter)).to(seam.device()))
        return
    shape, mesh, spec = tuple(parameter.shape), known.mesh, known.spec
    padded = shard_shape(shape, mesh, spec)
    pieces: dict[tuple[tuple[int, int], ...], torch.Tensor] = {}
    shards = []
    for device in seam.local_devices():
        index = shard_slices(shape, mesh, spec, device=device)
        key = tuple((s.start, max(s.start, s.stop)) for s in index)
        if key not in pieces:  # replicas share one
            piece = recipe.piece(tuple(slice(*ends) for ends in key))
            pieces[key] = _padded(piece, padded)
        shards.append(pieces[key])
    value = seam.from_local_shards(shards, mesh, spec, shape=shape)
    _exchange(parameter, value)


def _padded(piece: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    if tuple(piece.shape) == shape:
        return piece
    whole = torch.zeros(shape, dtype=piece.dtype)
    whole[tuple(slice(0, n) for n in piece.shape)] = piece
    return whole


def _exchange(tensor: torch.Tensor, value: torch.Tensor) -> None:
    value.requires_grad_(tensor.requires_grad)
    exchange(tensor, value)


def _all(tensor: torch.Tensor) -> tuple[slice, ...]:
    return tuple(slice(0, d) for d in tensor.shape)
