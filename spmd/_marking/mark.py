"""`mark_sharding` and its relatives: say how one tensor is split over a mesh.

The annotation is kept twice: by torch_xla for the compiler, and as an attribute on the
tensor for us, since XLA's form has lost the names of the axes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import torch

from spmd._marking.annotation import ATTRIBUTE, Annotation, mark_of, remember
from spmd._marking.planning import GRADIENT, is_planning, noted
from spmd._meshes.mesh import Mesh
from spmd._meshes.sharding import from_hlo
from spmd._meshes.spec import Spec, normalize_spec, padded_elements, uneven_dims
from spmd._runtime import device_types, num_devices
from spmd._warn import warn_user

T = TypeVar("T", bound=torch.Tensor)
GradSpec = Literal["same"] | Iterable[Any] | None

_warned: set[tuple[Any, ...]] = set()


def mark_sharding(
    tensor: T,
    mesh: Mesh,
    spec: Iterable[Any],
    *,
    grad: GradSpec = "same",
    strict: bool = False,
    name: str | None = None,
) -> T:
    """Split a tensor over a mesh, in place.

    A parameter, buffer or input is moved to its devices; a value inside a forward gets
    a constraint in the compiled program. Tensors on the ``meta`` device only remember
    the annotation.

    Args:
        tensor: On the XLA device (or meta), of any rank.
        mesh: The mesh; torch_xla's Mesh and torch's DeviceMesh are converted.
        spec: One entry per dim: axis name, tuple of names, or None. torch_xla's
            ShardingSpec and DTensor placements are converted.
        grad: What happens to the gradient of a value that requires one: ``"same"``
            gives it the same spec, ``None`` leaves it to the compiler, or another
            spec. A leaf's gradient is marked only with an explicit spec; a frozen
            parameter's once it is unfrozen.
        strict: Raise where a dim does not divide instead of padding.
        name: What to call the tensor in messages.

    Returns:
        The same tensor.

    Raises:
        TypeError: Not a tensor.
        ValueError: A tensor on another device, a mesh of another size than the
            machine, a wrong spec, a dim that does not divide with `strict`, or a
            tensor that already has another spec.
        RuntimeError: SPMD mode cannot be switched on any more, see `init`.
    """
    from spmd._meshes.convert import mesh_from, spec_from

    label = name or _describe(tensor)
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"mark_sharding: {label} is no tensor")
    mesh = mesh_from(mesh)
    wanted = spec_from(spec, mesh, shape=tensor.shape, name=label)
    _check_device(tensor, mesh, label)
    check_unmarked(tensor, mesh, wanted, label)
    check_even(tensor, mesh, wanted, label, strict=strict)
    gradient = _gradient_spec(tensor, mesh, wanted, grad, label)
    put(tensor, mesh, wanted, label)
    if gradient is not None:
        mark_gradient(tensor, mesh, gradient)
    if isinstance(tensor, torch.nn.Parameter):
        from spmd._marking.optimizer import follow_parameters

        follow_parameters()
    return tensor


def replicate(tensor: T, mesh: Mesh, *, name: str | None = None) -> T:
    """Keep a whole copy of a tensor on every device.

    Args:
        tensor: On the XLA device (or meta).
        mesh: The mesh.
        name: What to call the tensor in messages.

    Returns:
        The same tensor.

    Raises:
        TypeError: See `mark_sharding`.
        ValueError: See `mark_sharding`.
    """
    return mark_sharding(tensor, mesh, (None,) * tensor.ndim, name=name)


def get_sharding(tensor: torch.Tensor, mesh: Mesh | None = None) -> Annotation | None:
    """How a tensor is split.

    Args:
        tensor: Any tensor.
        mesh: Mesh to express torch_xla's sharding on, for a tensor that was not
            annotated through this library (a result, say).

    Returns:
        `None` for a tensor without an annotation.

    Raises:
        ValueError: A sharding that no spec on `mesh` gives.
    """
    known = _known(tensor)
    if known is not None or mesh is None or tensor.device.type != "xla":
        return known
    from spmd._torch_xla import seam

    sharding = seam.sharding_of(tensor)
    if sharding is None:
        return None
    return Annotation(mesh, from_hlo(sharding, mesh, ndim=tensor.ndim))


def clear_sharding(tensor: T) -> T:
    """Take the annotation off a tensor, in place.

    Args:
        tensor: Any tensor.

    Returns:
        The same tensor.
    """
    if tensor.device.type == "xla":
        from spmd._torch_xla import seam

        _unsplit(tensor)
        seam.clear(tensor)
    mark = mark_of(tensor)
    if mark is not None and mark.hook is not None:
        mark.hook.remove()
    if hasattr(tensor, ATTRIBUTE):
        delattr(tensor, ATTRIBUTE)
    return tensor


def _unsplit(tensor: torch.Tensor) -> None:
    """Put data that was split there anew, by way of the host.

    Another annotation moves data under the same identity, by which a compiled step
    tells whether a tensor is what it left; it would read the pieces as they lay.
    """
    from spmd._torch_xla import graph as torch_xla_graph
    from spmd._torch_xla import seam

    if is_planning() or torch_xla_graph.needs_execution([tensor])[0]:
        return
    if seam.sharding_of(tensor) is None or seam.num_processes() > 1:
        return  # what other processes hold cannot be fetched
    tensor.data = tensor.detach().cpu().to(tensor.device)


def _describe(tensor: Any) -> str:
    if isinstance(tensor, torch.nn.Parameter):
        return "parameter"
    return "tensor" if isinstance(tensor, torch.Tensor) else repr(tensor)[:80]


def _known(tensor: torch.Tensor) -> Annotation | None:
    mark = mark_of(tensor)
    return None if mark is None else mark.annotation


def check_unmarked(tensor: torch.Tensor, mesh: Mesh, spec: Spec, label: str) -> None:
    """Refuse another annotation than the one a tensor has.

    Args:
        tensor: Any tensor.
        mesh: The mesh it is to get.
        spec: The normalised spec it is to get.
        label: What to call the tensor.

    Raises:
        ValueError: It has another mesh or spec.
    """
    previous = _known(tensor)
    if previous is not None and previous != Annotation(mesh, spec):
        raise ValueError(
            f"{label} {list(tensor.shape)} is already split by {previous.spec} on "
            f"{previous.mesh!r}; it cannot also get {spec} on {mesh!r}. Call "
            f"spmd.clear_sharding(tensor) first"
        )


def _check_device(tensor: torch.Tensor, mesh: Mesh, label: str) -> None:
    kind = tensor.device.type
    if kind == "meta":
        return
    if kind not in device_types():
        raise ValueError(
            f"{label} {list(tensor.shape)} is on {tensor.device}, not on the XLA "
            f"device; move it first: spmd.to_device(model), or tensor.to('xla')"
        )
    check_machine(mesh, f"{label} {list(tensor.shape)}")


def check_machine(mesh: Mesh, where: str) -> None:
    """Refuse a mesh of another size than the machine; switches SPMD mode on.

    Args:
        mesh: The mesh.
        where: What to call the tensor, with its shape.

    Raises:
        ValueError: Another number of devices.
        RuntimeError: SPMD mode cannot be switched on any more, see `init`.
    """
    if is_planning():
        return
    have = num_devices()
    if mesh.size != have:
        raise ValueError(
            f"{where}: {mesh!r} has {mesh.size} devices, this "
            f"machine runs {have}; use a mesh of {have} devices (-1 fills an axis), or "
            f"spmd.init(cpu_devices={mesh.size}) first, or meta tensors to plan for a "
            f"pod"
        )


def check_even(
    tensor: torch.Tensor, mesh: Mesh, spec: Spec, label: str, *, strict: bool = False
) -> None:
    """Warn once of dims that do not divide.

    Args:
        tensor: Any tensor.
        mesh: The mesh.
        spec: A normalised spec.
        label: What to call the tensor.
        strict: Raise instead.

    Raises:
        ValueError: A dim that does not divide with `strict`.
    """
    uneven = uneven_dims(tensor.shape, mesh, spec)
    if not uneven:
        return
    dim, ways = uneven[0]
    waste = padded_elements(tensor.shape, mesh, spec) * tensor.element_size()
    text = (
        f"{label} {list(tensor.shape)}: dim {dim} of size {tensor.shape[dim]} does not "
        f"divide over {spec[dim]!r} ({ways} shards); XLA pads {waste} bytes"
    )
    if strict:
        raise ValueError(f"{text}. Use a size that divides, or strict=False")
    key = (label, tuple(tensor.shape), spec, mesh)
    if key not in _warned:
        _warned.add(key)
        warn_user(text)


def put(tensor: torch.Tensor, mesh: Mesh, spec: Spec, label: str) -> None:
    """Annotate a tensor for the compiler and for us, without the checks.

    Args:
        tensor: On the XLA device, or meta.
        mesh: The mesh.
        spec: A normalised spec of the tensor's rank.
        label: What to call the tensor.

    Raises:
        ValueError: Data that torch_xla has split in another way.
    """
    if tensor.device.type == "xla":
        _mark_on_device(tensor, mesh, spec, label)
    remember(tensor, mesh, spec)


def _mark_on_device(tensor: torch.Tensor, mesh: Mesh, spec: Spec, label: str) -> None:
    from spmd._torch_xla import seam

    if is_planning():
        from spmd._torch_xla import graph as torch_xla_graph

        if not torch_xla_graph.needs_execution([tensor])[0]:
            return  # a placeholder has nothing to move; its spec goes to the program
    if isinstance(tensor, torch.nn.Parameter) and seam.is_view(tensor):
        # module.to_empty() makes such; loading values into it would drop its sharding.
        tensor.data = tensor.data.clone()
    try:
        with noted(label, tensor, mesh, spec):
            seam.mark(tensor, mesh, spec)
    except RuntimeError as error:
        if "Existing annotation" not in str(error):
            raise
        raise ValueError(
            f"{label} {list(tensor.shape)} is already split as "
            f"{seam.sharding_of(tensor)} (by torch_xla's own mark_sharding, or a "
            f"computation); it cannot also get {spec} on {mesh!r}. Call "
            f"spmd.clear_sharding(tensor) first"
        ) from None


def _gradient_spec(
    tensor: torch.Tensor, mesh: Mesh, spec: Spec, grad: GradSpec, label: str
) -> Spec | None:
    if isinstance(grad, str):
        if grad != "same":
            raise ValueError(
                f"{label}: grad={grad!r}; 'same', None or a spec is allowed"
            )
        return spec if tensor.requires_grad and not tensor.is_leaf else None
    may_require = tensor.requires_grad or isinstance(tensor, torch.nn.Parameter)
    if grad is None or not may_require or not tensor.dtype.is_floating_point:
        return None
    return normalize_spec(grad, mesh, shape=tensor.shape, name=f"gradient of {label}")


def mark_gradient(tensor: torch.Tensor, mesh: Mesh, spec: Spec) -> None:
    """Have the gradient marked when it comes, with this spec only.

    Args:
        tensor: One that has an annotation.
        mesh: The mesh.
        spec: A normalised spec.
    """
    known = mark_of(tensor)
    assert known is not None
    if known.hook is not None:
        known.hook.remove()

    def mark(gradient: torch.Tensor | None) -> torch.Tensor | None:
        if gradient is None or gradient.device.type != "xla":
            return gradient  # None where nothing came: torch calls its hooks anyway
        from spmd._torch_xla import seam

        # A sum hands one gradient to all its terms, and each may want another spec.
        gradient = gradient.clone()
        with noted(GRADIENT, gradient, mesh, spec):
            seam.mark(gradient, mesh, spec)
        return gradient

    frozen = not tensor.requires_grad
    if frozen:  # torch takes no hook before this; it lasts until the parameter thaws
        tensor.requires_grad_(True)
    known.hook = tensor.register_hook(mark)
    if frozen:
        tensor.requires_grad_(False)
