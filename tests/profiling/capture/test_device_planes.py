"""Planes of CPU devices: what xprof's converters and our own reader make of them."""

from collections import Counter, defaultdict
from pathlib import Path

import pytest

from profiling import read_profile
from profiling._capture.device_planes import PREFIX, with_device_planes
from profiling._hlo.binary import read_binary
from profiling._profile.names import OpNames
from profiling._profile.space import read_trace
from profiling._profile.sweep import charge
from profiling._profile.xplane import parse_space
from tests.profiling import profiled_runs
from tests.profiling.converters import converted, needs_xprof, rows
from tests.profiling.xplanes import (
    Plane,
    cpu_profile,
    gpu_profile,
    save,
    space,
    tpu_profile,
)


def completed(path: Path, into: Path | None = None) -> Path:
    """A file with the planes."""
    into = path if into is None else into
    into.write_bytes(with_device_planes(path.read_bytes(), path))
    return into


def added(path: Path):
    return [
        plane
        for plane in parse_space(path.read_bytes(), source=str(path)).planes
        if plane.name.startswith(PREFIX)
    ]


def lines(plane):
    return {line.name: line.events for line in plane.lines()}


@pytest.fixture
def small(tmp_path):
    """Three steps of two devices, which the host does not wait for."""
    return completed(cpu_profile(tmp_path / "node0.xplane.pb"))


def test_a_plane_for_each_device_says_what_it_is(small):
    one, two = added(small)
    assert one.name.startswith("/device:TPU:CPU 0 (no TPU")
    assert two.name.startswith("/device:TPU:CPU 1 (no TPU")
    assert one.stats == {"added_by": "spmd", "device_type_string": "CPU"}
    ops, modules = lines(one)["XLA Ops"], lines(one)["XLA Modules"]
    assert [event.display_name for event in ops[:3]] == [
        "dot.1",
        "all-gather.2",
        "add_fusion",
    ]
    assert (ops[1].start_ps, ops[1].duration_ps) == (40_000_000, 20_000_000)
    assert [event.name for event in modules] == ["jit_step(7)"] * 3
    assert ops[0].stats() == {
        "hlo_op": "dot.1",
        "hlo_module": "jit_step",
        "program_id": 7,
        "symbol_id": 1,
        "hlo_category": "matmul",
    }


def test_the_last_plane_alone_has_steps(small):
    one, two = map(lines, added(small))
    assert set(one) == {"XLA Ops", "XLA Modules"}
    assert [event.name for event in two["Steps"]] == ["10", "11", "12"]
    groups = [event.stats()["group_id"] for event in two["Steps"]]
    assert [number & 0xFFFFFFFF for number in groups] == [10, 11, 12]
    assert min(groups) >= 2**32
    (collectives,) = [e for name, e in two.items() if name.startswith("Collectives")]
    assert {event.name for event in collectives} == {"NCCL stand-in: all-gather.2"}
    told = Counter(
        event.display_name
        for event in two["XLA Ops"]
        if "correlation_id" in event.stats()
    )
    assert told == {"dot.1": 3, "add_fusion": 3}


def test_steps_that_the_host_waits_for_are_the_host_s(tmp_path):
    host = Plane("/host:CPU")
    python, thread = host.line("python"), host.line("tf_XLAEigen/0")
    stats = {"hlo_module": "jit_f", "program_id": 1, "device_ordinal": 0}
    for number in range(2):
        at = 100.0 * number
        python.event("train", at, 90, step_num=number + 5)
        thread.event("dot.1", at + 30, 40, hlo_op="dot.1", run_id=number + 1, **stats)
    path = completed(save(tmp_path / "x.xplane.pb", host))
    (plane,) = added(path)
    steps = [
        (event.name, event.start_ps, event.duration_ps)
        for event in lines(plane)["Steps"]
    ]
    assert steps == [("5", 0, 90_000_000), ("6", 100_000_000, 90_000_000)]


@pytest.mark.parametrize("make", [gpu_profile, tpu_profile], ids=["gpu", "tpu"])
def test_a_profile_of_accelerators_is_left_alone(make, tmp_path):
    path = make(tmp_path / "x.xplane.pb")
    data = path.read_bytes()
    assert with_device_planes(data, path) == data


def test_what_has_them_or_ran_nothing_is_left_alone(small, tmp_path):
    data = small.read_bytes()
    assert with_device_planes(data, small) == data
    nothing = space(Plane("/host:CPU"))
    assert with_device_planes(nothing, small) == nothing


def test_a_damaged_profile_is_an_error(tmp_path):
    path = cpu_profile(tmp_path / "x.xplane.pb")
    with pytest.raises(ValueError, match=r"x\.xplane\.pb: at byte"):
        with_device_planes(path.read_bytes()[:-9], path)


def test_our_own_reader_does_not_count_them(tmp_path):
    path = cpu_profile(tmp_path / "a" / "node0.xplane.pb")
    before = read_profile(path).as_json()
    after = read_profile(completed(path)).as_json()
    assert before == after


@pytest.fixture(scope="module", params=["jax", "torch_xla"])
def run(request, tmp_path_factory):
    """Four steps that really ran, with the planes."""
    folder = getattr(profiled_runs, f"{request.param}_run")()
    (path,) = folder.rglob("*.xplane.pb")
    made = tmp_path_factory.mktemp("run") / "node0.xplane.pb"
    return completed(path, made)


@pytest.fixture(scope="module")
def tables(run, tmp_path_factory):
    """What xprof's converters make of that."""
    folder = tmp_path_factory.mktemp("tools") / "one"
    tools = ("hlo_stats", "op_profile", "framework_op_stats", "overview_page")
    return converted([run], folder, *tools)


