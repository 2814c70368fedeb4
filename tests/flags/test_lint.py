import pytest

import flags
from flags._lint import lint, readers_of

LIST_2024 = (
    "--xla_gpu_enable_latency_hiding_scheduler=true --xla_gpu_enable_triton_gemm=false "
    "--xla_gpu_simplify_all_fp_conversions --xla_gpu_graph_level=0 "
    "--xla_gpu_enable_async_all_gather=true --xla_gpu_enable_async_reduce_scatter=true "
    "--xla_gpu_enable_highest_priority_async_stream=true "
    "--xla_gpu_enable_triton_softmax_fusion=false "
    "--xla_gpu_all_reduce_combine_threshold_bytes=1073741824 "
    "--xla_gpu_all_gather_combine_threshold_bytes=1073741824 "
    "--xla_gpu_reduce_scatter_combine_threshold_bytes=1073741824 "
    "--xla_gpu_enable_pipelined_all_gather=true "
    "--xla_disable_hlo_passes=rematerialization"
)
HOSTS = ("torch_xla", "jaxlib")


def kinds(text, **more):
    found = lint(text, **{"libraries": HOSTS, **more}).findings
    return [(f.level, f.kind, f.name) for f in found]


def test_nothing_to_say():
    found = lint("--xla_gpu_autotune_level=2", libraries=HOSTS)
    assert (found.ok, found.findings) == (True, ())
    assert found.fixed == found.text
    assert found.show().endswith(
        "1 flag, read by torch_xla 2.9.0, jaxlib 0.10.2: nothing to say"
    )


def test_an_old_list():
    found = lint(LIST_2024, libraries=HOSTS)
    errors = [f.name for f in found.findings if f.level == "error"]
    assert errors == [
        "xla_gpu_simplify_all_fp_conversions",
        "xla_gpu_graph_level",
        "xla_gpu_enable_async_all_gather",
        "xla_gpu_enable_async_reduce_scatter",
        "xla_gpu_enable_triton_softmax_fusion",
    ]
    assert {f.kind for f in found.findings if f.level == "error"} == {"retired"}
    harmful = [f.name for f in found.findings if f.kind == "harmful"]
    assert harmful == [
        "xla_gpu_all_gather_combine_threshold_bytes",
        "xla_gpu_reduce_scatter_combine_threshold_bytes",
    ]
    assert all("h100:2x8" in f.source for f in found.findings if f.kind == "harmful")
    assert not found.ok


def test_a_fixed_line_has_no_errors():
    found = lint(LIST_2024, libraries=HOSTS)
    again = lint(found.fixed, libraries=HOSTS)
    assert again.ok
    assert again.findings == ()
    assert "--xla_gpu_enable_command_buffer=" in found.fixed.split()
    assert "--xla_disable_hlo_passes=rematerialization" in found.fixed


@pytest.mark.slow
def test_a_fixed_line_starts_and_the_old_one_does_not():
    from flags import _oracle
    from flags._library import LIBRARIES

    fixed = lint(LIST_2024, libraries=HOSTS).fixed
    for name in HOSTS:
        assert _oracle.start(LIBRARIES[name], fixed)[0] == 0
        assert _oracle.start(LIBRARIES[name], LIST_2024)[0] != 0


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("--xla_gpu_enable_triton_gem=true", ("error", "unknown")),
        ("-xla_gpu_enable_triton_gemm=false", ("error", "unknown")),
        ("--noxla_gpu_enable_triton_gemm", ("error", "unknown")),
        ("--xla_cpu_ftz=false", ("error", "unknown")),
        ("--xla_gpu_autotune_level=two", ("error", "value")),
        ("--xla_gpu_autotune_level", ("error", "value")),
        ("--xla_gpu_autotune_level=4", ("note", "default")),
        ("--xla_gpu_enable_triton_gemm", ("note", "default")),
        ("xla_gpu_autotune_level=2", ("error", "syntax")),
    ],
)
def test_one_flag(text, found):
    ((level, kind, _),) = kinds(text)
    assert (level, kind) == found


