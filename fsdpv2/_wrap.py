"""`FSDPv2`: the wrapper."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

import spmd
from fsdpv2._keeper import unreduced
from fsdpv2._microbatches import microbatches, num_rows
from fsdpv2._nest import repeated_layers, wrap_children
from fsdpv2._precision import as_precision, to_master
from fsdpv2._remat import Remat, check_remat
from fsdpv2._scan import scan_lists
from fsdpv2._specs import AXIS, MIN_SHARD_ELEMENTS, batch_axes
from fsdpv2._unit import ShardOutput, Unit, make_unit, unit_of
from fsdpv2._unreduced import Unreduced
from spmd import Mesh, Plan
from spmd._plans.module import tie_again, tied_names, to_device

_SHARED = (
    "_parameters",
    "_buffers",
    "_modules",
    "_non_persistent_buffers_set",
    "_state_dict_hooks",
    "_state_dict_pre_hooks",
    "_load_state_dict_pre_hooks",
    "_load_state_dict_post_hooks",
    "_version",
    "training",
)


class FSDPv2(nn.Module):
    """Fully sharded data parallelism by annotation.

    Parameters, gradients and optimizer state are split over the mesh axis ``fsdp``, the
    batch over every data axis. The compiler gathers a weight where it is used and
    scatters its gradient. The wrapper shares its module's parameters, buffers and
    children, so names in ``state_dict()`` and ``named_parameters()`` are the unwrapped
    model's (with `scan_layers` those in ``state_dict()``).

    A superset of torch_xla's ``SpmdFullyShardedDataParallel``: change the import.

    Args:
        module: On the CPU (it is moved), on the XLA device, or on meta (it is only
            annotated). Parameters that already have a spec keep it.
        mesh: Must have an axis ``fsdp``. Default: one ``fsdp`` axis over all devices.
        shard_output: Called with ``(output, mesh)`` instead of the default, which
            splits every batch-major tensor in the output on its leading dim.
        auto_wrap_policy: Submodules that get a wrapper of their own: layer classes or
            their names, `size_based_auto_wrap_policy(...)`, or a callable of torch's
            FSDP form.
        auto_wrapper_callable: Called instead of `FSDPv2` for those submodules.
        extra_data_axis: A further axis that splits the batch, besides those named like
            one (``replica``, ``data``, ``dcn``, ``fsdp``).
        min_shard_elements: Parameters with fewer elements stay whole
            (default `MIN_SHARD_ELEMENTS` = 4096).
        remat: What is computed again in the backward pass instead of kept:
            ``"none"``, ``"full"`` (all inside a layer), ``"selective"`` (all but
            products with a weight), or a policy of
            `torch.utils.checkpoint.create_selective_checkpoint_contexts`. The layers
            are those of `auto_wrap_policy`; without one, those that the module repeats,
            which get wrappers of their own; else the module as a whole.
        scan_layers: Run repeated layers as one loop of the compiler, and hold their
            parameters stacked, ``layers.*.up.weight`` [layers, ...], so that neither a
            program nor its compile time grows with their number. What enters a layer is
            kept and the rest is computed again, as with ``remat="full"``. An optimizer
            has to be made afterwards; it sees one parameter for all layers.
        mixed_precision: A `MixedPrecision`, a dtype to compute in, or torch's policy.
        plan: A `spmd.Plan` for what is split in another way than over ``fsdp`` alone,
            such as `spmd.auto_plan` makes it; applied by `spmd.shard_module` first.

    Raises:
        TypeError: Not a module, or a policy of an unknown form.
        ValueError: A module wrapped twice or without a forward, a mesh without an
            ``fsdp`` axis or of another size than the machine, an unknown
            `extra_data_axis` or `remat`, a layer class that matches nothing, an
            `auto_wrapper_callable` that does not take what is asked for, or layers that
            cannot be scanned; a `plan` that does not fit.
        RuntimeError: SPMD mode cannot be switched on any more, see `spmd.init`.
    """

    _awaited: int = 0
    """Microbatches still to come whose gradients are reduced with the others'."""
    _unreduced: Unreduced | None = None
    """Where their gradients are added up; from the last one on, the graph has it."""

    def __init__(
        self,
        module: nn.Module,
        mesh: Mesh | None = None,
        *,
        shard_output: ShardOutput | None = None,
        auto_wrap_policy: Any = None,
        auto_wrapper_callable: Callable[..., nn.Module] | None = None,
        extra_data_axis: str | None = None,
        min_shard_elements: int = MIN_SHARD_ELEMENTS,
        remat: Remat = "none",
        scan_layers: bool = False,
        mixed_precision: Any = None,
        plan: Plan | None = None,
    ) -> None:
        _check_module(module, auto_wrap_policy)
        check_remat(remat, scan_layers=scan_layers)
        precision = as_precision(mixed_precision)
        spmd.init()
        mesh = _choose_mesh(mesh)
        axes = batch_axes(mesh, extra_data_axis, axis=AXIS)
        super().__init__()
        to_master(module, precision)
        if not _on_meta(module):
            to_device(module)
        if plan is not None:
            spmd.shard_module(module, mesh, plan)
        layers = repeated_layers(module)
        if auto_wrap_policy is None and (remat != "none" or scan_layers):
            auto_wrap_policy = layers or None
        if scan_layers:
            remat = "none"  # it is the loop's
        if auto_wrap_policy is not None:
            options = {
                "mesh": mesh,
                "shard_output": shard_output,
                "extra_data_axis": extra_data_axis,
                "min_shard_elements": min_shard_elements,
                "remat": remat,
                "mixed_precision": precision,
            }
            wrapper = auto_wrapper_callable or FSDPv2
            wrap_children(module, auto_wrap_policy, wrapper, options=options)
            remat = "none"  # it is the layers'
        for name in _SHARED:
            self.__dict__[name] = getattr(module, name)
        # Straight into __dict__: as a child, the module would prefix every name.
        self.__dict__["_wrapped"] = module
        unit = Unit(
            mesh=mesh,
            batch_axes=axes,
            shard_output=shard_output,
            min_elements=min_shard_elements,
            remat=remat,
            precision=precision,
        )
        make_unit(self, unit)
        if scan_layers:
            self._scan(layers)

    @property
    def module(self) -> nn.Module:
        """The wrapped module."""
        return self.__dict__["_wrapped"]

    @property
    def mesh(self) -> Mesh:
        """The mesh parameters and batch are split over."""
        return self._unit.mesh

    @property
    def batch_axes(self) -> tuple[str, ...]:
        """Axes that split the batch, outermost first."""
        return self._unit.batch_axes

    @property
    def _unit(self) -> Unit:
        unit = unit_of(self)
        assert unit is not None
        return unit

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the module and split its output.

        Args:
            *args: For the module.
            **kwargs: For the module.

        Returns:
            What the module returns, same type, batch-major tensors annotated.

        Raises:
            ValueError: Parameters on meta or the CPU, an input on the CPU, or a batch
                smaller than the number of devices that split it.
        """
        with self._microbatch():
            return self._unit.run(self, self.module, args, kwargs)

    def _microbatch(self) -> contextlib.AbstractContextManager[None]:
        """What the forward of a microbatch runs in; a nested unit does not count."""
        if not self._awaited or not torch.is_grad_enabled():
            return contextlib.nullcontext()
        into = self._unreduced
        self._awaited -= 1
        if not self._awaited:
            self._unreduced = None
        return unreduced(into)

    def _scan(self, layers: tuple[type[nn.Module], ...]) -> None:
        self._unit.scanned = tuple(scan_lists(self, layers))
        for one in self._unit.scanned:
            for layer in one.children():
                inner = unit_of(layer)
                if inner is not None:
                    inner.is_scanned = True
        for module in self.modules():  # their parameters are others now
            unit = unit_of(module)
            if unit is not None:
                unit.specs.clear()
                unit.annotate(module)

    def clip_grad_norm_(self, max_norm: float, norm_type: float = 2.0) -> torch.Tensor:
        """Scale gradients so that their norm over all parameters is at most this.

        Args:
            max_norm: Largest norm allowed.
            norm_type: Which p-norm.

        Returns:
            The norm before scaling, a scalar on the device.
        """
        return nn.utils.clip_grad_norm_(
            self.parameters(), max_norm, norm_type, foreach=False
        )

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate gradients, as with torch's FSDP.

        Gradients add up until they are zeroed, inside and outside this context: the
        compiler decides where they are reduced, so there is nothing to switch off. See
        `microbatches` for how to have them reduced once.

        Yields:
            Nothing.
        """
        yield

    def microbatches(
        self, batch: Any, num_microbatches: int, *, reduce_once: bool = True
    ) -> list[Any]:
        """Split a batch into several, each over all devices, to accumulate gradients.

        Call the model and ``backward()`` for each, and the optimizer once, in one step
        given to `spmd.compile_step`. Gradients are then added up where they are made
        and reduced once, at the end. Until then each device has them whole, in the
        parameters' dtype; its columns of a table of more rows than it has tokens, its
        own experts. Those of weights used in other ways are left to the compiler.

        Args:
            batch: Nested containers of tensors [batch, ...], split over `batch_axes`.
            num_microbatches: How many.
            reduce_once: If not, a gradient is reduced where it is made. Compilers for
                GPUs and TPUs still join such reductions where ``fsdp`` alone splits the
                batch, TPUs' also with copies (an axis ``replica``): inside one slice
                they then scatter, where the sum at the end is a whole all-reduce.

        Returns:
            Batches of the same form: each device splits the rows that it has.

        Raises:
            ValueError: Rows that do not divide.

        Example::

            for micro in model.microbatches(batch, 4):
                (model(**micro).loss / 4).backward()
            optimizer.step()
        """
        found = microbatches(batch, num_microbatches, self.mesh, axes=self.batch_axes)
        rows = num_rows(found[0]) if reduce_once and num_microbatches > 1 else 0
        self._awaited = num_microbatches if rows else 0
        self._unreduced = None
        if rows:
            self._unreduced = Unreduced(
                self.mesh, self.batch_axes, rows=rows, num_passes=num_microbatches
            )
        return found

    def train(self, mode: bool = True) -> FSDPv2:
        """Set training mode on the module and everything below.

        Args:
            mode: Training, or evaluation.

        Returns:
            Itself.
        """
        self.module.train(mode)
        self.training = mode
        return self

    def load_state_dict(
        self, state_dict: Mapping[str, Any], strict: bool = True, assign: bool = False
    ) -> Any:
        """Load the module's state; keys are the unwrapped model's.

        Args:
            state_dict: From the wrapped or the unwrapped model, on any device.
            strict: Refuse missing and unexpected keys.
            assign: Take the tensors themselves; they are moved and split.

        Returns:
            Missing and unexpected keys, as `torch.nn.Module.load_state_dict` does.

        Raises:
            RuntimeError: Keys or shapes that do not match.
        """
        result = super().load_state_dict(state_dict, strict=strict, assign=assign)
        if assign:
            to_device(self)
            self._unit.annotate(self)
        return result

    def _apply(self, fn: Any, recurse: bool = True) -> FSDPv2:
        """Keep ties and specs through `to`, `bfloat16`, `to_empty` and the like."""
        ties = tied_names(self)
        super()._apply(fn, recurse)
        tie_again(self, ties)
        self._unit.annotate(self)
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Split the parameters of a copy, and of a model that was read from a file."""
        super().__setstate__(state)
        self._unit.annotate(self)

    def __getattr__(self, name: str) -> Any:
        """Look up what the wrapper lacks on the module."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            if "_wrapped" not in self.__dict__:
                raise
            return getattr(self.__dict__["_wrapped"], name)

    def __getitem__(self, key: Any) -> Any:
        """Index the module, where it is a `nn.Sequential`."""
        return self.module[key]  # pyright: ignore[reportIndexIssue]

    def __len__(self) -> int:
        """Length of the module, where it has one."""
        return len(self.module)  # pyright: ignore[reportArgumentType]

    def __bool__(self) -> bool:
        """Always true: `if model` must not ask for a length."""
        return True

    def _get_name(self) -> str:
        return f"FSDPv2[{type(self.module).__name__}, {self.mesh!r}]"

    def extra_repr(self) -> str:
        """What the module says of itself."""
        return self.module.extra_repr()

    def _save_to_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.module._save_to_state_dict(*args, **kwargs)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self.module._load_from_state_dict(*args, **kwargs)


