import sys

import pytest

import flags
from flags import _catalogue
from flags._catalogue import catalogue, nearest
from flags._library import LIBRARIES, NotInstalledError


@pytest.mark.parametrize("name", LIBRARIES)
def test_without_a_cache(name, own_cache, needs):
    needs(name)
    found = catalogue(name)
    assert len(found.flags) > 200
    assert [file.name.partition("-")[0] for file in own_cache.iterdir()] == [name]
    _catalogue._catalogue.cache_clear()
    assert catalogue(name) == found


# Each was seen by starting the library (flags/_confirm.py).
@pytest.mark.parametrize(
    ("name", "flag", "channel", "accepted"),
    [
        ("torch_xla", "xla_gpu_graph_level", "XLA_FLAGS", True),
        ("torch_xla", "xla_cpu_ftz", "XLA_FLAGS", False),
        ("torch_xla", "xla_detailed_logging", "XLA_FLAGS", False),
        ("torch_xla", "xla_gpu_autotune_level", "options", False),
        ("jaxlib", "xla_gpu_graph_level", "XLA_FLAGS", False),
        ("jaxlib", "xla_cpu_ftz", "XLA_FLAGS", True),
        ("jaxlib", "xla_detailed_logging", "XLA_FLAGS", False),
        ("jaxlib", "xla_detailed_logging", "options", True),
        ("jaxlib", "xla_fuel", "XLA_FLAGS", True),
        ("jaxlib", "xla_fuel", "options", False),
        ("jaxlib", "xla_gpu_analytical_latency_estimator_options", "XLA_FLAGS", True),
        ("jaxlib", "xla_gpu_analytical_latency_estimator_options", "options", False),
        ("cuda", "xla_gpu_autotune_level", "options", True),
        ("libtpu", "xla_cpu_ftz", "XLA_FLAGS", False),
        ("libtpu", "xla_dump_to", "XLA_FLAGS", True),
        ("libtpu", "xla_dump_to", "LIBTPU_INIT_ARGS", False),
        ("libtpu", "xla_tpu_scoped_vmem_limit_kib", "LIBTPU_INIT_ARGS", True),
        ("libtpu", "xla_tpu_scoped_vmem_limit_kib", "options", True),
        ("libtpu", "xla_tpu_scoped_vmem_limit_kib", "XLA_FLAGS", False),
        ("libtpu", "megascale_grpc_num_channels", "LIBTPU_INIT_ARGS", True),
        ("libtpu", "megascale_grpc_num_channels", "options", False),
        ("libtpu", "xla_tpu_use_enhanced_launch_barrier", "options", True),
    ],
)
def test_who_accepts_what(name, flag, channel, accepted, needs):
    needs(name)
    assert catalogue(name).accepts(flag, channel) is accepted


@pytest.mark.parametrize(
    ("flag", "kind", "default"),
    [
        ("xla_gpu_all_gather_combine_threshold_bytes", "int64", "31457287"),
        ("xla_gpu_enable_analytical_sol_latency_estimator", "bool", "true"),
        ("xla_gpu_deterministic_ops", "bool", "false"),
        ("xla_disable_hlo_passes", "string", ""),
        ("xla_gpu_autotune_gemm_rtol", "float", "0.1"),
        ("xla_dump_to", "string", None),
    ],
)
def test_types_and_defaults(flag, kind, default):
    found = catalogue("jaxlib").flags[flag]
    assert (found.type, found.default) == (kind, default)


def test_nothing_is_started_or_loaded(run_script):
    result = run_script(
        """
        import subprocess, sys
        subprocess.Popen = subprocess.run = None
        import flags
        print(flags.catalogue("torch_xla"), flags.catalogue("jaxlib"))
        assert not {"torch", "torch_xla", "jax", "jaxlib"} & set(sys.modules)
        """
    )
    assert result.rc == 0, result.stderr
    assert "Catalogue(torch_xla 2.9.0: 240 flags)" in result.stdout


def test_another_version_is_asked(own_cache, monkeypatch):
    asked = []

    def confirm(entry):
        asked.append(entry.name)
        return flags._confirm.Confirmed(entry.name, "9", absent=("xla_cpu_ftz",))

    monkeypatch.setattr("flags._confirm.shipped", lambda *_: None)
    monkeypatch.setattr("flags._confirm.confirm", confirm)
    assert not catalogue("jaxlib").accepts("xla_cpu_ftz", "XLA_FLAGS")
    _catalogue._catalogue.cache_clear()
    assert not catalogue("jaxlib").accepts("xla_cpu_ftz", "XLA_FLAGS")
    assert asked == ["jaxlib"]


@pytest.mark.parametrize("text", ["", "{", "[]", '{"from": 1}', '{"flags": 3}'])
def test_a_damaged_cache_is_read_again(own_cache, text):
    found = catalogue("jaxlib")
    (file,) = own_cache.iterdir()
    good = file.read_text(encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    _catalogue._catalogue.cache_clear()
    assert catalogue("jaxlib") == found
    assert file.read_text(encoding="utf-8") == good


def test_not_installed(monkeypatch):
    monkeypatch.setattr("flags._library._shared_object", lambda *_: None)
    with pytest.raises(NotInstalledError, match="cuda is not installed; run pip"):
        catalogue("cuda")


def test_unknown_library():
    with pytest.raises(ValueError, match="unknown library 'xla'"):
        catalogue("xla")


def test_nearest():
    known = catalogue("jaxlib").flags
    assert nearest("xla-gpu-autotune-levl", known) == "xla_gpu_autotune_level"
    assert nearest("something_else", known) is None


def test_repr_and_package():
    assert "jaxlib" in repr(catalogue("jaxlib"))
    assert sys.modules["flags"].catalogue is catalogue
