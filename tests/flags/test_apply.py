import os

import pytest

import flags
from flags._apply import applied, apply, options, plan

LEVEL = "xla_backend_optimization_level"
HOSTS = ("torch_xla", "jaxlib")


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """A process that has set nothing and started nothing."""
    for name in ("XLA_FLAGS", "LIBTPU_INIT_ARGS"):
        # Set first, so that it is taken back whatever the test does.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setattr("flags._apply.started", lambda channel: ())


def test_plan_changes_nothing():
    before = dict(os.environ)
    found = plan("cpu-debug", libraries=["jaxlib"])
    assert f"--{LEVEL}=0" in found.variables["XLA_FLAGS"]
    assert dict(os.environ) == before


def test_apply():
    found = apply({f"--{LEVEL}": 0}, libraries=HOSTS)
    assert os.environ["XLA_FLAGS"] == f"--{LEVEL}=0"
    assert (found.name, found.backend) == ("flags", "cpu")
    assert apply({LEVEL: 0}, libraries=HOSTS).messages[0].kind == "kept"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"zzz": 1}, "flags: zzz is dropped: no installed library for cpu knows it"),
        ({"xla_cpu_ftz": False}, "flags: xla_cpu_ftz goes to the compile: torch_xla"),
        ({LEVEL: 1}, f"flags: {LEVEL} stays at 2, as XLA_FLAGS has it; 1 was asked"),
    ],
)
def test_a_warning_for_what_is_not_simply_set(values, said):
    os.environ["XLA_FLAGS"] = f"--{LEVEL}=2"
    with pytest.warns(UserWarning, match=said):
        apply(values, libraries=HOSTS)
    assert os.environ["XLA_FLAGS"] == f"--{LEVEL}=2"


def test_change_and_workload():
    step = flags.Workload(16, 2, layer_bytes=103_000_000)
    found = plan(
        "gpu-overlap",
        workload=step,
        change={"xla_gpu_all_gather_combine_threshold_bytes": 5},
        libraries=HOSTS,
    )
    assert found.variables["XLA_FLAGS"] == (
        "--xla_gpu_reduce_scatter_combine_threshold_bytes=4194304 "
        "--xla_gpu_all_gather_combine_threshold_bytes=5"
    )
    assert found.backend == "gpu"


def test_a_preset_itself():
    entry = flags.preset("cpu-debug")
    assert plan(entry, libraries=HOSTS) == plan("cpu-debug", libraries=HOSTS)


def test_applied_restores():
    os.environ["XLA_FLAGS"] = "--xla_gpu_autotune_level=1"
    with applied({LEVEL: 0}, libraries=HOSTS) as found:
        assert os.environ["XLA_FLAGS"] == found.variables["XLA_FLAGS"]
        assert os.environ["XLA_FLAGS"].endswith(f" --{LEVEL}=0")
    assert os.environ["XLA_FLAGS"] == "--xla_gpu_autotune_level=1"


def test_applied_restores_after_an_exception():
    with pytest.raises(KeyError, match="mine"):
        with applied({LEVEL: 0}, libraries=HOSTS):
            raise KeyError("mine")
    assert "XLA_FLAGS" not in os.environ


def test_too_late(monkeypatch):
    monkeypatch.setattr("flags._apply.started", lambda channel: ("jax has devices",))
    with pytest.raises(
        RuntimeError,
        match=r"flags: too late to set XLA_FLAGS: jax has devices; call flags\.apply",
    ):
        apply({LEVEL: 0}, libraries=HOSTS)
    assert "XLA_FLAGS" not in os.environ
    # Nothing is set, so it is not too late.
    os.environ["XLA_FLAGS"] = f"--{LEVEL}=0"
    assert apply({LEVEL: 0}, libraries=HOSTS).variables == {}


def test_options():
    before = dict(os.environ)
    assert dict(options({LEVEL: "0"})) == {LEVEL: 0}
    assert dict(options("cpu-debug", change={LEVEL: 1}))[LEVEL] == 1
    assert dict(os.environ) == before


def test_options_of_a_gpu(needs):
    needs("cuda")
    step = flags.Workload(8, layer_bytes=103_000_000)
    assert dict(options("gpu-overlap", workload=step)) == {
        "xla_gpu_reduce_scatter_combine_threshold_bytes": 8 << 20
    }


def test_not_an_option():
    with pytest.raises(ValueError, match=r"flags: jaxlib .* has no compile option zzz"):
        options({"zzz": 1})


def test_unknown_preset():
    with pytest.raises(ValueError, match="unknown preset 'gpu'"):
        apply("gpu")


def test_in_a_process_that_starts_afterwards(run_script):
    result = run_script(
        """
        import flags
        made = flags.apply({"xla_force_host_platform_device_count": 3}, backend="cpu")
        import jax
        print(len(jax.devices()), made.messages)
        try:
            flags.apply({"xla_backend_optimization_level": 1}, backend="cpu")
        except RuntimeError as error:
            print(error)
        """,
        env={"XLA_FLAGS": None, "JAX_NUM_CPU_DEVICES": None},
    )
    assert result.rc == 0, result.stderr
    assert result.stdout.startswith("3 ()\nflags: too late to set XLA_FLAGS: jax has")
