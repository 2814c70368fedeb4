"""`Program`: a traced step as data, without the library that traced it.

The module is StableHLO; around it stand the names, roles and specs of its inputs and
outputs, so that a reader, a compiler and a runner know what each of them is. Pure: a
program is built, saved and loaded without torch or jax.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from spmd._meshes.mesh import Mesh
from spmd._meshes.sharding import HloSharding, to_hlo
from spmd._meshes.spec import normalize_spec
from spmd._program.value import STATE_ROLES, STORED_AS, ModuleAnnotation, Value

if TYPE_CHECKING:
    from spmd._jax.runner import Runner

MLIR_MAGIC = b"ML\xefR"  # mlir.llvm.org/docs/BytecodeFormat


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Program:
    """A step: its StableHLO and what its inputs and outputs are.

    Args:
        module: StableHLO portable artifact (MLIR bytecode).
        mesh: Mesh that the specs are about; None for one device.
        inputs: In the order of the module's arguments.
        outputs: In the order of the module's results.
        constants: Values kept with the program, by input name: every input of role
            `constant`, and buffers with data. A dtype numpy lacks is given as its bits
            (bfloat16 as uint16).
        annotations: Specs on values inside the step.
        versions: Versions of what made it, by package; not part of its identity.
        name: What to call it; not part of its identity.
        module_digest: What stands for the module in the program's identity. `trace`
            gives sha256 (hex) of the module without source locations; default: of the
            module as it is.

    Raises:
        TypeError: A field of the wrong type.
        ValueError: Repeated names, a spec the mesh does not allow, an index that points
            nowhere or at another shape, a constant without or of another value.

    Example:
        >>> w = Value("w", "parameter", (8, 4), "float32", ("fsdp", None), donated_to=0)
        >>> new = Value("w", "parameter", (8, 4), "float32", ("fsdp", None), updates=0)
        >>> module = MLIR_MAGIC + b"..."  # from spmd.trace
        >>> Program(module, Mesh({"fsdp": 4}), (w,), (new,))
        Program('step', Mesh(fsdp=4), 1 input, 1 output, fingerprint fe47858c)
    """

    module: bytes
    mesh: Mesh | None
    inputs: tuple[Value, ...]
    outputs: tuple[Value, ...]
    constants: Mapping[str, np.ndarray] = field(default_factory=dict)
    annotations: tuple[ModuleAnnotation, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    name: str = "step"
    module_digest: str = ""
    fingerprint: str = field(init=False)
    """sha256 (hex) over the module and all that has a meaning."""

    def __post_init__(self) -> None:
        if not isinstance(self.module, bytes) or not self.module.startswith(MLIR_MAGIC):
            raise ValueError(
                f"program {self.name!r}: its module starts with "
                f"{bytes(self.module[:8])!r}, which is no MLIR bytecode"
            )
        put = object.__setattr__
        digest = self.module_digest or hashlib.sha256(self.module).hexdigest()
        put(self, "module_digest", digest)
        put(self, "inputs", tuple(_normalized(v, self.mesh) for v in self.inputs))
        put(self, "outputs", tuple(_normalized(v, self.mesh) for v in self.outputs))
        put(
            self, "annotations", tuple(_checked(a, self.mesh) for a in self.annotations)
        )
        _check_names("input", self.inputs)
        _check_names("output", self.outputs)
        _check_indices(self.inputs, self.outputs)
        put(self, "constants", _constants(self.constants, self.inputs))
        put(self, "versions", MappingProxyType(dict(self.versions)))
        put(self, "fingerprint", _fingerprint(self))

    @property
    def input_shardings(self) -> tuple[HloSharding, ...]:
        """XLA's sharding of each input."""
        return tuple(_sharding(v, self.mesh) or HloSharding() for v in self.inputs)

    @property
    def output_shardings(self) -> tuple[HloSharding | None, ...]:
        """XLA's sharding of each output; None where the compiler chooses.

        The next value of an input is always split as that input.
        """
        return tuple(
            _sharding(v, self.mesh)
            if v.updates is None
            else _sharding(self.inputs[v.updates], self.mesh) or HloSharding()
            for v in self.outputs
        )

    @property
    def donations(self) -> dict[int, int]:
        """Output index by the index of the input that gives it its buffer."""
        return {
            i: v.donated_to
            for i, v in enumerate(self.inputs)
            if v.donated_to is not None
        }

    @property
    def num_devices(self) -> int:
        """Devices that it runs on."""
        return 1 if self.mesh is None else self.mesh.size

    def save(self, path: str | Path) -> Path:
        """Write a ``*.spmd`` file; there is a whole file or none at any time.

        Args:
            path: Where to.

        Returns:
            The path.
        """
        from spmd._program.file import save

        return save(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Program:
        """Read a ``*.spmd`` file.

        Args:
            path: Where from.

        Returns:
            The program that was saved.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: A file that is damaged, from a newer version or something else.
        """
        from spmd._program.file import load

        return load(Path(path))

    def runner(
        self, devices: Any = None, options: Mapping[str, Any] | None = None
    ) -> Runner:
        """Make it runnable on jax's devices.

        Args:
            devices: A platform (``"cpu"``, ``"gpu"``, ``"tpu"``), a list of jax's
                devices, or None for jax's default platform.
            options: XLA flags by name, passed as compile options.

        Returns:
            A runner without state yet: see `Runner.put`.

        Raises:
            ValueError: The wrong number of devices.
        """
        from spmd._jax.runner import Runner

        return Runner(self, devices, options=options)

    def summary(self) -> str:
        """Counts and bytes by role, as text for people.

        Returns:
            Several lines.
        """
        from spmd._program.summary import summary

        return summary(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Program):
            return NotImplemented
        return (self.fingerprint, self.name, self.versions) == (
            other.fingerprint,
            other.name,
            other.versions,
        )

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        mesh = "one device" if self.mesh is None else repr(self.mesh)
        return (
            f"Program({self.name!r}, {mesh}, {_count(self.inputs, 'input')}, "
            f"{_count(self.outputs, 'output')}, fingerprint {self.fingerprint[:8]})"
        )


def as_json(program: Program) -> dict[str, Any]:
    """What has a meaning in a program, its module and constants apart.

    Args:
        program: The program.

    Returns:
        Lists, dicts, strings, numbers and None.
    """
    mesh = program.mesh
    return {
        "mesh": None
        if mesh is None
        else {
            "axis_names": list(mesh.axis_names),
            "shape": list(mesh.shape),
            "device_ids": None if mesh.is_iota else list(mesh.device_ids),
            "dcn_axes": list(mesh.dcn_axes),
        },
        "inputs": [dataclasses.asdict(v) for v in program.inputs],
        "outputs": [dataclasses.asdict(v) for v in program.outputs],
        "annotations": [dataclasses.asdict(a) for a in program.annotations],
        "constants": list(program.constants),
        "module_digest": program.module_digest,
    }


def _fingerprint(program: Program) -> str:
    text = json.dumps(as_json(program), sort_keys=True, separators=(",", ":"))
    parts = [text.encode()]
    parts += [array.tobytes() for array in program.constants.values()]
    digest = hashlib.sha256()
    for part in parts:
        digest.update(
            len(part).to_bytes(8, "little")
        )  # so that no two lists look alike
        digest.update(part)
    return digest.hexdigest()


def _count(things: Sequence[Any], noun: str) -> str:
    return f"{len(things)} {noun}{'' if len(things) == 1 else 's'}"


def _sharding(value: Value, mesh: Mesh | None) -> HloSharding | None:
    if mesh is None or value.spec is None:
        return None
    return to_hlo(mesh, value.spec)


def _normalized(value: Value, mesh: Mesh | None) -> Value:
    if value.spec is None:
        return value
    if mesh is None:
        raise ValueError(
            f"{value.name}: spec {value.spec}, but the program has no mesh"
        )
    spec = normalize_spec(value.spec, mesh, shape=value.shape, name=value.name)
    return dataclasses.replace(value, spec=spec)


def _checked(annotation: ModuleAnnotation, mesh: Mesh | None) -> ModuleAnnotation:
    where = f"annotation of {annotation.module!r}"
    if mesh is None:
        raise ValueError(
            f"{where}: spec {annotation.spec}, but the program has no mesh"
        )
    spec = normalize_spec(annotation.spec, mesh, shape=annotation.shape, name=where)
    return dataclasses.replace(annotation, spec=spec)


def _check_names(kind: str, values: Sequence[Value]) -> None:
    seen: set[str] = set()
    for value in values:
        if value.name in seen:
            raise ValueError(f"two {kind}s are called {value.name!r}")
        seen.add(value.name)


def _check_indices(inputs: Sequence[Value], outputs: Sequence[Value]) -> None:
    """Check that donations and updates pair values that match, each once."""
    for value in outputs:
        if value.donated_to is not None:
            raise ValueError(f"output {value.name!r}: donated_to is for inputs")
    for value in inputs:
        if value.updates is not None:
            raise ValueError(f"input {value.name!r}: updates is for outputs")
    _check_pairs("donated_to", inputs, outputs)
    _check_pairs("updates", outputs, inputs)
    updated = {v.updates for v in outputs}
    for i, value in enumerate(inputs):
        kept = value.role in (*STATE_ROLES, "constant")
        if kept and value.donated_to is not None and i not in updated:
            raise ValueError(
                f"input {value.name!r} gives its buffer to output "
                f"{outputs[value.donated_to].name!r}, but no output is its next value: "
                f"it would be gone after one step"
            )


def _check_pairs(what: str, ours: Sequence[Value], theirs: Sequence[Value]) -> None:
    taken: dict[int, str] = {}
    for value in ours:
        index = getattr(value, what)
        if index is None:
            continue
        if index >= len(theirs):
            raise ValueError(
                f"{value.name}: {what}={index}, but there are only {len(theirs)}"
            )
        other = theirs[index]
        if (value.shape, value.dtype) != (other.shape, other.dtype):
            raise ValueError(f"{value.name}: {what} pairs {value!r} with {other!r}")
        if index in taken:
            raise ValueError(
                f"{taken[index]!r} and {value.name!r} both have {what}={index}"
            )
        taken[index] = value.name


def _constants(
    given: Mapping[str, Any], inputs: Sequence[Value]
) -> Mapping[str, np.ndarray]:
    by_name = {v.name: v for v in inputs}
    for name in given:
        if name not in by_name:
            raise ValueError(f"constant {name!r} is no input of the program")
    kept = {}
    for value in inputs:
        if value.name in given:
            kept[value.name] = _stored(given[value.name], value)
        elif value.role == "constant":
            raise ValueError(f"input {value.name!r} is a constant without a value")
    return MappingProxyType(kept)


def _stored(array: Any, value: Value) -> np.ndarray:
    array = np.asarray(array)
    stored = np.dtype(STORED_AS[value.dtype])
    if array.dtype.name not in (value.dtype, stored.name) or array.shape != value.shape:
        raise ValueError(
            f"constant {value.name!r} is {array.dtype.name}{list(array.shape)}; the "
            f"input is {value.dtype}{list(value.shape)}, held as {stored.name}"
        )
    bits = np.array(array, order="C", copy=True).view(stored)
    bits = bits.astype(stored.newbyteorder("<"), copy=False)
    bits.flags.writeable = False
    return bits
