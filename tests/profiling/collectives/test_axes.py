import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling._collectives.axes import MeshAxes, crosses, rows
from profiling._hlo.device_groups import DeviceGroups
from spmd import Mesh

HYBRID = Mesh.hybrid(ici={"fsdp": 4, "tensor": 2}, dcn={"replica": 2})
SHUFFLED = Mesh([3, 1, 2, 0, 7, 5, 6, 4], (2, 4), ("a", "b"))


@st.composite
def meshes(draw: st.DrawFn) -> Mesh:
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    ids = draw(st.permutations(range(int(np.prod(shape)))))
    return Mesh(ids, shape, [f"axis{i}" for i in range(len(shape))])


@given(st.data())
def test_groups_along_any_axes_are_found(data: st.DataObject) -> None:
    mesh = data.draw(meshes())
    chosen = data.draw(st.lists(st.sampled_from(mesh.axis_names), unique=True))
    groups = DeviceGroups(mesh.axis_groups(chosen))
    wanted = tuple(a for a in mesh.axis_names if a in chosen and mesh.axis_size(a) > 1)
    assert MeshAxes(mesh).of_groups(groups) == wanted
    # A permute along one axis by one step.
    pairs = [(g[i - 1], g[i]) for g in groups.groups for i in range(len(g))]
    moves = len(chosen) == 1 and bool(wanted)
    if moves:
        assert MeshAxes(mesh).of_pairs(pairs) == wanted


@given(st.data())
def test_what_is_no_axis_is_not_called_one(data: st.DataObject) -> None:
    """Against the definition: the groups of some set of axes, in any order."""
    mesh = data.draw(meshes())
    size = data.draw(st.sampled_from([n for n in (1, 2, 3, 4, 6) if not mesh.size % n]))
    order = data.draw(st.permutations(range(mesh.size)))
    listed = np.asarray(order).reshape(-1, size).tolist()
    found = MeshAxes(mesh).of_groups(DeviceGroups(tuple(map(tuple, listed))))
    same = {frozenset(g) for g in listed} == {
        frozenset(g) for g in mesh.axis_groups(found)
    }
    assert same if found else True
    for count in range(1 << mesh.ndim):
        axes = [a for i, a in enumerate(mesh.axis_names) if count >> i & 1]
        if {frozenset(g) for g in mesh.axis_groups(axes)} == {
            frozenset(g) for g in listed
        }:
            assert found == tuple(a for a in axes if mesh.axis_size(a) > 1)


@pytest.mark.parametrize(
    ("mesh", "groups", "wanted"),
    [
        (HYBRID, "[8,2]<=[2,8]T(1,0)", ("replica",)),
        (HYBRID, "[4,4]<=[2,4,2]T(0,2,1)", ("fsdp",)),
        (HYBRID, "[4,4]<=[2,4,2]T(1,0,2)", ("replica", "tensor")),
        (HYBRID, "[1,16]<=[16]", ("replica", "fsdp", "tensor")),
        (HYBRID, "{}", ("replica", "fsdp", "tensor")),  # XLA says none: all
        (HYBRID, "[16,1]<=[16]", ()),
        (HYBRID, "[8,2]<=[2,2,2,2]T(0,2,3,1)", ()),  # half of fsdp
        (HYBRID, "{{0,2,4,6}}", ("fsdp",)),  # some of the groups
        (HYBRID, "{{0,2,4,6},{1,3}}", ()),  # not one size
        (HYBRID, "{{0,0,2,4}}", ()),  # damaged: a device twice
        (HYBRID, "{{0,99}}", ()),  # of a larger mesh
        (SHUFFLED, "{{3,7},{1,5},{2,6},{0,4}}", ("a",)),
        (SHUFFLED, "{{0,1,2,3},{4,5,6,7}}", ("b",)),
        (Mesh({"x": 1, "y": 4, "z": 1}), "[1,4]<=[4]", ("y",)),
    ],
)
def test_groups(mesh: Mesh, groups: str, wanted: tuple[str, ...]) -> None:
    assert MeshAxes(mesh).of_groups(DeviceGroups.parse(groups)) == wanted


@pytest.mark.parametrize(
    ("pairs", "wanted"),
    [
        ([(0, 2), (2, 4), (4, 6), (6, 0)], ("fsdp",)),
        ([(0, 1), (8, 9)], ("tensor",)),
        ([(0, 8), (3, 11)], ("replica",)),
        ([(1, 2), (2, 1)], ("fsdp", "tensor")),
        ([(0, 0), (5, 5)], ()),
        ([(0, 99)], ()),
        ([], ()),
    ],
)
def test_pairs(pairs: list[tuple[int, int]], wanted: tuple[str, ...]) -> None:
    assert MeshAxes(HYBRID).of_pairs(pairs) == wanted


def test_a_pod_is_not_listed(monkeypatch: pytest.MonkeyPatch) -> None:
    def listed(self: DeviceGroups) -> None:
        raise AssertionError("listed")

    monkeypatch.setattr(DeviceGroups, "groups", property(listed))
    mesh = Mesh.hybrid(ici={"fsdp": 256, "tensor": 4}, dcn={"replica": 8})
    groups = DeviceGroups.parse("[32,256]<=[8,256,4]T(0,2,1)")
    assert MeshAxes(mesh).of_groups(groups) == ("fsdp",)
    assert not crosses(groups, 1024)
    assert crosses(groups, 512)


@pytest.mark.parametrize(
    ("groups", "block", "wanted"),
    [
        ("{{0,1},{2,3}}", 2, False),
        ("{{0,1},{2,3,4}}", 2, True),
        ("{{0,1},{3,2}}", 4, False),
        ("[2,4]<=[8]", 4, False),
        ("[4,2]<=[2,4]T(1,0)", 4, True),
    ],
)
def test_crosses(groups: str, block: int, wanted: bool) -> None:
    assert crosses(DeviceGroups.parse(groups), block) is wanted


@pytest.mark.parametrize("text", ["[4,2]<=[2,4]T(1,0)", "[2,2]<=[4]", "{{0,3},{2,1}}"])
def test_rows_are_the_groups(text: str) -> None:
    groups = DeviceGroups.parse(text)
    (found,) = rows(groups)
    assert tuple(map(tuple, found.tolist())) == groups.groups
