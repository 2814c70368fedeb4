import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiling._hlo.device_groups import DeviceGroups, from_mesh, iota


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("{{0,1},{2,3}}", ((0, 1), (2, 3))),
        ("{{0,2}, {1,3}}", ((0, 2), (1, 3))),
        ("{}", ()),
        ("[2,2]<=[4]", ((0, 1), (2, 3))),
        ("[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=2,'b'=2] {'b'}", ((0, 1), (2, 3))),
        ("mesh['a'=2,'b'=2] {'a'}", ((0, 2), (1, 3))),
        ("mesh['a'=2,'b'=2] {'b','a'}", ((0, 2, 1, 3),)),
        ("mesh['a'=8,'b'=1] {'a'}", (tuple(range(8)),)),
        ("mesh['a'=8] {'a':(2)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("mesh['a'=8] {'a':(1)2}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("mesh['a'=2,'b'=2], device_ids=(3,2,1,0) {'b'}", ((3, 2), (1, 0))),
        ("mesh['a'=2,'b'=2], device_ids=([2,2]T(1,0)) {'b'}", ((0, 2), (1, 3))),
    ],
)
def test_every_way_of_writing_them(text: str, groups: tuple) -> None:
    assert DeviceGroups.parse(text).groups == groups


def test_a_pod_stays_compact() -> None:
    found = DeviceGroups.parse("[128,32]<=[32,128]T(1,0)")
    assert found.listed == ()
    assert found.num_devices == 4096
    assert found.largest_group == 32
    assert str(found) == "[128,32]<=[32,128]T(1,0)"


@given(st.data())
def test_mesh_axes_equal_numpy(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    chosen = data.draw(st.lists(st.sampled_from(range(len(sizes))), unique=True))
    axes = [(f"x{i}", n) for i, n in enumerate(sizes)]
    found = from_mesh(axes, [(i, 0, 0) for i in chosen])
    rest = [i for i in range(len(sizes)) if i not in chosen]
    ids = np.arange(np.prod(sizes)).reshape(sizes).transpose(rest + chosen)
    size = int(np.prod([sizes[i] for i in chosen]))
    assert found.groups == tuple(map(tuple, ids.reshape(-1, size).tolist()))
    assert DeviceGroups.parse(str(found)) == found


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{{0,1}", "no device groups"),
        ("0,1", "no device groups"),
        ("[2,3]<=[4]", "do not make the 4 devices"),
        ("[2,2]<=[4]T(1)", "no permutation"),
        ("mesh['a'=2] {'b'}", "no axis 'b'"),
        ("mesh['a'=8] {'a':(3)2}", "no piece"),
        ("mesh['a'=4], device_ids=(0,1) {'a'}", "2 devices for a mesh"),
    ],
)
def test_what_is_none(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        DeviceGroups.parse(text)


def test_sizes_are_checked() -> None:
    with pytest.raises(ValueError, match="do not make groups of 3"):
        DeviceGroups((), (4,), (), 3)
    with pytest.raises(ValueError, match="do not make the 4 devices"):
        iota((3, 1), (4,))
    with pytest.raises(ValueError, match="no axis 2"):
        from_mesh([("a", 2)], [(2, 0, 0)])
