import pytest

from profiling._hlo.module import Instruction, Module
from profiling._targets.target import Target
from profiling._timeline.op_cost import OpCost, OpCosts
from tests.profiling.hlo_files import SUM, entry, parse

# The figures of `cpu` are round: 1e11 FLOP/s, 2e10 bytes/s, 1 us for each kernel.
CPU, GPU, TPU = (Target.parse(text) for text in ("cpu:4", "a100:1x8", "v5e:2x4"))


def cost(module: Module, target: Target = CPU, name: str = "") -> OpCost:
    found: Instruction = module.instruction(name) if name else module.entry.root
    return OpCosts(module, target)(found)


MATMUL = (
    "a = f32[1000,1000] parameter(0)\nROOT d = f32[1000,1000] dot(a, a),"
    " lhs_contracting_dims={1}, rhs_contracting_dims={0}"
)


def test_a_matmul_that_computes():
    """2e9 FLOPs at 1e11: 20 ms; 12 MB at 2e10 would be 0.6 ms."""
    found = cost(entry(MATMUL))
    assert found.kind == "matmul"
    assert found.seconds == pytest.approx(20e-3 + 1e-6)
    assert [m.flops for m in found.matmuls] == [2e9]


def test_a_matmul_that_reads():
    """A vector by a matrix: 2e6 FLOPs are 20 us, 4.008 MB are 200.4 us."""
    found = cost(
        entry(
            "a = f32[1,1000] parameter(0)\nb = f32[1000,1000] parameter(1)\n"
            "ROOT d = f32[1,1000] dot(a, b), lhs_contracting_dims={1},"
            " rhs_contracting_dims={0}"
        )
    )
    assert found.seconds == pytest.approx(4.008e6 / 2e10 + 1e-6)


def test_shares_of_a_gpu():
    """bf16 on A100: 2e12 FLOPs at 80% of 312e12; f32 as TF32, at half of that."""
    for dtype, peak in (("bf16", 312e12), ("f32", 156e12)):
        text = MATMUL.replace("1000", "10000").replace("f32", dtype)
        found = cost(entry(text), GPU)
        assert found.seconds == pytest.approx(2e12 / (0.8 * peak) + 2e-6)


def test_what_costs_nothing():
    module = entry(
        "a = f32[8] parameter(0)\nb = f32[2,4] bitcast(a)\nt = (f32[2,4]) tuple(b)\n"
        "g = f32[2,4] get-tuple-element(t), index=0\n"
        "c = f32[8] constant({1,1,1,1,1,1,1,1})\n"
        'k = f32[8] custom-call(), custom_call_target="AllocateBuffer"\n'
        "ROOT s = f32[8] add(c, k)"
    )
    for name in "abtgck":
        assert cost(module, name=name).seconds == 0, name
    assert cost(module).seconds > 0


def test_a_fusion_that_only_renames():
    module = parse(
        "HloModule m\nf {\n  p = f32[8] parameter(0)\n"
        "  ROOT b = f32[2,4] bitcast(p)\n}\n"
        "ENTRY e {\n  x = f32[8] parameter(0)\n"
        "  ROOT y = f32[2,4] fusion(x), kind=kLoop, calls=f\n}\n"
    )
    assert cost(module).seconds == 0


def test_a_fusion_has_its_matmuls_and_its_bytes_once():
    """The result is scaled in registers: 12 MB of traffic, 2e9 FLOPs."""
    module = parse(
        f"HloModule m\nf {{\n{MATMUL.replace('ROOT ', '')}\n"
        "  ROOT n = f32[1000,1000] negate(d)\n}\n"
        "ENTRY e {\n  x = f32[1000,1000] parameter(0)\n"
        "  ROOT y = f32[1000,1000] fusion(x), kind=kCustom, calls=f\n}\n"
    )
    found = cost(module)
    assert found.kind == "matmul"
    assert found.seconds == pytest.approx(20e-3 + 1e-6)


