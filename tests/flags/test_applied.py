import json
import shlex

import pytest

from flags._applied import as_options, place

HOSTS = ("torch_xla", "jaxlib")
LEVEL = "xla_backend_optimization_level"


def placed(values, *, backend="cpu", libraries=HOSTS, **environ):
    return place("mine", values, backend=backend, libraries=libraries, environ=environ)


def test_into_xla_flags():
    found = placed({LEVEL: 0, "xla_llvm_disable_expensive_passes": True})
    line = f"--{LEVEL}=0 --xla_llvm_disable_expensive_passes=true"
    assert found.variables == {"XLA_FLAGS": line}
    assert (found.options, found.messages) == ({}, ())


def test_after_what_the_user_has():
    found = placed({LEVEL: 0}, XLA_FLAGS="--xla_gpu_autotune_level=1 ")
    assert found.variables == {"XLA_FLAGS": f"--xla_gpu_autotune_level=1 --{LEVEL}=0"}
    assert found.added == {"XLA_FLAGS": f"--{LEVEL}=0"}


@pytest.mark.parametrize(
    ("mine", "kind", "text"),
    [
        ("0", "kept", f"{LEVEL} is set in XLA_FLAGS already"),
        ("2", "conflict", f"{LEVEL} stays at 2, as XLA_FLAGS has it; 0 was asked for"),
    ],
)
def test_the_user_wins(mine, kind, text):
    found = placed({LEVEL: 0}, XLA_FLAGS=f"--{LEVEL}=1 --{LEVEL}={mine}")
    (message,) = found.messages
    assert (message.kind, message.text) == (kind, text)
    assert (found.variables, found.options) == ({}, {})


def test_what_one_host_does_not_know_goes_to_the_compile():
    found = placed({"xla_cpu_ftz": "false"})
    assert (found.variables, found.options) == ({}, {"xla_cpu_ftz": False})
    (message,) = found.messages
    assert message.kind == "option"
    assert "torch_xla 2.9.0 would end the process over it" in message.text
    assert "Program.runner(options=...)" in message.text
    found = placed({"xla_cpu_ftz": False}, libraries=("jaxlib",))
    assert found.variables == {"XLA_FLAGS": "--xla_cpu_ftz=false"}


def test_the_user_wins_over_options_too():
    found = placed({"xla_cpu_ftz": False}, XLA_FLAGS="--xla_cpu_ftz=true")
    assert [m.kind for m in found.messages] == ["conflict"]
    assert found.options == {}


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"xla_backend_optimization_levl": 1}, "did you mean xla_backend_optimization"),
        ({"zzz": 1}, "zzz is dropped: no installed library for cpu knows it"),
        ({"xla_gpu_graph_level": 0}, "jaxlib 0.10.2 would end the process over it in"),
        ({LEVEL: "high"}, f"{LEVEL}=high is dropped: it needs a whole number"),
    ],
)
def test_dropped(values, text):
    found = placed(values)
    (message,) = found.messages
    assert message.kind == "dropped"
    assert text in message.text
    assert (found.variables, found.options) == ({}, {})


def test_tpu(needs):
    needs("libtpu")
    values = {"xla_enable_async_all_reduce": True, "xla_gpu_autotune_level": 1}
    found = placed(values, backend="tpu")
    assert found.variables == {
        "LIBTPU_INIT_ARGS": "--xla_enable_async_all_reduce=true",
        "XLA_FLAGS": "--xla_gpu_autotune_level=1",
    }


def test_export_lines():
    found = placed({"xla_dump_to": "/tmp/my dump"})
    line = "--xla_dump_to='/tmp/my dump'"
    assert found.export_lines() == f"export XLA_FLAGS={shlex.quote(line)}"
    assert shlex.split(found.export_lines())[1] == f"XLA_FLAGS={line}"
    assert placed({}).export_lines() == ""


def test_json():
    content = json.loads(json.dumps(placed({LEVEL: 0, "zzz": 1}).as_json()))
    assert content["variables"] == {"XLA_FLAGS": f"--{LEVEL}=0"}
    assert content["messages"][0]["kind"] == "dropped"


def test_as_options():
    values = {LEVEL: "2", "xla_cpu_ftz": "true", "xla_disable_hlo_passes": "a,b"}
    assert as_options("mine", values, backend="cpu") == {
        LEVEL: 2,
        "xla_cpu_ftz": True,
        "xla_disable_hlo_passes": "a,b",
    }


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (
            {"xla_cpu_ftzz": True},
            "mine: jaxlib 0.10.2 has no compile option xla_cpu_ftzz; did you mean",
        ),
        ({"xla_fuel": "a=1"}, "has no compile option xla_fuel"),
        ({LEVEL: "x"}, f"mine: {LEVEL}=x: jaxlib 0.10.2 needs a whole number"),
    ],
)
def test_no_option(values, said):
    with pytest.raises(ValueError, match=said):
        as_options("mine", values, backend="cpu")
