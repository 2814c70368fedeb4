"""Random meshes, specs and shapes for the property tests of this folder."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import hypothesis.strategies as st

from spmd._meshes.mesh import Mesh
from spmd._meshes.spec import Spec, SpecEntry, entry_axes

AXES = ("replica", "fsdp", "tensor", "expert")


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    """Up to four axes, some of size 1, some crossing hosts, some in another order."""
    sizes = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    names = AXES[: len(sizes)]
    count = math.prod(sizes)
    ids = list(range(count))
    if count <= 64 and draw(st.booleans()):
        ids = draw(st.permutations(ids))
    num_dcn = draw(st.integers(0, len(sizes)))
    return Mesh(ids, sizes, names, dcn_axes=names[:num_dcn])


@st.composite
def specs(draw: st.DrawFn, mesh: Mesh, *, max_dims: int = 4) -> Spec:
    """Every axis splits one dim or none, in any order inside a dim."""
    ndim = draw(st.integers(0, max_dims))
    found: list[list[str]] = [[] for _ in range(ndim)]
    for axis in draw(st.permutations(mesh.axis_names)):
        dim = draw(st.integers(-1, ndim - 1))
        if dim >= 0:
            found[dim].append(axis)
    return tuple(entry(axes) for axes in found)


@st.composite
def meshes_and_specs(draw: st.DrawFn, *, max_dims: int = 4) -> tuple[Mesh, Spec]:
    mesh = draw(meshes())
    return mesh, draw(specs(mesh, max_dims=max_dims))


def entry(axes: list[str]) -> SpecEntry:
    return None if not axes else axes[0] if len(axes) == 1 else tuple(axes)


def walk(mesh: Mesh) -> Iterator[tuple[int, dict[str, int]]]:
    """Each device with its coordinates, by plain counting."""
    places = itertools.product(*(range(n) for n in mesh.shape))
    for device, place in zip(mesh.device_ids, places, strict=True):
        yield device, dict(zip(mesh.axis_names, place, strict=True))


def tile_of(mesh: Mesh, spec: Spec, place: dict[str, int]) -> tuple[int, ...]:
    """Index of the piece at these coordinates, dim by dim, major axis first."""
    tile = []
    for item in spec:
        index = 0
        for axis in entry_axes(item):
            index = index * mesh.sizes[axis] + place[axis]
        tile.append(index)
    return tuple(tile)