def test_scalars_of_a_tpu_are_not_its_vector_units():
    text = "a = s32[] parameter(0)\nROOT b = s32[] add(a, a)"
    assert cost(entry(text), TPU).seconds == 0
    assert cost(entry(text), GPU).seconds == pytest.approx(2e-6, rel=1e-3)


def test_a_tpus_vector_memory_is_fast():
    """8 MB read and written: at 90% of 819 GB/s, and 22 times that."""
    text = "a = f32[1000,2000]{L} parameter(0)\nROOT b = f32[1000,2000]{L} copy(a)"
    slow = cost(entry(text.replace("{L}", "")), TPU)
    fast = cost(entry(text.replace("{L}", "{1,0:S(1)}")), TPU)
    assert slow.kind == fast.kind == "copy"
    assert slow.seconds == pytest.approx(16e6 / (0.9 * 819e9) + 1e-6)
    assert fast.seconds == pytest.approx(16e6 / (0.9 * 819e9) / 22 + 1e-6)


@pytest.mark.parametrize(
    ("kind", "dtype", "length", "passes"),
    [
        ("FFT", "c64", "1024", 1),
        ("IFFT", "c64", "1024", 2),  # cuBLAS scales it
        ("FFT", "c64", "8192", 2),  # 64 KiB are more than a thread block has
        ("FFT", "c128", "4096", 2),
        ("FFT", "c64", "64,32", 2),
    ],
)
def test_ffts_pass_over_memory(kind, dtype, length, passes):
    dims = {"1024": "64,1024", "8192": "8,8192", "4096": "16,4096"}.get(
        length, "64,64,32"
    )
    module = entry(
        f"x = {dtype}[{dims}] parameter(0)\n"
        f"ROOT y = {dtype}[{dims}] fft(x), fft_type={kind}, fft_length={{{length}}}"
    )
    moved = 2 * module.entry.root.shape.num_bytes * passes
    found = cost(module, GPU)
    assert found.kind == "fft"
    assert found.seconds == pytest.approx(moved / (0.88 * 2.039e12) + 2e-6)


def test_double_precision_has_half_of_the_vector_units():
    """A reduction of so many elements that arithmetic counts, on the nominal CPU."""
    times = {}
    for dtype in ("f32", "f64"):
        body = "\n".join(
            f"a{i + 1} = {dtype}[8,999] multiply(a{i}, a{i})" for i in range(99)
        )
        module = parse(
            f"HloModule m\nf {{\na0 = {dtype}[8,999] parameter(0)\n{body}\n"
            f"ROOT r = {dtype}[8,999] negate(a99)\n}}\nENTRY e {{\n"
            f"x = {dtype}[8,999] parameter(0)\n"
            f"ROOT y = {dtype}[8,999] fusion(x), kind=kLoop, calls=f\n}}\n"
        )
        times[dtype] = cost(module).seconds - 1e-6
    assert times["f32"] == pytest.approx(100 * 8 * 999 / 1e11)
    assert times["f64"] == pytest.approx(2 * times["f32"])


def test_what_runs_aside():
    """A copy moves its result once: 4 MB at 2e10; the wrapped matmul takes its time."""
    module = parse(
        f"HloModule m\n{SUM}w {{\n{MATMUL}\n}}\nENTRY e {{\n"
        "  x = f32[1000,1000] parameter(0)\n"
        "  c = (f32[1000,1000], f32[1000,1000], u32[]) copy-start(x)\n"
        "  d = f32[1000,1000] copy-done(c)\n"
        "  s = ((f32[1000,1000]), f32[1000,1000], s32[]) async-start(x), calls=w\n"
        "  ROOT f = f32[1000,1000] async-done(s)\n}\n"
    )
    costs = OpCosts(module, CPU)
    assert costs.aside_seconds(module.instruction("c")) == pytest.approx(4e6 / 2e10)
    start = module.instruction("s")
    assert costs.aside_seconds(start) == pytest.approx(20e-3 + 1e-6)
    assert [m.flops for m in costs(start).matmuls] == [2e9]
    assert costs(module.instruction("d")).seconds == 0
    assert costs(module.instruction("f")).seconds == 0
