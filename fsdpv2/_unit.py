"""A unit: one module with what fully sharded data parallelism needs to know of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

import spmd
from fsdpv2._boundary import batch_size, check_inputs, shard_output
from fsdpv2._compute import UNIT, compute
from fsdpv2._heads import rows_stay
from fsdpv2._precision import MixedPrecision
from fsdpv2._remat import Remat
from fsdpv2._scan import scanning
from fsdpv2._specs import AXIS, parameter_spec
from spmd import Annotation, Mesh
from spmd._marking.mark import mark_sharding
from spmd._runtime import device_types

ShardOutput = Callable[[Any, Mesh], Any]


@dataclass(slots=True)
class Unit:
    """How one module's parameters are split, and how it is called.

    Attributes:
        mesh: The mesh.
        batch_axes: Axes that split the batch, outermost first.
        shard_output: Called instead of the default, or None.
        min_elements: Parameters with fewer elements stay whole.
        remat: What is computed again in the backward pass.
        precision: Dtypes, or None to compute in the parameters' own.
        specs: What each parameter has got, by name.
        is_nested: Whether another unit is around it.
        warned_inputs: Inputs warned of before.
        is_scanned: Whether it is a layer of a loop.
        scanned: Lists of layers inside it that run as loops.
    """

    mesh: Mesh
    batch_axes: tuple[str, ...]
    shard_output: ShardOutput | None
    min_elements: int
    remat: Remat = "none"
    precision: MixedPrecision | None = None
    specs: dict[str, Annotation] = field(default_factory=dict)
    is_nested: bool = False
    warned_inputs: set[str] = field(default_factory=set)
    is_scanned: bool = False
    scanned: tuple[nn.Module, ...] = ()

    def run(
        self,
        module: nn.Module,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Call the module and split its output.

        Args:
            module: Whose parameters these are.
            call: The module, or its own forward.
            args: For it.
            kwargs: For it.

        Returns:
            What it returns, batch-major tensors annotated.

        Raises:
            ValueError: Parameters on meta or the CPU, an input on the CPU, or a batch
                smaller than the number of devices that split it.
        """
        if not self.is_nested:
            self._check_parameters(module)
            check_inputs(
                args,
                kwargs,
                self.mesh,
                axes=self.batch_axes,
                warned=self.warned_inputs,
            )
        rows = batch_size(args, kwargs)
        known = None if self.is_nested else rows
        stay = rows_stay(self.mesh, self.batch_axes, rows=known)
        with scanning(self.scanned), stay:
            output = compute(
                module,
                call,
                args,
                kwargs,
                remat=self.remat,
                precision=self.precision,
                gather=self.is_scanned,
            )
        if self.shard_output is not None:
            replaced = self.shard_output(output, self.mesh)
            return output if replaced is None else replaced
        shard_output(
            output,
            self.mesh,
            axes=self.batch_axes,
            rows=rows,
            name=_name(module),
        )
        return output

    def _check_parameters(self, module: nn.Module) -> None:
        """Refuse what has no values here; annotate what was put in since."""
        complete = True
        for name, parameter in module.named_parameters():
            where = parameter.device.type
            if where == "meta":
                raise ValueError(
                    f"FSDPv2: parameter {name} {list(parameter.shape)} is on the meta "
                    f"device and has no values; call fsdpv2.materialize(model) to "
                    f"initialise it in place, or build the model on the CPU"
                )
            if where not in device_types():
                raise ValueError(
                    f"FSDPv2: parameter {name} {list(parameter.shape)} is on "
                    f"{parameter.device}; call spmd.to_device(model) to run it on the "
                    f"devices, or model.module(...) to run it there"
                )
            complete = complete and spmd.get_sharding(parameter) is not None
        if not complete:
            self.annotate(module)

    def annotate(self, module: nn.Module) -> None:
        """Give each parameter its spec, the one it had before if it had one.

        Args:
            module: Whose parameters these are.
        """
        tables = {id(m.weight) for m in module.modules() if isinstance(m, nn.Embedding)}
        for name, parameter in module.named_parameters():
            if parameter.device.type not in device_types():
                continue
            try:
                chosen = _existing(parameter, self.mesh) or self.specs.get(name)
            except ValueError:
                continue  # split through torch_xla as no spec on this mesh does
            if chosen is None:
                spec = parameter_spec(
                    parameter.shape,
                    self.mesh,
                    axis=AXIS,
                    min_elements=self.min_elements,
                    is_table=id(parameter) in tables,
                )
                chosen = Annotation(self.mesh, spec)
            self.specs[name] = chosen
            mark_sharding(
                parameter, chosen.mesh, chosen.spec, grad=chosen.spec, name=name
            )


def unit_of(module: nn.Module) -> Unit | None:
    """The unit that a module is.

    Args:
        module: Any module.

    Returns:
        None for one that is none.
    """
    return module.__dict__.get(UNIT)


def make_unit(module: nn.Module, unit: Unit) -> None:
    """Make a module a unit, and those below it nested ones; annotate its parameters.

    Args:
        module: Any module.
        unit: Its unit.
    """
    for child in module.modules():
        inner = unit_of(child)
        if inner is not None:
            inner.is_nested = True
    module.__dict__[UNIT] = unit
    unit.annotate(module)


def _name(module: nn.Module) -> str:
    return type(module.__dict__.get("_wrapped", module)).__name__


def _existing(parameter: nn.Parameter, mesh: Mesh) -> Annotation | None:
    """The annotation a parameter has, also one made through torch_xla."""
    known = spmd.get_sharding(parameter)
    if known is not None or parameter.device.type != "xla":
        return known
    found = spmd.get_sharding(parameter, mesh)
    return found if found is not None and any(found.spec) else None