def own_seconds(path: Path) -> dict[tuple[str, str], float]:
    """Time of its own of each operation, over all devices, as we measure it."""
    trace = read_trace(path)
    names = {
        program: OpNames(read_binary(data, source=program))
        for program, data in trace.modules.items()
    }
    found: dict[tuple[str, str], float] = defaultdict(float)
    for device in trace.devices:
        ops = sorted(
            (op for op in trace.ops if op.device == device), key=lambda op: op.start
        )
        spans = [(op.start, op.end, names[op.program](op.name).level) for op in ops]
        end = max(op.end for op in ops)
        for op, own in zip(ops, charge(spans, ops[0].start, end).own, strict=True):
            number = op.program.rpartition("(")[2].removesuffix(")")
            found[number, op.name] += own * 1e-12
    return found


@needs_xprof
@pytest.mark.slow
def test_the_table_of_operations_has_our_times(run, tables):
    table = rows(tables["hlo_stats"])
    seconds = {
        (str(row["program_id"]), row["hlo_op_name"]): row["total_self_time"] * 1e-6
        for row in table
    }
    expected = own_seconds(run)
    assert set(seconds) == set(expected) and len(expected) > 10
    for key, own in expected.items():
        assert seconds[key] == pytest.approx(own, rel=1e-6, abs=1e-9), key
    counts = Counter((op.program, op.name) for op in read_trace(run).ops)
    for (program, name), count in counts.items():
        (row,) = [
            row
            for row in table
            if program.endswith(f"({row['program_id']})") and row["hlo_op_name"] == name
        ]
        assert row["occurrences"] == count


@needs_xprof
@pytest.mark.slow
def test_operations_say_what_they_are(tables):
    table = {row["hlo_op_name"]: row for row in rows(tables["hlo_stats"])}
    assert {row["category"] for row in table.values()} >= {"all-gather"}
    gather = next(r for r in table.values() if r["category"] == "all-gather")
    assert gather["hlo_op_expression"].startswith(f"%{gather['hlo_op_name']} = f32[")
    assert gather["measured_memory_bw"] > 0
    assert any(row["model_flop_rate"] > 0 for row in table.values())


@needs_xprof
@pytest.mark.slow
def test_the_profile_of_operations_is_of_a_cpu(run, tables):
    found = tables["op_profile"]
    assert found["deviceType"] == "CPU_ONLY"
    programs = found["byProgramExcludeIdle"]["children"]
    main = read_profile(run).program
    assert main in {program["name"] for program in programs}
    total = sum(own_seconds(run).values())
    raw = found["byProgramExcludeIdle"]["metrics"]["rawTime"] * 1e-12
    assert raw == pytest.approx(total, rel=1e-6)


@needs_xprof
@pytest.mark.slow
def test_the_frameworks_operations_have_whole_names(run, tables):
    table = rows(tables["framework_op_stats"][0])
    device = [row for row in table if row["host_or_device"] == "Device"]
    names = {row["operation"] for row in device}
    assert "IDLE" in names and len(names) > 5
    assert not any(":" in name for name in names)
    busy = sum(r["total_self_time"] for r in device if r["operation"] != "IDLE") * 1e-6
    assert busy == pytest.approx(sum(own_seconds(run).values()), rel=1e-6)


@needs_xprof
@pytest.mark.slow
def test_the_overview_is_of_a_cpu_and_has_the_steps(run, tables):
    _, steps, environment, *rest = tables["overview_page"]
    assert environment["p"]["device_type"] == "CPU"
    assert steps["p"]["hardware_type"] == "CPU_ONLY"
    table = rows(steps)
    assert [row["stepnum"] for row in table] == ["0", "1", "2", "3"]
    last = lines(added(run)[-1])
    ends = last["Steps"][0].start_ps, last["Steps"][-1].end_ps
    moved = sum(
        event.duration_ps
        for event in last["XLA Ops"]
        if event.display_name.startswith("all-") and ends[0] <= event.start_ps < ends[1]
    )
    known = sum(row["deviceCollectivesTimeMs"] for row in table) * 1e9
    assert moved and known == pytest.approx(moved, rel=1e-3)
    assert all(row["deviceComputeTimeMs"] > 0 for row in table)
    parts = ("deviceComputeTimeMs", "deviceCollectivesTimeMs", "otherTimeMs")
    for row in table:
        whole = sum(row[part] for part in parts)
        assert whole == pytest.approx(row["stepTimeMs"], rel=1e-3)
    assert any("This ran on CPU devices" in str(table) for table in rest)


@needs_xprof
@pytest.mark.slow
def test_several_hosts_in_one_session(tmp_path):
    files = [
        completed(cpu_profile(tmp_path / f"node{n}.xplane.pb", slow=1 + n))
        for n in range(2)
    ]
    tools = converted(files, tmp_path / "tools", "hlo_stats", "overview_page")
    (dot,) = [r for r in rows(tools["hlo_stats"]) if r["hlo_op_name"] == "dot.1"]
    assert dot["occurrences"] == 2 * 2 * 3
    assert dot["total_self_time"] == pytest.approx(2 * 3 * (40 + 80))
    _, steps, environment, *_ = tools["overview_page"]
    assert environment["p"]["host_count"] == "2"
    # Of several hosts xprof counts the steps anew.
    assert [row["stepnum"] for row in rows(steps)] == ["0", "1", "2"]
    assert all(row["deviceComputeTimeMs"] > 0 for row in rows(steps))
