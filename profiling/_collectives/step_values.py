"""`StepValues`: what a module's inputs and outputs are to the step.

A `Program` says so. Of a dump without one, names come from the parameters' metadata and
roles from data flow: an input that becomes an output of its own shape, element by
element, is state.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from profiling._collectives.flow import Value
from profiling._collectives.origins import (
    Leaf,
    Origins,
    input_leaves,
    inputs_of,
    leaf_shape,
    output_leaves,
)
from profiling._hlo.module import Instruction, Module
from spmd._program.program import Program

Kind: TypeAlias = Literal["parameter", "optimizer", "gradient", "input"]
"""What matters of `spmd.Value`'s roles; a buffer counts as a parameter when it is read,
and for nothing when it is written."""


@dataclass(frozen=True, slots=True)
class Given:
    """An input.

    Attributes:
        name: The program's; else the module's.
        kind: What it is.
    """

    name: str
    kind: Kind


@dataclass(frozen=True, slots=True)
class StepValues:
    """Inputs and outputs of a step.

    Attributes:
        inputs: In the module's order.
        results: Outputs that training is about, each with the name of the parameter
            that it is the next value of, the gradient of, or the optimizer state of.
        outputs: Other arrays that it gives back.
    """

    inputs: tuple[Given, ...]
    results: tuple[tuple[str, Value], ...]
    outputs: tuple[Value, ...]

    @classmethod
    def of(
        cls, module: Module, program: Program | None, origins: Origins
    ) -> StepValues:
        """Find out what inputs and outputs are.

        Args:
            module: The final module of one device.
            program: What it was compiled from; None if nobody has it.
            origins: Of the module.

        Returns:
            The values.

        Raises:
            ValueError: The module has other inputs or outputs than the program.
        """
        if program is None:
            return _guessed(module, origins)
        given, made = len(input_leaves(module)), output_leaves(module)
        if (given, len(made)) != (len(program.inputs), len(program.outputs)):
            raise ValueError(
                f"module {module.name!r} takes {given} arrays and gives {len(made)}, "
                f"program {program.name!r} takes {len(program.inputs)} and gives "
                f"{len(program.outputs)}; give the program that it was compiled from"
            )
        inputs = tuple(
            Given(value.name, _KINDS.get(value.role, "input"))
            for value in program.inputs
        )
        results, outputs = [], []
        for value, output in zip(program.outputs, made, strict=True):
            if value.role in _TRAINED:
                results.append((owner(value.name), output))
            else:
                outputs.append(output)
        return cls(inputs, tuple(results), tuple(outputs))


_KINDS: dict[str, Kind] = {
    "parameter": "parameter",
    "buffer": "parameter",
    "optimizer": "optimizer",
    "gradient": "gradient",
}
_TRAINED = frozenset(("parameter", "optimizer", "gradient"))
_OWNER = re.compile(r"(?:optimizer\.[^\[]*|grad)\[(.*)\]")
_LIKE_A_WEIGHT = re.compile(r"weight|bias|kernel|params\b", re.IGNORECASE)


def owner(name: str) -> str:
    """The parameter that a name is about.

    Args:
        name: A program's name of a parameter, gradient or optimizer state.

    Returns:
        The parameter's name.

    Example:
        >>> owner("optimizer.exp_avg[layers.0.weight]"), owner("grad[w]"), owner("w")
        ('layers.0.weight', 'w', 'w')
    """
    match = _OWNER.fullmatch(name)
    return match[1] if match else name


def _guessed(module: Module, origins: Origins) -> StepValues:
    leaves = input_leaves(module)
    names = [_name(leaf, parameter) for leaf, parameter in leaves]
    shapes = [leaf_shape(p.shape, leaf[1]) for leaf, p in leaves]
    made = output_leaves(module)
    aliases = {a.output: (a.parameter, a.index) for a in module.aliases}
    number = {leaf: n for n, (leaf, _) in enumerate(leaves)}
    goes_in: dict[Value, set[int]] = {}  # inputs of the same shape
    for value in made:
        shape = leaf_shape(value[0].shape, value[1])
        goes_in[value] = {
            n
            for n in inputs_of(origins, value)
            if (shapes[n].dims, shapes[n].dtype) == (shape.dims, shape.dtype)
            and shape.dims
        }
    updates: dict[Value, int] = {}
    for value in sorted(made, key=lambda v: len(goes_in[v])):
        alias = number.get(aliases.get(value[1], (-1, ())), -1)
        free = goes_in[value] - set(updates.values())
        if alias in goes_in[value]:
            updates[value] = alias
        elif free:
            updates[value] = min(free)
    read_by_others = {
        n for value, own in updates.items() for n in goes_in[value] if n != own
    }
    state = set(updates.values())
    # The optimizer's state goes into the parameter's next value, not the other way.
    optimizer = {n for n in state if n in read_by_others}
    inputs = tuple(
        Given(name, _kind(n, name, state, optimizer)) for n, name in enumerate(names)
    )
    parameter_of = {
        n: own
        for value, own in updates.items()
        for n in goes_in[value]
        if own not in optimizer
    }
    results = tuple(
        (names[parameter_of.get(n, n)], value) for value, n in updates.items()
    )
    return StepValues(inputs, results, tuple(v for v in made if v not in updates))


def _kind(n: int, name: str, state: set[int], optimizer: set[int]) -> Kind:
    if n in optimizer:
        return "optimizer"
    if n in state or _LIKE_A_WEIGHT.search(name):
        return "parameter"
    return "input"


def _name(leaf: Leaf, parameter: Instruction) -> str:
    inside = "".join(f"[{i}]" for i in leaf[1])
    return (parameter.metadata.op_name or parameter.name) + inside
