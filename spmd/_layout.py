"""How the state of a step is laid out, asked only of tensors that changed.

A compiled graph takes its inputs as they were split when it was compiled: given another
layout it fails, or computes nonsense where the sizes happen to agree. Asking torch_xla
about a thousand tensors takes milliseconds, so the layout of what a step wrote is
remembered, by torch_xla's number of the tensor and torch's count of in-place changes.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Iterable, Sequence

import torch
from torch import nn

from spmd import _torch_xla, _torch_xla_graph
from spmd._mark import get_sharding
from spmd._mesh import Mesh
from spmd._sharding import HloSharding, to_hlo
from spmd._spec import Spec

Stamp = tuple[int, int]


def stamps(tensors: Sequence[torch.Tensor]) -> list[Stamp]:
    """What changes when a tensor gets other data.

    Args:
        tensors: On the XLA device.

    Returns:
        One each.
    """
    ids = _torch_xla_graph.tensor_ids(tensors)
    return list(zip(ids, [t._version for t in tensors], strict=True))


class Layouts:
    """Layouts by stamp. All steps over one model share it, see `layouts_for`."""

    def __init__(self) -> None:
        self._known: dict[Stamp, str] = {}

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
        _torch_xla.wait()
        moved = []
        for tensor, layout in zip(
            tensors, _torch_xla_graph.layouts(tensors), strict=True
        ):
            annotation = get_sharding(tensor)
            if annotation is not None:
                mesh, spec = annotation.mesh, annotation.spec
                if _is_split_by(layout, mesh, spec):
                    continue
                _torch_xla.clear(tensor)
                _torch_xla.mark(tensor, mesh, spec)
                moved.append(tensor)
        if moved:
            _torch_xla.wait()
        self.learn(stamps(tensors), describe(tensors))

    def learn(self, found: Iterable[Stamp], texts: Iterable[str]) -> None:
        """Remember layouts.

        Args:
            found: From `stamps`.
            texts: From `describe`.
        """
        self._known.update(zip(found, texts, strict=True))

    def forget(self, found: Iterable[Stamp]) -> None:
        """Drop what is there no more.

        Args:
            found: From `stamps`.
        """
        for stamp in found:
            self._known.pop(stamp, None)


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
        f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)} {layout}"
        for t, layout in zip(tensors, _torch_xla_graph.layouts(tensors), strict=True)
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
