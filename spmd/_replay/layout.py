"""How the state of a step is laid out, asked only of tensors that changed.

A compiled graph takes its inputs as they were split when it was compiled: given another
layout it fails, or computes nonsense where the sizes happen to agree. Asking torch_xla
about a thousand tensors takes milliseconds, so the layout of what a step wrote is
remembered, by torch_xla's number of the tensor and torch's count of in-place changes.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from spmd._marking.mark import get_sharding
from spmd._meshes.mesh import Mesh
from spmd._meshes.sharding import HloSharding, to_hlo
from spmd._meshes.spec import Spec
from spmd._torch_xla import graph as torch_xla_graph
from spmd._torch_xla import seam

Stamp = tuple[int, int]


@dataclass(slots=True)
class View:
    """Tensors of a step, as they were at one moment.

    Attributes:
        ids: torch_xla's number of each.
        versions: torch's count of in-place changes of each.
        layouts: Such as ``float32[8, 4] {devices=[8,1]0,1,2,3,4,5,6,7}`` for each.
    """

    ids: list[int]
    versions: list[int]
    layouts: tuple[str, ...] = ()

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> View:
        """The tensors as they are now, their layouts not looked at.

        Args:
            tensors: On the XLA device.

        Returns:
            With no layouts.
        """
        ids = torch_xla_graph.tensor_ids(tensors)
        return cls(ids, [t._version for t in tensors])

    def is_of_same(self, other: View) -> bool:
        """Whether the other is of the same tensors, and none was given other data.

        Args:
            other: Of as many tensors, or of others.

        Returns:
            Whatever their layouts.
        """
        return self.ids == other.ids and self.versions == other.versions

    @property
    def stamps(self) -> list[Stamp]:
        """What changes when a tensor gets other data; one each."""
        return list(zip(self.ids, self.versions, strict=True))


class Note:
    """What a step did that `Layouts` does not know of yet.

    A step that finds what it left never asks for layouts.

    Attributes:
        found: With layouts: what there was before the first call since; or None.
        left: With layouts: what there was after the last.
    """

    __slots__ = ("__weakref__", "found", "left")

    def __init__(self) -> None:
        self.found: View | None = None
        self.left: View | None = None

    def take(self, found: View, left: View) -> None:
        """Write down a call.

        Args:
            found: What there was before, with layouts.
            left: What there was after, with layouts.
        """
        if self.found is None:
            self.found = found
        self.left = left


class Layouts:
    """Layouts by stamp. All steps over one model share it, see `layouts_for`."""

    def __init__(self) -> None:
        self._known: dict[Stamp, str] = {}
        self._notes: weakref.WeakSet[Note] = weakref.WeakSet()

    def note(self) -> Note:
        """A note for one step, which is gone with it."""
        note = Note()
        self._notes.add(note)
        return note

    def of(
        self, tensors: Sequence[torch.Tensor], found: Sequence[Stamp]
    ) -> tuple[str, ...] | None:
        """How tensors are laid out; puts back the split of an annotated one.

        Args:
            tensors: State; nothing may be left to execute.
            found: Their stamps.

        Returns:
            Such as ``float32[8, 4] {devices=[8,1]0,1,2,3,4,5,6,7}`` for each; `None` if
            a tensor was moved and has another stamp now.
        """
        self._take_notes()
        for attempt in range(2):
            texts = list(map(self._known.get, found))
            known = tuple(text for text in texts if text is not None)
            if len(known) == len(texts):
                return known
            if attempt == 0:
                new = [t for t, text in zip(tensors, texts, strict=True) if not text]
                self._look_at(new)
        return None

    def _look_at(self, tensors: Sequence[torch.Tensor]) -> None:
        seam.wait()
        moved = []
        for tensor, layout in zip(
            tensors, torch_xla_graph.layouts(tensors), strict=True
        ):
            annotation = get_sharding(tensor)
            if annotation is not None:
                mesh, spec = annotation.mesh, annotation.spec
                if _is_split_by(layout, mesh, spec):
                    continue
                seam.clear(tensor)
                seam.mark(tensor, mesh, spec)
                moved.append(tensor)
        if moved:
            seam.wait()
        self._known.update(zip(View.of(tensors).stamps, describe(tensors), strict=True))

    def _take_notes(self) -> None:
        notes = list(self._notes)
        for view in [note.found for note in notes if note.found is not None]:
            for stamp in view.stamps:
                self._known.pop(stamp, None)
        for view in [note.left for note in notes if note.left is not None]:
            self._known.update(zip(view.stamps, view.layouts, strict=True))
        for note in notes:
            note.found = note.left = None


@functools.lru_cache(maxsize=4096)
def _is_split_by(layout: str, mesh: Mesh, spec: Spec) -> bool:
    return HloSharding.parse(layout) == to_hlo(mesh, spec, form="tiles")


def describe(tensors: Sequence[torch.Tensor]) -> list[str]:
    """Ask torch_xla how tensors are laid out.

    Args:
        tensors: On the XLA device, with data that is there.

    Returns:
        See `Layouts.of`.
    """
    return [
        # one text for all that are alike, which is quick to compare
        sys.intern(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)} {layout}")
        for t, layout in zip(tensors, torch_xla_graph.layouts(tensors), strict=True)
    ]


_by_model: weakref.WeakKeyDictionary[nn.Module, Layouts] = weakref.WeakKeyDictionary()


def layouts_for(model: nn.Module | None) -> Layouts:
    """The memory that all steps over a model share.

    Args:
        model: A module, or None.

    Returns:
        One of its own without a model.
    """
    if model is None:
        return Layouts()
    return _by_model.setdefault(model, Layouts())
