"""From a file to what its devices and its host did."""

import pytest

from profiling._profile.space import read_trace
from tests.profiling.xplanes import (
    Plane,
    cpu_profile,
    gpu_profile,
    metadata,
    save,
    tpu_profile,
)


@pytest.mark.parametrize(
    ("make", "kind", "num_ops"),
    [(cpu_profile, "cpu", 18), (gpu_profile, "gpu", 6), (tpu_profile, "tpu", 10)],
    ids=["cpu", "gpu", "tpu"],
)
def test_kinds(make, kind, num_ops, tmp_path):
    found = read_trace(make(tmp_path / "node4.xplane.pb"))
    assert (found.host, found.kind, len(found.ops)) == ("node4", kind, num_ops)
    assert found.notes == ()
    assert "\n" not in repr(found)


def test_where_there_is_an_accelerator_the_host_s_own_operations_do_not_count(tmp_path):
    host = Plane("/host:CPU")
    host.line("python").event("spmd/data:", 0, 3)
    host.line("tf_XLAEigen/1").event("dot.1", 0, 1, hlo_op="dot.1", hlo_module="m")
    device = Plane("/device:TPU:2")
    device.line("XLA Ops").event("fusion.1", 0, 5)
    found = read_trace(save(tmp_path / "x.xplane.pb", host, device))
    assert [(op.name, op.device) for op in found.ops] == [("fusion.1", 2)]
    assert [span.name for span in found.spans] == ["spmd/data:"]


def test_the_hlo_that_a_profile_carries(tmp_path):
    path = save(tmp_path / "x.xplane.pb", metadata(jit_f__3=b"abc"), Plane("/host:CPU"))
    assert read_trace(path).modules == {"jit_f(3)": b"abc"}


def test_a_plane_without_a_device(tmp_path):
    path = save(
        tmp_path / "x.xplane.pb",
        Plane("/device:CUSTOM:Megascale Trace"),
        Plane("/host:CPU"),
    )
    assert read_trace(path).devices == ()


def test_files_that_are_none(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_trace(tmp_path / "none.xplane.pb")
    (tmp_path / "x.xplane.pb").write_bytes(b"")
    with pytest.raises(ValueError, match="the file is empty"):
        read_trace(tmp_path / "x.xplane.pb")
