"""A profile as data, as its schema says."""

import dataclasses

import pytest

from profiling import read_profile
from profiling._profile import profile as nouns
from profiling._profile.as_json import as_json
from profiling._schedule_json import schema
from tests.profiling.profiled_runs import jax_run
from tests.profiling.test_schedule_json import check
from tests.profiling.xplanes import cpu_profile, gpu_profile, tpu_profile

COMPUTED = {
    "op_class": {"ratio"},
    "collective": {"hidden_s", "wait_s", "bytes_per_s", "ratio"},
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("spent", nouns.Spent),
        ("step", nouns.ProfiledStep),
        ("host", nouns.ProfiledHost),
        ("host_time", nouns.HostTime),
        ("host_event", nouns.HostEvent),
        ("op", nouns.ProfiledOp),
        ("op_class", nouns.OpClass),
        ("collective", nouns.ProfiledCollective),
        ("verdict", nouns.Verdict),
    ],
)
def test_fields_have_the_names_of_the_dataclass(name, kind):
    names = {f.name for f in dataclasses.fields(kind)} | COMPUTED.get(name, set())
    assert set(schema("profile")["$defs"][name]["properties"]) == names


def test_a_run():
    content = as_json(read_profile(jax_run(), mesh={"fsdp": 8}))
    check(content, "profile")
    assert (content["device_kind"], content["num_devices"]) == ("cpu", 8)
    assert (content["target"], content["mesh"]) == ("cpu:8", {"fsdp": 8})
    assert content["collectives"][0]["axes"] == ["fsdp"]
    assert content["verdict"]["kind"].endswith("-bound")


@pytest.mark.parametrize(
    "make", [cpu_profile, gpu_profile, tpu_profile], ids=["cpu", "gpu", "tpu"]
)
def test_without_hlo(make, tmp_path):
    content = as_json(read_profile(make(tmp_path / "x.xplane.pb")))
    check(content, "profile")
    assert (content["target"], content["mesh"]) == (None, None)
    assert content["collectives"][0]["wire_bytes"] is None
