"""StableHLO modules: made from torch_xla's HLO, annotated, and looked into.

Uses jax's public extension points only (`jax.extend.mlir`).
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias, cast

import jax
from jax.extend import mlir
from jax.extend.mlir import ir
from jax.extend.mlir.dialects import stablehlo
from jax.extend.mlir.passmanager import PassManager
from jax.interpreters.mlir import make_ir_context

from spmd._meshes.sharding import HloSharding
from spmd._program.program import MLIR_MAGIC

Signature: TypeAlias = tuple[tuple[tuple[int, ...], str], ...]
"""Shape and torch's short dtype name of each argument or result."""
Shardings: TypeAlias = Sequence[HloSharding | None]

_SHARDING, _DONATED = "mhlo.sharding", "tf.aliasing_output"
_ALIAS = "mhlo.input_output_alias"

_DTYPES = {
    "i1": "bool",
    "i8": "int8",
    "i16": "int16",
    "i32": "int32",
    "i64": "int64",
    "ui8": "uint8",
    "ui16": "uint16",
    "ui32": "uint32",
    "ui64": "uint64",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "bf16": "bfloat16",
    "f8E4M3FN": "float8_e4m3fn",
    "f8E5M2": "float8_e5m2",
    "complex<f32>": "complex64",
    "complex<f64>": "complex128",
}


@contextmanager
def opened(module: bytes) -> Iterator[Any]:
    """Parse a module; it lives inside the context.

    Args:
        module: StableHLO portable artifact, or MLIR text.

    Yields:
        MLIR's module.

    Raises:
        ValueError: Bytes that are no such module.
    """
    with make_ir_context() as context, ir.Location.unknown():
        try:
            if module.startswith(MLIR_MAGIC):
                parsed = mlir.deserialize_portable_artifact(module, context)
            else:
                parsed = ir.Module.parse(module.decode())
        except (jax.errors.JaxRuntimeError, ir.MLIRError, ValueError) as error:
            raise ValueError(
                f"no StableHLO module that jax {jax.__version__} reads ({len(module)} "
                f"bytes): {error}"
            ) from error
        yield parsed


def hlo_to_stablehlo(
    hlo: bytes,
    *,
    inputs: Shardings | None = None,
    outputs: Shardings | None = None,
    donated: Mapping[int, int] | None = None,
    name: str | None = None,
) -> bytes:
    """Turn an HLO module into a portable StableHLO artifact.

    Kept: shardings of parameters, results and ops, input-output aliases, `op_name` and
    source lines. Lost: `buffer_donor`, which torch_xla does not write at this stage
    (say it through `donated`).

    Args:
        hlo: Serialised `HloModuleProto`.
        inputs: See `annotate`.
        outputs: See `annotate`.
        donated: See `annotate`.
        name: Name of the module.

    Returns:
        MLIR bytecode.

    Raises:
        ValueError: Bytes that are no HLO module; see also `annotate`.
    """
    with _converted(hlo) as module:
        annotate(module, inputs=inputs, outputs=outputs, donated=donated)
        if name is not None:
            module.operation.attributes["sym_name"] = ir.StringAttr.get(name)
        return _serialized(module)


def hlo_to_artifact(hlo: bytes) -> tuple[bytes, str]:
    """Turn an HLO module into a portable artifact, and say what identifies it.

    Args:
        hlo: Serialised `HloModuleProto`.

    Returns:
        MLIR bytecode; and sha256 (hex) of the module without its name and without
        `op_name` and source lines, which is the same wherever the source is.

    Raises:
        ValueError: Bytes that are no HLO module.
    """
    with _converted(hlo) as module:
        artifact = _serialized(module)
        PassManager.parse("builtin.module(strip-debuginfo)").run(module.operation)
        module.operation.attributes["sym_name"] = ir.StringAttr.get("")
        stripped = io.BytesIO()
        module.operation.write_bytecode(stripped)
        return artifact, hashlib.sha256(stripped.getbuffer()).hexdigest()


@contextmanager
def _converted(hlo: bytes) -> Iterator[Any]:
    try:
        bytecode = mlir.hlo_to_stablehlo(hlo)
    except jax.errors.JaxRuntimeError as error:
        raise ValueError(f"no HLO module ({len(hlo)} bytes): {error}") from error
    with make_ir_context(), ir.Location.unknown():
        yield ir.Module.parse(bytecode)


def as_artifact(text: str) -> bytes:
    """Turn MLIR text, as `jax.jit(f).lower(...).as_text()` gives, into an artifact.

    Args:
        text: A StableHLO module.

    Returns:
        MLIR bytecode.

    Raises:
        ValueError: Text that is no such module.
    """
    with opened(text.encode()) as module:
        return _serialized(module)


