"""`capture` around live steps: what is recorded, when, and what it refuses."""

import json
import re
import warnings

import pytest
import torch
import torch_xla

import profiling
import spmd
from profiling._capture import capture, recorders
from spmd import _host_spans
from tests.profiling import captured
from tests.profiling.captured import loop


@pytest.fixture(scope="module", params=["torch_xla", "jax"])
def step(request):
    """A compiled step that has run once."""
    made = captured.compiled_step(request.param)
    loop(made, 1)
    return made


@pytest.fixture(scope="module")
def one_step():
    made = captured.compiled_step("torch_xla")
    loop(made, 1)
    return made


def test_a_range_of_steps(step, tmp_path):
    with profiling.capture(tmp_path, steps=range(2, 4)) as capture:
        loop(step, 6)
    assert capture.path.parent == tmp_path / "plugins" / "profile"
    found = captured.profile(capture.path)
    names = captured.names(found)
    assert names["train"] == names["spmd/step:"] == names["spmd/dispatch:"] == 2
    assert names["spmd/data:"] >= 2
    assert not names["spmd/trace:"] and not names["spmd/compile:"]
    collectives = {n: c for n, c in captured.operations(found).items() if "all-" in n}
    assert collectives and all(c == 2 * 8 for c in collectives.values()), collectives


def test_the_profile_holds_the_compiled_modules(step, tmp_path):
    with profiling.capture(tmp_path, steps=1) as capture:
        loop(step, 1)
    (path,) = capture.path.glob("*.xplane.pb")
    modules = {
        dict(e.stats)["hlo_module"]
        for e in captured.events(captured.profile(capture.path))
        if "hlo_module" in dict(e.stats)
    }
    data = path.read_bytes()
    assert b"/host:metadata" in data
    assert any(f"{name}(".encode() in data for name in modules), modules


def test_the_last_iteration_ends_with_the_devices(step, tmp_path):
    with profiling.capture(tmp_path, steps=2) as capture:
        for x in captured.batches(2, captured.runtime_of(step)):
            step(x)
    found = captured.profile(capture.path)
    events = captured.events(found)
    starts = [e.start_ns for e in events if "hlo_op" in dict(e.stats)]
    last = [e for e in events if e.name == "train"][-1]
    assert max(starts) <= last.start_ns + last.duration_ns
    reductions = [c for n, c in captured.operations(found).items() if "reduce" in n]
    assert reductions and all(count % (2 * 8) == 0 for count in reductions)
    assert dict(last.stats)["_r"] == 1


def test_a_first_step_is_traced_and_compiled_inside(tmp_path, step):
    new = captured.compiled_step(captured.runtime_of(step))
    with profiling.capture(tmp_path) as capture:
        loop(new, 1)
    names = captured.names(captured.profile(capture.path))
    assert names["spmd/trace:"] >= 1 and names["spmd/compile:"] == 1


def test_a_step_on_jax_leaves_its_program_beside(tmp_path):
    step = captured.compiled_step("jax")
    with profiling.capture(tmp_path, steps=1) as capture:
        loop(step, 1)
    programs = [spmd.Program.load(p) for p in capture.path.glob("*.spmd")]
    (program,) = step_programs(step)
    assert program in programs


def step_programs(step):
    return {step._current.runner.program}


def test_steps_of_a_loop_of_ones_own(tmp_path):
    mesh = spmd.Mesh({"fsdp": 8})
    weight = spmd.shard_batch(torch.ones(16, 16), mesh, "fsdp")
    with profiling.capture(tmp_path, steps=range(1, 3)) as capture:
        for _ in range(4):
            with capture.step():
                weight = weight @ weight / 16
                torch_xla.sync()
    found = captured.profile(capture.path)
    assert captured.names(found)["train"] == 2
    assert captured.operations(found)


def test_a_whole_block(one_step, tmp_path):
    with profiling.capture(tmp_path) as capture:
        loop(one_step, 2)
    assert captured.names(captured.profile(capture.path))["train"] == 2
    assert capture.steps is None
    assert json.dumps(captured.files(capture.path)) == '["xplane.pb"]'


