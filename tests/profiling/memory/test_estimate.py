import json
from pathlib import Path

import pytest

from profiling._hlo.load import load_module
from profiling._memory.estimate import estimate
from tests.profiling.hlo_files import DATA, JAX, SUM, TORCH_XLA, entry

RUNS = Path(__file__).parents[4] / "shared" / "data" / "a100_fft"
UNITS = {"KB": 2**10, "MB": 2**20, "GB": 2**30}


def test_a_chain():
    # Each value is 1024 bytes. b may lie where the output d will be, for c is between;
    # c needs a place of its own.
    found = estimate(
        entry(
            "a = f32[256] parameter(0)\nb = f32[256] reverse(a), dimensions={0}\n"
            "c = f32[256] reverse(b), dimensions={0}\n"
            "ROOT d = f32[256] reverse(c), dimensions={0}"
        ),
        "cpu",
    )
    assert (found.argument_bytes, found.output_bytes) == (1024, 1024)
    assert (found.alias_bytes, found.temp_bytes) == (0, 1024)
    # With b: the argument, b in the output's place, c.
    assert found.peak_bytes == 3072
    assert [life.instruction.name for life in found.at_peak] == ["c"]


def test_in_place_where_it_may_be():
    # sine, cosine and negate write over what they read: all in the output's place.
    found = estimate(
        entry(
            "a = f32[256] parameter(0)\nb = f32[256] sine(a)\nc = f32[256] cosine(b)\n"
            "ROOT d = f32[256] negate(c)"
        ),
        "cpu",
    )
    assert found.temp_bytes == 0
    assert found.peak_bytes == 2048


def test_a_donated_input_gives_its_memory_meanwhile():
    # w (1024) is last read by g; h (1024) then lies there until the new w is made.
    found = estimate(
        entry(
            "w = f32[256] parameter(0)\ng = f32[64] slice(w), slice={[0:64]}\n"
            "h = f32[256] broadcast(g), dimensions={}\n"
            "k = f32[64] slice(h), slice={[0:64]}\n"
            "ROOT n = f32[256] broadcast(k), dimensions={}",
            header=", input_output_alias={ {}: (0, {}, may-alias) }",
        ),
        "gpu",
    )
    assert found.alias_bytes == found.output_bytes == found.argument_bytes == 1024
    # g and k (256 each) are not needed together, and each next to h and n: 256 bytes.
    assert found.temp_bytes == 256
    assert found.peak_bytes == 1024 + 256


def test_values_of_other_sizes_and_alignment():
    # b (32 bytes) and c (4) live together, d is the output: on a CPU c starts at 64.
    body = (
        "a = f32[8] parameter(0)\nb = f32[8] reverse(a), dimensions={0}\n"
        "c = f32[] constant(0)\ne = f32[] negate(c)\n"
        'ROOT d = f32[2] custom-call(a, b, e), custom_call_target="x"'
    )
    assert estimate(entry(body), "cpu").temp_bytes == 64 + 4
    assert estimate(entry(body), "gpu").temp_bytes == 256 + 4


def test_tables_of_pointers():
    # The output is 4 + 8 bytes and a table of two pointers; the call's own result is a
    # table more, behind the arena. A TPU has none of them.
    body = (
        "a = f32[2] parameter(0)\n"
        'c = (f32[], f32[2]) custom-call(a), custom_call_target="x"\n'
        "s = f32[] get-tuple-element(c), index=0\n"
        "v = f32[2] get-tuple-element(c), index=1\n"
        "ROOT t = (f32[], f32[2]) tuple(s, v)"
    )
    found = estimate(entry(body), "gpu")
    assert (found.output_bytes, found.temp_bytes) == (12 + 16, 16)
    found = estimate(entry(body), "tpu")
    assert (found.output_bytes, found.temp_bytes) == (12, 0)


@pytest.mark.parametrize(("platform", "temp"), [("cpu", 2048), ("gpu", 1024)])
def test_reductions_in_place(platform, temp):
    # b is reduced to r, of which two bytes are put out.
    found = estimate(
        entry(
            "a = f32[256] parameter(0)\nb = f32[256] reverse(a), dimensions={0}\n"
            "r = f32[256] all-reduce(b), to_apply=sum\n"
            "ROOT d = f32[2] slice(r), slice={[0:2]}",
            before=SUM,
        ),
        platform,
    )
    assert found.temp_bytes == temp


def test_a_loop():
    # The state (1024) lies where the output will be; y and x (1024 each) are made in
    # the body: x is the next state, y is needed with both. So y alone is temporary.
    found = estimate(
        entry(
            "a = f32[256] parameter(0)\nt0 = f32[256] reverse(a), dimensions={0}\n"
            "t = (f32[256]) tuple(t0)\nl = (f32[256]) while(t), condition=cond, "
            "body=body\nROOT g = f32[256] get-tuple-element(l), index=0",
            before=(
                "body {\ns = (f32[256]) parameter(0)\n"
                "v = f32[256] get-tuple-element(s), index=0\n"
                "y = f32[256] reverse(v), dimensions={0}\n"
                "x = f32[256] add(v, y)\nROOT r = (f32[256]) tuple(x)\n}\n"
                "cond {\ns.1 = (f32[256]) parameter(0)\n"
                "ROOT p = pred[] constant(false)\n}\n"
            ),
        ),
        "tpu",
    )
    assert found.output_bytes == 1024
    assert found.temp_bytes == 1024
    assert [life.instruction.name for life in found.at_peak] == ["y"]


@pytest.mark.parametrize(
    ("folder", "figures"),
    [
        # As the assignments beside them say; see test_buffers_text.
        (JAX, (10240, 8208, 8192, 32772)),
        (TORCH_XLA, (3080, 4124, 2048, 32772)),
    ],
)
def test_real_cpu_modules(folder, figures):
    found = {
        tuple(
            getattr(estimate(load_module(path), "cpu"), f"{name}_bytes")
            for name in ("argument", "output", "alias", "temp")
        )
        for path in folder.glob("*[0-9p].cpu_after_optimizations.txt")
        if "broadcast" not in path.name
    }
    assert found == {figures}


def test_a_real_gpu_module():
    # Recorded, to 10 MB: argument 1, output 2, temporary 4 GB. Behind the arena lie the
    # tables of two all-to-alls, of 16, 8, 16 and 8 bytes, each at a multiple of 256.
    name = "a100_8_jaxfft_1024_2_4_NCCL_float64_FFT.hlo.gz"
    found = estimate(load_module(DATA / name), "gpu")
    assert found.argument_bytes == 1 << 30
    assert found.output_bytes == 2 << 30
    assert found.temp_bytes == (4 << 30) + 3 * 256 + 16
    assert found.alias_bytes == 0


def test_a_tpu_keeps_most_elsewhere():
    found = estimate(load_module(DATA / "tpu_v5e_fused.txt.gz"), "tpu")
    assert found.alias_bytes == 1048576
    assert found.temp_bytes == 0  # all is in S(1), its vector memory


@pytest.mark.skipif(not RUNS.is_dir(), reason="the recorded runs are not here")
def test_all_recorded_runs():
    rows = json.loads((RUNS / "runs.json").read_text())
    assert len(rows) == 56
    for row in rows:
        found = estimate(load_module(RUNS / row["file"]), "gpu")
        for name, size in (
            ("argument", found.argument_bytes),
            ("output", found.output_bytes),
            ("temporary", found.temp_bytes),
        ):
            unit = row[name].split()[1]
            assert f"{size / UNITS[unit]:.2f} {unit}" == row[name], row["file"]
