import pytest

from profiling._dump_names import parse_name

M = "module_0008.jit_step."


@pytest.mark.parametrize(
    ("name", "number", "module", "stage"),
    [
        # torch_xla 2.9 and jaxlib 0.10.2 on CPU
        (M + "before_optimizations.txt", 8, "jit_step", "before"),
        (M + "cpu_after_optimizations.txt", 8, "jit_step", "scheduled"),
        (M + "cpu_after_optimizations.hlo.pb.gz", 8, "jit_step", "scheduled"),
        (M + "cpu_after_optimizations-buffer-assignment.txt", 8, "jit_step", "buffers"),
        (
            M + "0000.spmd-partitioner.after_shardy-xla.before_spmd-partitioning.txt",
            8,
            "jit_step",
            "before",
        ),
        (
            M + "0001.spmd-partitioner.after_spmd-partitioning.before_dce.hlo.pb",
            8,
            "jit_step",
            "partitioned",
        ),
        (
            "module_0000.SyncTensorsGraph.47.before_optimizations.txt",
            0,
            "SyncTensorsGraph.47",
            "before",
        ),
        (
            "module_0000.SyncTensorsGraph.1234.0001.spmd-partitioner."
            "after_spmd-partitioning.before_pipeline-end.txt",
            0,
            "SyncTensorsGraph.1234",
            "partitioned",
        ),
        # CUDA plugin 0.10.2; with --xla_dump_include_timestamp
        (
            "1795966.module_0001.jit_f.sm_9.0a_gpu_after_optimizations.txt",
            1,
            "jit_f",
            "scheduled",
        ),
        (M + "gfx942_gpu_after_optimizations.txt", 8, "jit_step", "scheduled"),
        (M + "after_spmd_partitioner.txt", 8, "jit_step", "partitioned"),
        # libtpu 0.0.42
        (
            "module_0000.jit_step.cl_933746096.0004.xla-partitioner."
            "after_tpu-spmd-partitioning.before_tpu-call-inliner.txt",
            0,
            "jit_step",
            "partitioned",
        ),
        (
            "module_0000.jit_step.cl_933746096.after_optimizations.txt",
            0,
            "jit_step",
            "scheduled",
        ),
    ],
)
def test_names_that_were_seen(name, number, module, stage) -> None:
    found = parse_name(name)
    assert found is not None
    assert (found.number, found.name, found.stage) == (number, module, stage)


@pytest.mark.parametrize(
    "name",
    [
        M + "cpu_after_optimizations-memory-usage-report.txt",
        M + "cpu_after_optimizations-buffer-assignment-values.txt",
        M + "0002.simplification.after_algsimp.before_dce.txt",
        M + "debug_options",
        M + "kernel_module.ir-no-opt.ll",
        M + "autotune_results.pbtxt",
        "module_0008.jit_step",
        "README.md",
    ],
)
def test_names_that_hold_no_stage(name: str) -> None:
    assert parse_name(name) is None


def test_the_best_file_of_a_stage() -> None:
    names = [
        "after_optimizations_after_buffer_assignment.txt",
        "after_optimizations.txt",
        "after_optimizations.hlo.pb",
        "after_codegen.txt",
        "after_optimizations_before_buffer_assignment.txt",
    ]
    ranks = [found.rank for n in names if (found := parse_name(M + n))]
    assert ranks == sorted(ranks)
    assert len(ranks) == len(names)