def _choose_mesh(mesh: Any) -> Mesh:
    """The given mesh, torch_xla's global one, or one axis over all devices."""
    if mesh is None:
        from spmd._torch_xla import seam

        mesh = seam.global_mesh()
    return Mesh({AXIS: -1}) if mesh is None else spmd.mesh_from(mesh)


def _on_meta(module: nn.Module) -> bool:
    return any(p.device.type == "meta" for p in module.parameters())


def _check_module(module: Any, policy: Any) -> None:
    if not isinstance(module, nn.Module):
        raise TypeError(f"FSDPv2 wraps a torch.nn.Module, got {type(module).__name__}")
    kind = type(module).__name__
    if isinstance(module, FSDPv2):
        raise ValueError(
            f"FSDPv2: this {type(module.module).__name__} is already wrapped; wrap "
            f"inner modules before outer ones, each once"
        )
    if type(module).forward is nn.Module.forward:
        raise ValueError(
            f"FSDPv2: {kind} has no forward, so its output cannot be split; wrap the "
            f"modules inside it, or the one that calls them"
        )
    if policy is None:
        return
    for name, child in module.named_modules():
        if isinstance(child, FSDPv2):
            raise ValueError(
                f"FSDPv2: {name} is already wrapped; either wrap inner modules by hand "
                f"or give an auto_wrap_policy, not both"
            )