def test_captures_after_each_other_have_folders_of_their_own(one_step, tmp_path):
    paths = []
    for _ in range(2):
        with profiling.capture(str(tmp_path), steps=1) as capture:
            loop(one_step, 1)
        paths.append(capture.path)
    assert len(set(paths)) == 2
    assert sorted(paths) == sorted((tmp_path / "plugins" / "profile").iterdir())


def test_a_capture_can_be_entered_again(one_step, tmp_path):
    capture = profiling.capture(tmp_path, steps=range(1, 2))
    paths = set()
    for _ in range(2):
        with capture:
            loop(one_step, 3)
        paths.add(capture.path)
    assert len(paths) == 2
    with pytest.raises(RuntimeError, match="only 1 steps ran"), capture:
        loop(one_step, 1)
    with pytest.raises(RuntimeError, match="has written nothing: only 1 steps"):
        _ = capture.path


def test_what_both_libraries_did_is_in_two_files(tmp_path):
    on_jax = captured.compiled_step("jax")
    with profiling.capture(tmp_path) as capture:
        loop(on_jax, 1)
        torch.ones(4, device=torch_xla.device()).add(1).cpu()
    names = [p.name for p in capture.path.glob("*.xplane.pb")]
    assert len(names) == 2
    assert sum(n.endswith("_torch_xla.xplane.pb") for n in names) == 1


def test_losses_are_those_of_a_run_without(tmp_path):
    plain = loop(captured.compiled_step("torch_xla"), 4)
    step = captured.compiled_step("torch_xla")
    with profiling.capture(tmp_path, steps=range(1, 3)):
        assert loop(step, 4) == plain


def test_a_second_capture_inside_is_refused(one_step, tmp_path):
    with profiling.capture(tmp_path / "a", steps=1):
        with pytest.raises(
            RuntimeError, match=r"a', steps=range\(0, 1\)\) is going on"
        ):
            profiling.capture(tmp_path / "b").__enter__()
        loop(one_step, 1)
    assert not (tmp_path / "b").exists()


def test_nothing_that_ran_is_an_error(tmp_path):
    capture = profiling.capture(tmp_path)
    with pytest.raises(RuntimeError, match="no device did anything"), capture:
        pass
    with pytest.raises(RuntimeError, match="has written nothing: no device did"):
        _ = capture.path
    with pytest.raises(RuntimeError, match=r"with capture.step"):
        with profiling.capture(tmp_path, steps=2):
            pass


def test_steps_that_do_not_come_are_an_error(one_step, tmp_path):
    with pytest.raises(
        RuntimeError, match=r"only 2 steps ran .* none of range\(5, 6\)"
    ):
        with profiling.capture(tmp_path, steps=range(5, 6)):
            loop(one_step, 2)
    with pytest.warns(UserWarning, match=r"ended after 2 steps, .* 1 were captured"):
        with profiling.capture(tmp_path, steps=range(1, 6)) as capture:
            loop(one_step, 2)
    assert captured.names(captured.profile(capture.path))["train"] == 1


def test_an_error_in_the_block_comes_first(one_step, tmp_path):
    with pytest.raises(KeyError), profiling.capture(tmp_path):
        raise KeyError
    with pytest.raises(KeyError), profiling.capture(tmp_path) as capture:
        loop(one_step, 1)
        raise KeyError
    assert captured.files(capture.path) == ["xplane.pb"]
    with profiling.capture(tmp_path, steps=1):  # both are over
        loop(one_step, 1)


@pytest.mark.parametrize(
    "steps", ["3", 2.5, True, [1, 2]], ids=["text", "float", "bool", "list"]
)
def test_steps_of_another_type(steps, tmp_path):
    with pytest.raises(TypeError, match=f"steps={re.escape(repr(steps))}"):
        profiling.capture(tmp_path, steps=steps)