def test_defaults_differ():
    # By default true in jaxlib 0.10.2 and false in torch_xla 2.9.0.
    name = "xla_gpu_enable_analytical_sol_latency_estimator"
    assert kinds(f"--{name}=true") == []
    assert kinds(f"--{name}=true", libraries=["jaxlib"]) == [("note", "default", name)]


def test_nearest_name():
    (found,) = lint("--xla_gpu_enable_triton_gem=true", libraries=HOSTS).findings
    assert found.message.startswith("torch_xla 2.9.0 and jaxlib 0.10.2 do not know")
    assert found.message.endswith("did you mean xla_gpu_enable_triton_gemm?")


def test_two_dashes():
    found = lint("-xla_gpu_autotune_level=2", libraries=HOSTS)
    assert "do not know -xla_gpu_autotune_level=2" in found.findings[0].message
    assert found.findings[0].message.endswith("write two dashes")
    assert found.fixed == "--xla_gpu_autotune_level=2"


def test_known_to_one_of_two():
    found = lint("--xla_cpu_ftz=false", libraries=HOSTS)
    (flag,) = found.flags
    assert flag.accepted_by == ("jaxlib 0.10.2",)
    assert flag.refused_by == ("torch_xla 2.9.0",)
    assert "a process that holds them all ends" in found.findings[0].message
    assert lint("--xla_cpu_ftz=false", libraries=["jaxlib"]).ok
    assert found.moved == {"options": "--xla_cpu_ftz=false"}


def test_libtpu_reads_xla_flags_too(needs):
    needs("libtpu")
    (found,) = lint("--xla_cpu_ftz=false", libraries=["jaxlib", "libtpu"]).findings
    assert "libtpu" in found.message


def test_wrong_channel(needs):
    needs("libtpu")
    text = "--xla_tpu_scoped_vmem_limit_kib=98304 --xla_gpu_autotune_level=2"
    found = lint(text, libraries=HOSTS)
    assert [f.kind for f in found.findings] == ["channel"]
    assert "takes it from LIBTPU_INIT_ARGS" in found.findings[0].message
    assert found.fixed == "--xla_gpu_autotune_level=2"
    assert found.moved == {"LIBTPU_INIT_ARGS": "--xla_tpu_scoped_vmem_limit_kib=98304"}
    found = lint(text, where="LIBTPU_INIT_ARGS")
    assert [f.name for f in found.findings] == ["xla_gpu_autotune_level"]
    assert "takes it from XLA_FLAGS" in found.findings[0].message


def test_libtpu_init_args(needs):
    needs("libtpu")
    off = "--noxla_tpu_enable_async_collective_fusion"
    text = f"stray {off} --megascale_grpc_num_channels=64"
    found = lint(text, where="LIBTPU_INIT_ARGS")
    assert [f.kind for f in found.findings] == ["syntax", "harmful"]
    assert "'stray' begins with no dash: it is not read" in found.findings[0].message
    assert found.fixed == "--megascale_grpc_num_channels=64"


def test_options(needs):
    needs("cuda")
    text = "xla_gpu_autotune_level=2 --xla_gpu_enable_triton_gemm=1 xla_fuel=a=1"
    found = lint(text, where="options", backend="gpu")
    assert [(f.kind, f.name) for f in found.findings] == [
        ("value", "xla_gpu_enable_triton_gemm"),
        ("channel", "xla_fuel"),
    ]
    assert lint("xla_gpu_autotune_level=2", where="options").ok
    (unknown,) = lint("xla_no=1", where="options", backend="gpu").findings
    assert "and the compile fails" in unknown.message


def test_a_size_is_written_out():
    name = "xla_gpu_all_gather_combine_threshold_bytes"
    found = lint(f"--{name}=64MB", libraries=HOSTS)
    assert found.fixed == f"--{name}=67108864"
    assert lint("--xla_gpu_autotune_level=two", libraries=HOSTS).fixed == ""


def test_a_word_ends_the_line():
    found = lint("--xla_gpu_autotune_level=2 on --xla_x", libraries=HOSTS)
    assert [f.kind for f in found.findings] == ["syntax", "unknown"]
    assert "ignores everything after it" in found.findings[0].message
    assert found.fixed == "--xla_gpu_autotune_level=2"


