"""How specs and splits read in a sentence."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from profiling._step.ops import StepOp
from spmd._meshes.spec import Spec, entry_axes
from spmd._program.value import Value, layer_dims

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def spec_code(spec: Spec) -> str:
    """A spec as Python.

    Args:
        spec: A spec.

    Returns:
        Source.

    Example:
        >>> spec_code((("fsdp", "replica"), None)), spec_code(("fsdp",))
        ('(("fsdp", "replica"), None)', '("fsdp",)')
    """
    return repr(tuple(spec)).replace("'", '"')


def plan_spec(name: str, spec: Spec) -> Spec:
    """The spec that a plan gives a parameter: of one layer, where it is stacked.

    Args:
        name: The parameter's.
        spec: Its own.

    Returns:
        One entry per dim of the layer's.

    Example:
        >>> plan_spec("layers.*.up.weight", (None, "fsdp", None))
        ('fsdp', None)
    """
    return tuple(spec[d] for d in layer_dims(name, spec))


def over(axes: Sequence[str]) -> str:
    """Axes in a sentence.

    Args:
        axes: Names.

    Returns:
        Text.

    Example:
        >>> over(("fsdp", "replica"))
        'fsdp x replica'
    """
    return " x ".join(axes)


def split_words(value: Value) -> str:
    """How an input is split, in words.

    Args:
        value: The input.

    Returns:
        Text that goes on after its name.

    Example:
        >>> split_words(Value("w", "parameter", (8, 4), "float32", ("fsdp", None)))
        '[8, 4] is split on dim 0 over fsdp'
    """
    parts = [
        f"dim {d} over {over(entry_axes(entry))}"
        for d, entry in enumerate(value.spec or ())
        if entry_axes(entry)
    ]
    shape = list(value.shape)
    if not parts:
        return f"{shape} is whole on every device"
    return f"{shape} is split on {' and '.join(parts)}"


def pattern_of(name: str) -> str:
    """A name with its numbers as ``*``.

    Args:
        name: Of a module or parameter.

    Returns:
        A pattern as `spmd.Plan` has them.

    Example:
        >>> pattern_of("layers.11.ffn.up")
        'layers.*.ffn.up'
    """
    return _NUMBER.sub("*", name)


def parameter_code(name: str) -> str:
    """Python that gives a parameter of ``model``.

    Args:
        name: The parameter's.

    Returns:
        Source.

    Example:
        >>> parameter_code("up.weight"), parameter_code("layers.0.up.weight")
        ('model.up.weight', 'model.get_parameter("layers.0.up.weight")')
    """
    if all(part.isidentifier() for part in name.split(".")):
        return f"model.{name}"
    return f'model.get_parameter("{name}")'


def several(names: Iterable[str], *, most: int = 3) -> str:
    """Names in a sentence, not too many of them.

    Args:
        names: The names.
        most: How many to say.

    Returns:
        Text.

    Example:
        >>> several(["a", "b", "c", "d", "e"])
        'a, b, c and 2 more'
    """
    found = list(dict.fromkeys(names))
    more = len(found) - most
    if more > 1:
        return f"{', '.join(found[:most])} and {more} more"
    return " and ".join([", ".join(found[:-1]), found[-1]] if found[1:] else found)


def assigned_name(op: StepOp) -> tuple[str, str]:
    """The variable that a source line puts an operation's result in, and the line.

    Args:
        op: The operation; its file is read if it is there.

    Returns:
        Both; empty where the line is no plain assignment of one call, or is not found.
    """
    try:
        lines = Path(op.file).read_text(encoding="utf-8").splitlines()
        line = lines[op.line - 1].strip()
        (statement,) = ast.parse(line).body
    except (OSError, ValueError, IndexError, SyntaxError):
        return "", ""
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        last = op.scope.module.rpartition(".")[2]
        if isinstance(target, ast.Name) and _calls(statement.value, last):
            return target.id, line
    return "", line


def annotated_name(op: StepOp) -> str:
    """The variable that an annotation is of, as its source line says.

    Args:
        op: The annotation; its file is read if it is there.

    Returns:
        The name; ``value`` where the line does not show one.
    """
    try:
        line = Path(op.file).read_text(encoding="utf-8").splitlines()[op.line - 1]
        nodes = list(ast.walk(ast.parse(line.strip())))
    except (OSError, ValueError, IndexError, SyntaxError):
        return "value"
    for node in nodes:
        if isinstance(node, ast.Call) and node.args:
            name = ast.unparse(node.func).rpartition(".")[2]
            if name == "mark_sharding" and isinstance(node.args[0], ast.Name):
                return node.args[0].id
    return "value"


def _calls(value: ast.expr, name: str) -> bool:
    """Whether it is one call of what has this name, with arguments that call nothing.

    Without a name: any expression that calls nothing.
    """
    if not name:
        return not any(isinstance(n, ast.Call) for n in ast.walk(value))
    if not isinstance(value, ast.Call):
        return False
    called = value.func
    own = called.attr if isinstance(called, ast.Attribute) else ""
    inside = [called, *value.args, *(k.value for k in value.keywords)]
    return own == name and not any(
        isinstance(n, ast.Call) for a in inside for n in ast.walk(a)
    )