@pytest.mark.parametrize(
    "steps",
    [0, range(3, 3), range(0, 6, 2), range(-1, 2)],
    ids=["none", "empty", "gaps", "negative"],
)
def test_steps_that_are_none(steps, tmp_path):
    with pytest.raises(ValueError, match="at least one step"):
        profiling.capture(tmp_path, steps=steps)


def test_a_folder_that_cannot_be_written_to(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file/run cannot be written to"):
        profiling.capture(tmp_path / "file" / "run").__enter__()
    assert capture._going_on is None


def test_another_profiler_is_named(one_step, tmp_path, monkeypatch):
    (recorder, *_) = recorders.recorders()
    session = recorder.seam.Session()
    try:
        with pytest.raises(RuntimeError, match="another profiler records what"):
            profiling.capture(tmp_path).__enter__()
        with pytest.raises(RuntimeError, match="another profiler records what"):
            # In the loop it is a warning first: the training goes on.
            with pytest.warns(UserWarning, match="another profiler records what"):
                with profiling.capture(tmp_path, steps=1):
                    assert len(loop(one_step, 2)) == 2
    finally:
        session.stop()


def test_a_disk_that_is_full_does_not_end_the_training(one_step, tmp_path, monkeypatch):
    def full(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(capture, "write", full)
    done = []
    with pytest.raises(RuntimeError, match="No space left"):
        with pytest.warns(UserWarning, match="No space left"):
            with profiling.capture(tmp_path, steps=1):
                done += loop(one_step, 3)
    assert len(done) == 3


def test_outside_its_steps_a_loop_is_left_alone(one_step, tmp_path):
    with profiling.capture(tmp_path, steps=range(1, 2)):
        batches = iter(captured.batches(4))
        one_step(next(batches))
        assert not recorders.recorders()[0].seam.is_recording()
        one_step(next(batches))
        assert recorders.recorders()[0].seam.is_recording()
        one_step(next(batches))
        assert not recorders.recorders()[0].seam.is_recording()
        assert _host_spans._at_step == ()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            one_step(next(batches))


def test_it_says_what_it_is(tmp_path):
    assert repr(profiling.capture("runs", steps=3)) == (
        "capture('runs', steps=range(0, 3))"
    )
    assert repr(profiling.capture("runs")) == "capture('runs')"


JAX_ALONE = """
    import sys
    import jax, jax.numpy as jnp
    import profiling

    f = jax.jit(lambda x: (x @ x).sum())
    x = jnp.ones((64, 64))
    with profiling.capture("run", steps=range(1, 3)) as capture:
        for _ in range(5):
            with capture.step():
                f(x)
    assert not {"torch", "torch_xla"} & set(sys.modules)
    (path,) = capture.path.glob("*.xplane.pb")
    found = jax.profiler.ProfileData.from_file(str(path))
    (host,) = [plane for plane in found.planes if plane.name == "/host:CPU"]
    events = [event for line in host.lines for event in line.events]
    assert sum(event.name == "train" for event in events) == 2
    assert any("hlo_op" in dict(event.stats) for event in events)
"""

LAZY_ALONE = """
    import torch, torch_xla
    import profiling

    x = torch.ones(64, 64, device=torch_xla.device())
    with profiling.capture("run") as capture:
        for _ in range(2):
            x = x @ x / 64
            torch_xla.sync()
    (path,) = capture.path.glob("*.xplane.pb")
    assert b"hlo_op" in path.read_bytes()
"""

NOTHING = """
    import profiling
    try:
        with profiling.capture("run"):
            pass
    except RuntimeError as error:
        assert "neither jax nor torch_xla is imported" in str(error)
    else:
        raise AssertionError
"""


@pytest.mark.parametrize(
    "script", [JAX_ALONE, LAZY_ALONE, NOTHING], ids=["jax", "lazy", "neither"]
)
def test_nothing_of_ours_around(script, run_script):
    result = run_script(script)
    assert result.rc == 0, result.stderr