def test_a_name_of_a_file():
    found = lint("xla_gpu_autotune_level=2 and", libraries=HOSTS)
    first, second = found.findings
    assert "takes the whole text for the name of a file" in first.message
    assert "has stopped reading before it" in second.message
    assert found.fixed == "--xla_gpu_autotune_level=2"


def test_nothing_but_spaces():
    (found,) = lint("  ", libraries=HOSTS).findings  # ends jaxlib 0.10.2
    assert "nothing but spaces" in found.message
    assert lint("", libraries=HOSTS).ok


def test_repeated():
    text = "--xla_gpu_autotune_level=2 --xla_gpu_autotune_level=3"
    found = lint(text, libraries=HOSTS)
    assert [f.kind for f in found.findings] == ["repeated"]
    assert found.fixed == "--xla_gpu_autotune_level=3"
    # XLA adds these up.
    assert kinds("--xla_disable_hlo_passes=a --xla_disable_hlo_passes=b") == []


def test_conflict():
    text = (
        "--xla_gpu_enable_analytical_sol_latency_estimator=false "
        "--xla_gpu_enable_analytical_latency_estimator=true"
    )
    first, second = lint(text, libraries=["jaxlib"]).findings
    assert (first.kind, second.kind) == ("harmful", "conflict")
    assert second.start == text.index(" ") + 1


def test_a_conflict_with_any_value_but_the_default():
    first = "--xla_gpu_disable_async_collectives=ALLCOLLECTIVES"
    limit = "xla_gpu_experimental_parallel_collective_overlap_limit"
    for value, number in (("1", 0), ("4", 1)):
        found = lint(f"{first} --{limit}={value}", libraries=HOSTS).findings
        assert sum(f.kind == "conflict" for f in found) == number


def test_another_backend():
    ((level, kind, _),) = kinds("--xla_gpu_autotune_level=2", backend="cpu")
    assert (level, kind) == ("warning", "backend")
    (found,) = lint("--xla_gpu_autotune_level=2", backend="cpu").findings
    assert found.message.endswith("is for GPUs and does nothing on CPUs")


def test_harmful_only_on_its_backend(needs):
    needs("cuda", "libtpu")
    text = "--xla_gpu_enable_analytical_sol_latency_estimator=false"
    assert [f.kind for f in lint(text, backend="gpu").findings] == ["harmful"]
    assert [f.kind for f in lint(text, backend="tpu").findings] == ["backend"]


def test_deprecated(needs):
    needs("libtpu")
    name = "xla_tpu_allocate_scoped_vmem_at_same_offset"
    (found,) = lint(f"--{name}=false", where="LIBTPU_INIT_ARGS").findings
    assert (found.level, found.kind) == ("warning", "deprecated")


def test_readers(needs):
    needs("cuda", "libtpu")

    def names(*args):
        return [entry.name for entry in readers_of(*args)]

    assert names("XLA_FLAGS", "gpu") == ["torch_xla", "jaxlib", "cuda"]
    assert names("XLA_FLAGS", "tpu") == ["torch_xla", "jaxlib", "libtpu"]
    assert names("XLA_FLAGS", "cpu") == ["torch_xla", "jaxlib"]
    assert names("options", "cpu") == ["jaxlib"]
    assert names("options", "gpu") == ["cuda"]
    assert names("LIBTPU_INIT_ARGS", None) == ["libtpu"]


def test_no_reader(monkeypatch):
    monkeypatch.setattr("flags._lint.installed_libraries", lambda *_: ())
    with pytest.raises(
        flags.NotInstalledError,
        match=r"no installed library reads LIBTPU_INIT_ARGS; run pip install "
        r"'xla-spmd\[tpu\]'",
    ):
        lint("--xla_a", where="LIBTPU_INIT_ARGS")


def test_a_variable_that_a_backend_has_not():
    with pytest.raises(ValueError, match="LIBTPU_INIT_ARGS is not read for gpu"):
        lint("--xla_a", where="LIBTPU_INIT_ARGS", backend="gpu")


def test_bad_use():
    with pytest.raises(ValueError, match="where='env'; it is one of XLA_FLAGS, LIBTPU"):
        lint("--a", where="env")
    with pytest.raises(ValueError, match="backend='rocm'; it is one of cpu, gpu, tpu"):
        lint("--a", backend="rocm")
