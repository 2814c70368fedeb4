"""What a tensor carries: how it is split, and the hook that marks its gradient."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch.utils.hooks import RemovableHandle

from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec

T = TypeVar("T", bound=torch.Tensor)

ATTRIBUTE = "_spmd_annotation"


@dataclass(frozen=True, slots=True)
class Annotation:
    """How one tensor is split.

    Attributes:
        mesh: The mesh.
        spec: Normalised, one entry per dim.
    """

    mesh: Mesh
    spec: Spec


class _Mark:
    """What a tensor carries: its annotation, and the hook on its gradient.

    Pickles as an empty OrderedDict, which is no `_Mark`: a file holds values, not where
    they were, and `torch.load` reads it without being told to trust this class.
    """

    __slots__ = ("annotation", "hook")

    def __init__(self, annotation: Annotation, hook: RemovableHandle | None) -> None:
        self.annotation = annotation
        self.hook = hook

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return OrderedDict, ()


def mark_of(tensor: torch.Tensor) -> _Mark | None:
    """What a tensor carries.

    Args:
        tensor: Any tensor.

    Returns:
        None where nothing is, or was read from a file.
    """
    mark = getattr(tensor, ATTRIBUTE, None)
    return mark if isinstance(mark, _Mark) else None


def remember(tensor: T, mesh: Mesh, spec: Spec) -> T:
    """Keep an annotation that torch_xla was told of in another way.

    Args:
        tensor: Any tensor.
        mesh: The mesh.
        spec: A normalised spec.

    Returns:
        The same tensor.
    """
    mark = mark_of(tensor)
    hook = None if mark is None else mark.hook
    setattr(tensor, ATTRIBUTE, _Mark(Annotation(mesh, spec), hook))
    return tensor


def hook_of(tensor: torch.Tensor) -> RemovableHandle | None:
    """The hook with which a tensor's gradient is marked.

    Args:
        tensor: Any tensor.

    Returns:
        None where it is not.
    """
    mark = mark_of(tensor)
    return None if mark is None else mark.hook
