"""jax's devices, and compiling and running on them: the heart of the seam to jax.

Written against jax 0.10 (jax and jaxlib).

Which device runs what: a sharding in a module names *partitions* 0..n-1, and
`Mesh.device_ids` are these numbers, since `to_hlo` writes them into the shardings. So
everything here takes devices in partition order, `devices[i]` runs partition i, and a
mesh in another order than row-major needs nothing more: its shardings list the
partitions in the order of the mesh.

GSPMD or Shardy: the modules carry GSPMD's `mhlo.sharding`, as torch_xla writes it.
jax 0.10 can compile them with either partitioner (Shardy imports them). GSPMD is the
default here because it is what torch_xla runs, so that both runtimes partition alike;
XLA then prints one line on stderr that GSPMD is deprecated.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

import jax
import numpy as np

from spmd._host_spans import COMPILE, DISPATCH, record_with, span
from spmd._meshes.mesh import Mesh
from spmd._meshes.sharding import HloSharding
from spmd._program.stablehlo import (
    Shardings,
    Signature,
    annotate,
    free_results,
    opened,
    signature_of,
)
from spmd._program.stablehlo import hlo_to_stablehlo as hlo_to_stablehlo

WRITTEN_AGAINST = "0.10"

try:
    from jax._src import compiler, core, sharding_impls
    from jax._src.interpreters import pxla
    from jaxlib import (
        _hlo,  # pyright: ignore[reportAttributeAccessIssue] - compiled, no stubs
        _jax,  # pyright: ignore[reportAttributeAccessIssue] - compiled, no stubs
        _profiler,  # pyright: ignore[reportAttributeAccessIssue] - compiled, no stubs
        xla_client,
    )
except ImportError as error:  # another jax moved them; say which one fits
    raise ImportError(
        f"spmd was written against jax {WRITTEN_AGAINST}.*, this is {jax.__version__} "
        f"({error}); run pip install 'jax=={WRITTEN_AGAINST}.*'"
    ) from error

Device: TypeAlias = Any  # jax.Device, which jax defines as a variable
Sharding: TypeAlias = jax.sharding.Sharding

record_with(_profiler.TraceMe, _profiler.TraceMe.is_enabled)

_OPTION_ERRORS = ("No such compile option", "While setting option")


def check_version() -> None:
    """Refuse a jax whose internals this file was not written against.

    Raises:
        RuntimeError: Another minor version.
    """
    if not jax.__version__.startswith(WRITTEN_AGAINST + "."):
        raise RuntimeError(
            f"spmd was written against jax {WRITTEN_AGAINST}.*, this is "
            f"{jax.__version__}; run pip install 'jax=={WRITTEN_AGAINST}.*'"
        )


def hlo_from_stablehlo(text: str) -> bytes:
    """Convert StableHLO text, as torch_xla takes computations as HLO only.

    Args:
        text: A module.

    Returns:
        A serialised `HloModuleProto`.
    """
    computation = _jax.mlir.mlir_module_to_xla_computation(
        text, return_tuple=False, use_tuple_args=False
    )
    return computation.as_serialized_hlo_module_proto()


def devices(mesh: Mesh | None, platform: str | None = None) -> tuple[Device, ...]:
    """Devices for a mesh, in partition order.

    jax counts devices process by process, so an outer mesh axis crosses processes
    first.

    Args:
        mesh: The mesh; None for one device.
        platform: ``"cpu"``, ``"gpu"``, ``"tpu"``; None for jax's default.

    Returns:
        As many devices as the mesh has.

    Raises:
        RuntimeError: Another jax than this file was written against.
        ValueError: A platform jax does not have here, or too few devices; with several
            processes also too many, since each must take part.
    """
    check_version()
    wanted, who = (1, "it") if mesh is None else (mesh.size, repr(mesh))
    try:
        found = tuple(jax.devices(platform))
    except RuntimeError as error:
        raise ValueError(f"jax has no platform {platform!r} here: {error}") from error
    if len(found) < wanted:
        hint = "run it on more hosts, or trace it for a smaller mesh"
        if found[0].platform == "cpu":
            hint = (
                f"call jax.config.update('jax_num_cpu_devices', {wanted}) before the "
                f"first use of jax, or set JAX_NUM_CPU_DEVICES={wanted}"
            )
        raise ValueError(
            f"{who} needs {wanted} devices, jax sees {len(found)} of "
            f"{found[0].platform!r}; {hint}"
        )
    if len(found) > wanted and jax.process_count() > 1:
        raise ValueError(
            f"{who} needs {wanted} devices, the {jax.process_count()} processes "
            f"together have {len(found)} and each must take part; trace for a mesh of "
            f"{len(found)}"
        )
    return found[:wanted]


def placement(order: Sequence[Device], sharding: HloSharding) -> Sharding:
    """How jax writes a sharding over these devices.

    Args:
        order: Devices in partition order.
        sharding: The sharding.

    Returns:
        jax's object; it takes only shapes that divide, see `padded`.
    """
    return _placement(tuple(order), str(sharding))


@functools.lru_cache(maxsize=4096)
def _placement(order: tuple[Device, ...], text: str) -> Sharding:
    return sharding_impls.GSPMDSharding(order, _hlo.HloSharding.from_string(text))


def padded(shape: Sequence[int], sharding: Sharding) -> tuple[int, ...]:
    """A shape that divides: each dim rounded up to its pieces, as XLA does.

    Args:
        shape: Shape of the whole.
        sharding: How it is split.

    Returns:
        The same shape where it divides.
    """
    xla = cast(Any, sharding)._to_xla_hlo_sharding(len(shape))
    if xla.is_replicated():
        return tuple(shape)
    ways = xla.tile_assignment_dimensions()[: len(shape)]
    return tuple(-(-d // n) * n for d, n in zip(shape, ways, strict=True))


@dataclass(frozen=True, slots=True, repr=False)
class Executable:
    """A compiled module on its devices.

    Attributes:
        loaded: jaxlib's executable.
        devices: In partition order.
        inputs: Sharding of each argument.
        outputs: Sharding of each result.
        output_types: Shape (of the whole, not padded) and dtype of each result.
    """

    loaded: Any
    devices: tuple[Device, ...]
    inputs: tuple[Sharding, ...]
    outputs: tuple[Sharding, ...]
    output_types: Signature
    _handlers: tuple[Callable[..., jax.Array], ...] = field(init=False)

    def __post_init__(self) -> None:
        handlers = tuple(map(_handler, self.output_types, self.outputs))
        object.__setattr__(self, "_handlers", handlers)

    def __call__(self, arrays: Sequence[jax.Array]) -> list[jax.Array]:
        """Run once; arguments that are donated are gone afterwards.

        Args:
            arrays: On these devices, split as `inputs`, of padded shapes.

        Returns:
            The results, padded, before they are computed: reading one waits.
        """
        with span(DISPATCH):
            results = self.loaded.execute_sharded(list(arrays))
        return results.consume_with_handlers(self._handlers)

    def hlo_text(self) -> str:
        """The optimised module of one device, scheduled.

        Returns:
            HLO text.
        """
        return self.loaded.hlo_modules()[0].to_string()

    def __repr__(self) -> str:
        return (
            f"Executable({len(self.devices)} {self.devices[0].platform} devices, "
            f"{len(self.inputs)} inputs, {len(self.outputs)} outputs)"
        )


def _handler(
    kind: tuple[tuple[int, ...], str], sharding: Sharding
) -> Callable[..., jax.Array]:
    shape, dtype = kind
    with jax.enable_x64(True):  # else jax makes int64 an int32
        abstract = core.ShapedArray(padded(shape, sharding), np.dtype(dtype))
    return pxla.global_aval_to_result_handler(abstract, sharding, True)


def compile_module(
    module: bytes,
    order: Sequence[Device],
    *,
    inputs: Shardings | None = None,
    outputs: Shardings | None = None,
    donated: Mapping[int, int] | None = None,
    options: Mapping[str, Any] | None = None,
    shardy: bool = False,
) -> Executable:
    """Partition and compile a module for these devices.

    Args:
        module: StableHLO portable artifact, or MLIR text.
        order: Devices in partition order; their number is the number of partitions.
        inputs: Sharding of each argument; None leaves what the module says.
        outputs: Sharding of each result; the compiler chooses where none is said.
        donated: Result index by the index of the argument that gives it its buffer.
        options: XLA flags by name, e.g. ``{"xla_cpu_enable_fast_math": False}``.
        shardy: Partition with Shardy instead of GSPMD.

    Returns:
        The executable.

    Raises:
        RuntimeError: The compiler failed, in its words.
        ValueError: A flag that this compiler does not have or a value it does not take,
            in its words; a module that jax cannot read.
    """
    check_version()
    order = tuple(order)
    ours = _compile_options(order, options, shardy)
    with opened(module) as parsed:
        annotate(parsed, inputs=inputs, outputs=outputs, donated=donated)
        arguments, results = signature_of(parsed)
        ours.executable_build_options.allow_spmd_sharding_propagation_to_output = (
            free_results(parsed)
        )
        try:
            with span(COMPILE):
                loaded = order[0].client.compile_and_load(
                    parsed,
                    executable_devices=xla_client.DeviceList(order),
                    compile_options=ours,
                )
        except jax.errors.JaxRuntimeError as error:
            if any(text in str(error) for text in _OPTION_ERRORS):
                raise ValueError(
                    f"compile option refused by the {order[0].platform} compiler of "
                    f"jax {jax.__version__}: {error}; given: {dict(options or {})}"
                ) from error
            raise RuntimeError(f"the compiler failed: {error}") from error
    given = _shardings(order, loaded.get_parameter_shardings(), len(arguments))
    made = _shardings(order, loaded.get_output_shardings(), len(results))
    return Executable(loaded, order, given, made, results)


def _compile_options(
    order: tuple[Device, ...], options: Mapping[str, Any] | None, shardy: bool
) -> Any:
    flags = {
        name.removeprefix("--"): _option(value)
        for name, value in (options or {}).items()
    }
    ours = compiler.get_compile_options(
        num_replicas=1,
        num_partitions=len(order),
        device_assignment=np.array([[device.id for device in order]]),
        env_options_overrides=flags,
        backend=order[0].client,
    )
    ours.executable_build_options.use_spmd_partitioning = True
    ours.executable_build_options.use_shardy_partitioner = shardy
    return ours


def _option(value: Any) -> Any:
    """A flag on a command line says ``true``; a compile option must be a bool."""
    words = {"true": True, "false": False}
    return words.get(value, value) if isinstance(value, str) else value


def _shardings(
    order: tuple[Device, ...], found: Sequence[Any] | None, count: int
) -> tuple[Sharding, ...]:
    if found is None:  # one device
        return (placement(order, HloSharding()),) * count
    protos = (_hlo.HloSharding.from_proto(proto) for proto in found)
    return tuple(_placement(order, str(sharding)) for sharding in protos)
