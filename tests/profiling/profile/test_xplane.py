"""Profiles as they come off the disk: whole, damaged, or something else."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiling._profile.xplane import read_space
from tests.profiling.hlo_files import STEP, damaged
from tests.profiling.hlo_protos import SMALL, proto
from tests.profiling.xplanes import Plane, space


def two_lines() -> list[Plane]:
    plane = Plane("/device:TPU:0", device_type_string="TPU v5 lite", peak=197.5)
    line = plane.line("XLA Ops", start_us=1000)
    line.event(
        "%fusion.1 = f32[8]",
        2.5,
        10,
        display="fusion.1",
        shared={"hlo_category": "loop fusion", "flops": 7},
        run_id=3,
        flops=8,
    )
    plane.line("Steps").event("0", 0, 100)
    return [plane, Plane("Task Environment", profile_start_time=5)]


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("profiles") / "x.xplane.pb"
    path.write_bytes(space(*two_lines(), host="node7"))
    return path


def test_planes_lines_and_events(file):
    found = read_space(file)
    assert (found.host, found.errors, len(found.planes)) == ("node7", (), 2)
    device, environment = found.planes
    assert device.stats == {"device_type_string": "TPU v5 lite", "peak": 197.5}
    assert environment.stats == {"profile_start_time": 5}
    ops, steps = device.lines()
    assert (ops.name, steps.name, len(steps.events)) == ("XLA Ops", "Steps", 1)
    (event,) = ops.events
    assert (event.name, event.display_name) == ("%fusion.1 = f32[8]", "fusion.1")
    assert (event.start_ps, event.end_ps) == (1_002_500_000, 1_012_500_000)


def test_stats_of_an_event_come_before_those_of_its_name(file):
    (event,) = next(read_space(file).planes[0].lines()).events
    assert event.metadata_id == 1
    assert event.stats() == {"hlo_category": "loop fusion", "flops": 8, "run_id": 3}


@pytest.mark.parametrize("number", [0, 127, 128, 300, 8589934592, 2**62, 2**63 - 1])
def test_numbers_that_tasks_hand_on(number, tmp_path):
    plane = Plane("/host:CPU")
    line = plane.line("python")
    for _ in range(2):
        line.event("dot.1", 0, 1, hlo_op="dot.1", _p=number)
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(space(plane))
    (read,) = read_space(path).planes
    for event in next(read.lines()).events:
        assert event.stats() == {"hlo_op": "dot.1", "_p": number}
        assert (event.stat("_p"), event.stat("hlo_op")) == (number, "dot.1")
        assert event.stat("_c") is None
    assert len(read.known) == 1  # what is never the same is not kept


def test_events_that_are_not_wanted(file):
    ops, steps = read_space(file).planes[0].lines(lambda name: name == "0")
    assert (len(ops.events), len(steps.events)) == (1, 0)


def test_a_damaged_stat_says_where(tmp_path):
    path = tmp_path / "x.xplane.pb"
    plane = Plane("/host:CPU")
    plane.line("python").event("dot.1", 0, 1, hlo_op="dot.1")
    data = space(plane)
    path.write_bytes(data.replace(b"\x2a\x05dot.1", b"\x2a\x05d\xfft.1"))
    ((event,),) = [line.events for line in read_space(path).planes[0].lines()]
    with pytest.raises(ValueError, match=r"at byte \d+: .* a part that no profiler"):
        event.stats()


def test_reprs_are_one_line(file):
    found = read_space(file)
    line = next(found.planes[0].lines())
    for what in (found, found.planes[0], line):
        assert "\n" not in repr(what)
        assert len(repr(what)) < 200


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_space(tmp_path / "none.xplane.pb")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "at byte 0: no profile: the file is empty"),
        (space(*two_lines())[:-20], "no profile, or a damaged one: .* behind the end"),
        (
            STEP.read_bytes()[:4000],
            "at byte 2: no profile, or a damaged one: no field has",
        ),
        (proto(SMALL), "at byte 0: no profile, or a damaged one: a part"),
        (b"\x0a\x06\x12\x04main", "no profile: its planes are 'main', and a profile"),
        (b"\x22\x02hi", "no profile: its planes are none"),
        (
            b"\x0a\x04\x12\x02\xff\xfe",
            "at byte 2: no profile, or a damaged one: a part",
        ),
    ],
    ids=["empty", "cut", "text", "hlo", "other names", "no planes", "no UTF-8"],
)
def test_what_is_no_profile_says_where(content, words, tmp_path):
    path = tmp_path / "x.xplane.pb"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=words) as error:
        read_space(path)
    assert str(error.value).startswith(str(path))


def test_a_damaged_line_says_where(tmp_path):
    path = tmp_path / "x.xplane.pb"
    plane = Plane("/host:CPU")
    plane.line("python")
    path.write_bytes(space(plane).replace(b"python", b"pyt\xffon"))
    found = read_space(path)
    with pytest.raises(ValueError, match=r"at byte \d+: .* a part that no profiler"):
        list(found.planes[0].lines())


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_damage_is_an_error_or_another_profile(tmp_path_factory, data):
    path = tmp_path_factory.getbasetemp() / "damaged.xplane.pb"
    path.write_bytes(damaged(data, space(*two_lines())))
    try:
        for plane in read_space(path).planes:
            for line in plane.lines():
                for event in line.events:
                    event.stats()
    except ValueError as error:
        assert str(path) in str(error)