def edited(module: bytes, edit: Callable[[Any], None]) -> bytes:
    """A module after a change of its step.

    Args:
        module: StableHLO portable artifact, or MLIR text.
        edit: Changes function ``main``, which it is given.

    Returns:
        MLIR bytecode.

    Raises:
        ValueError: Bytes that are no such module.
    """
    with opened(module) as parsed:
        edit(main_of(parsed))
        return _serialized(parsed)


def _serialized(module: Any) -> bytes:
    version = stablehlo.get_version_from_compatibility_requirement(
        stablehlo.StablehloCompatibilityRequirement.WEEK_12
    )
    return mlir.serialize_portable_artifact(module, version)


def signature(module: bytes) -> tuple[Signature, Signature]:
    """Shapes and dtypes of a module's arguments and results.

    Args:
        module: StableHLO portable artifact, or MLIR text.

    Returns:
        Arguments, and results.

    Raises:
        ValueError: Bytes that are no such module.
    """
    with opened(module) as parsed:
        return signature_of(parsed)


def signature_of(module: Any) -> tuple[Signature, Signature]:
    """The same for a module that is open.

    Args:
        module: From `opened`.

    Returns:
        Arguments, and results.

    Raises:
        ValueError: A module without ``main``, or a dtype torch does not have.
    """
    kind = main_of(module).type
    return _types(kind.inputs), _types(kind.results)


def module_text(module: bytes, *, locations: bool = False) -> str:
    """A module as people read it.

    Args:
        module: StableHLO portable artifact, or MLIR text.
        locations: Add `op_name` and source lines.

    Returns:
        MLIR text.

    Raises:
        ValueError: Bytes that are no such module.
    """
    with opened(module) as parsed:
        return cast(str, parsed.operation.get_asm(enable_debug_info=locations))


def annotate(
    module: Any,
    *,
    inputs: Shardings | None = None,
    outputs: Shardings | None = None,
    donated: Mapping[int, int] | None = None,
) -> None:
    """Write shardings and donations into an open module; None leaves what it says.

    Args:
        module: From `opened`.
        inputs: Sharding of each argument; None in it takes the argument's away.
        outputs: Sharding of each result; None in it: as the compiler likes.
        donated: Result index by the index of the argument that gives it its buffer.

    Raises:
        ValueError: Shardings of another number than arguments or results.
    """
    main = main_of(module)
    arguments = _attributes(main, "arg_attrs", len(main.type.inputs))
    results = _attributes(main, "res_attrs", len(main.type.results))
    _write_shardings("inputs", arguments, inputs)
    _write_shardings("outputs", results, outputs)
    if donated is not None:
        module.operation.attributes[_ALIAS] = ir.ArrayAttr.get([])
        index = ir.IntegerType.get_signless(32)
        for i, attributes in enumerate(arguments):
            attributes.pop(_DONATED, None)
            if i in donated:
                attributes[_DONATED] = ir.IntegerAttr.get(index, donated[i])
    for key, found in (("arg_attrs", arguments), ("res_attrs", results)):
        main.attributes[key] = ir.ArrayAttr.get([ir.DictAttr.get(a) for a in found])


def free_results(module: Any) -> list[bool]:
    """Which results have no sharding, so that the compiler may choose one.

    Args:
        module: From `opened`.

    Returns:
        One bool per result.
    """
    main = main_of(module)
    results = _attributes(main, "res_attrs", len(main.type.results))
    return [_SHARDING not in attributes for attributes in results]


def _write_shardings(
    what: str, found: list[dict[str, Any]], given: Shardings | None
) -> None:
    if given is None:
        return
    if len(given) != len(found):
        raise ValueError(
            f"{len(given)} shardings for the {len(found)} {what} of the module"
        )
    for sharding, attributes in zip(given, found, strict=True):
        attributes.pop(_SHARDING, None)
        if sharding is not None:
            attributes[_SHARDING] = ir.StringAttr.get(str(sharding))


def _attributes(main: Any, key: str, count: int) -> list[dict[str, Any]]:
    if key not in main.attributes:
        return [{} for _ in range(count)]
    return [{a.name: a.attr for a in given} for given in main.attributes[key]]


def main_of(module: Any) -> Any:
    """The function that is the step.

    Args:
        module: From `opened`.

    Returns:
        MLIR's function.

    Raises:
        ValueError: A module without ``main``.
    """
    for operation in module.body.operations:
        if operation.attributes["sym_name"].value == "main":
            return operation
    raise ValueError("the module has no function 'main'")


def _types(kinds: Sequence[Any]) -> Signature:
    found = []
    for kind in map(ir.RankedTensorType, kinds):
        element = str(kind.element_type)
        if element not in _DTYPES:
            raise ValueError(f"the module has a {kind}; torch has no {element}")
        found.append((tuple(kind.shape), _DTYPES[element]))
    return tuple(found)
