import pytest

from profiling._timeline.flops import Matmul, fft_flops, matmul, vector_flops
from tests.profiling.hlo_files import DATA, content, entry, parse

DIMS = '"dot_dimension_numbers":{"lhs_contracting_dimensions":["1"]}'
SCORES = (
    '"intermediate_tensor_shape":{"element_type":"BF16","dimensions":["2","4","8","16"]'
)


def root(body: str) -> Matmul:
    found = matmul(entry(body).entry.root)
    assert found is not None
    return found


def test_a_dot():
    """[2, 8, 16] x [2, 16, 32]: 2 x 16 for each of 2 x 8 x 32 results."""
    found = root(
        "a = bf16[2,8,16] parameter(0)\nb = bf16[2,16,32] parameter(1)\n"
        "ROOT d = f32[2,8,32] dot(a, b), lhs_batch_dims={0}, rhs_batch_dims={0},"
        " lhs_contracting_dims={2}, rhs_contracting_dims={1}"
    )
    assert (found.flops, found.dtype) == (2 * 16 * 2 * 8 * 32, "bfloat16")


@pytest.mark.parametrize(
    ("dtype", "rate", "times"),
    [
        ("f32", "tfloat32", 1),
        ("f64", "float64", 1),
        ("f16", "float16", 1),
        ("f8e4m3fn", "float8", 1),
        ("s8", "int8", 1),
        ("s4", "int4", 1),
        ("c64", "tfloat32", 4),
        ("c128", "float64", 4),
    ],
)
def test_the_dtype_it_is_multiplied_as(dtype, rate, times):
    found = root(
        f"a = {dtype}[8,16] parameter(0)\n"
        f"ROOT d = {dtype}[8,8] dot(a, a), lhs_contracting_dims={{1}},"
        f" rhs_contracting_dims={{1}}"
    )
    assert (found.flops, found.dtype) == (times * 2 * 16 * 8 * 8, rate)


@pytest.mark.parametrize(
    ("line", "flops"),
    [
        # 2 x 3x3x3 for each of 8 x 7 x 7 x 16 results, nothing is padded
        (
            "x = f32[8,9,9,3] parameter(0)\nw = f32[3,3,3,16] parameter(1)\n"
            "ROOT y = f32[8,7,7,16] convolution(x, w), window={size=3x3},"
            " dim_labels=b01f_01io->b01f",
            2 * 27 * 8 * 7 * 7 * 16,
        ),
        # padded by one: of 3 x 9 places along a dim, 2 are outside: 25 x 25
        (
            "x = f32[8,9,9,3] parameter(0)\nw = f32[3,3,3,16] parameter(1)\n"
            "ROOT y = f32[8,9,9,16] convolution(x, w), window={size=3x3 pad=1_1x1_1},"
            " dim_labels=b01f_01io->b01f",
            2 * 3 * 25 * 25 * 8 * 16,
        ),
        # a TPU's matmul: [64, 32] x [32, 16]
        (
            "x = bf16[64,32] parameter(0)\nw = bf16[32,16] parameter(1)\n"
            "ROOT y = bf16[64,16] convolution(x, w), dim_labels=bf_io->bf",
            2 * 32 * 64 * 16,
        ),
        # a TPU's batched matmul, 8 x [64, 32] x [32, 16]: the batch is dilated
        (
            "x = bf16[8,64,32] parameter(0)\nw = bf16[8,32,16] parameter(1)\n"
            "ROOT y = bf16[8,64,16] convolution(x, w),"
            " window={size=8 stride=7 pad=0_0 lhs_dilate=8}, dim_labels=0bf_0io->0bf",
            2 * 32 * 8 * 64 * 16,
        ),
        # a TPU's matmul that sums over two dims: [64, 2 x 32] x [2 x 32, 16]
        (
            "x = bf16[64,2,32] parameter(0)\nw = bf16[2,32,16] parameter(1)\n"
            "ROOT y = bf16[64,16,1] convolution(x, w), window={size=2},"
            " dim_labels=b0f_0io->bf0",
            2 * 64 * 64 * 16,
        ),
        # each of 3 features on its own
        (
            "x = f32[8,9,3] parameter(0)\nw = f32[3,1,3] parameter(1)\n"
            "ROOT y = f32[8,7,3] convolution(x, w), window={size=3},"
            " dim_labels=b0f_0io->b0f, feature_group_count=3",
            2 * 3 * 8 * 7 * 3,
        ),
    ],
)
def test_convolutions(line, flops):
    assert root(line).flops == pytest.approx(flops)


def test_a_batch_too_large_to_count_is_taken_as_it_is():
    found = root(
        "x = f32[1,5000,1] parameter(0)\nw = f32[5000,1,1] parameter(1)\n"
        "ROOT y = f32[1,5000,1] convolution(x, w), window={size=5000 pad=2500_2499},"
        " dim_labels=b0f_0io->b0f"
    )
    assert found.flops == pytest.approx(2 * 5000 * 5000)


@pytest.mark.parametrize(
    ("target", "config", "flops"),
    [
        ("__cublas$gemm", f"{{{DIMS}}}", 2 * 16 * 8 * 16),
        (
            "__cublas$lt$matmul",
            f'{{"gemm_backend_config":{{{DIMS}}}}}',
            2 * 16 * 8 * 16,
        ),
        ("__cublas$lt$matmul$f8", "{}", 2 * 16 * 8 * 16),
        # scores [2, 4, 8, 16] with heads of 16: q k and scores v
        ("__cudnn$fmhaSoftmax", f"{{{SCORES}}}}}", 2 * 2 * 16 * 2 * 4 * 8 * 16),
        ("__cudnn$fmhaSoftmaxBackward", f"{{{SCORES}}}}}", 5 * 2 * 16 * 2 * 4 * 8 * 16),
        ("tpu_custom_call", '{"cost_estimate":{"flops":"123","bytes":4}}', 123),
    ],
)
def test_custom_calls(target, config, flops):
    escaped = config.replace('"', '\\"')
    found = root(
        "a = bf16[8,16] parameter(0)\nb = bf16[16,16] parameter(1)\n"
        "ROOT c = (bf16[8,16], s8[4096]) custom-call(a, b),"
        f' custom_call_target="{target}", backend_config="{escaped}"'
    )
    assert found.flops == flops


def test_float32_that_asks_for_all_of_its_bits():
    config = (
        f'{{{DIMS},"precision_config":{{"operand_precision":["HIGHEST","HIGHEST"]}}}}'
    )
    escaped = config.replace('"', '\\"')
    found = root(
        "a = f32[8,16] parameter(0)\n"
        "ROOT c = (f32[8,16], s8[64]) custom-call(a, a),"
        f' custom_call_target="__cublas$gemm", backend_config="{escaped}"'
    )
    assert found.dtype == "float32"


@pytest.mark.parametrize(
    "line",
    [
        "ROOT b = f32[8,16] add(a, a)",
        'ROOT b = f32[8,16] custom-call(a), custom_call_target="Unknown"',
        'ROOT b = f32[8,16] custom-call(a), custom_call_target="__cudnn$fmhaSoftmax"',
    ],
)
def test_what_is_no_matmul_or_does_not_say(line):
    assert matmul(entry(f"a = f32[8,16] parameter(0)\n{line}").entry.root) is None


def test_ffts():
    """64 transforms of 1024: 5 x 1024 x 10 each, half of it for real ones."""
    module = entry(
        "x = c64[64,1024] parameter(0)\nr = f32[64,1024] parameter(1)\n"
        "a = c64[64,1024] fft(x), fft_type=IFFT, fft_length={1024}\n"
        "b = c64[64,513] fft(r), fft_type=RFFT, fft_length={1024}\n"
        "ROOT t = (c64[64,1024], c64[64,513]) tuple(a, b)"
    )
    a, b = module.entry.root.operands
    assert a.attributes.fft_kind == "IFFT"
    assert fft_flops(a) == vector_flops(a) == 64 * 5 * 1024 * 10
    assert fft_flops(b) == 64 * 5 * 1024 * 10 / 2


def test_the_rest_counts_elements():
    module = parse(
        "HloModule m\nsum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
        "  ROOT s = f32[] add(a, b)\n}\nENTRY e {\n  x = f32[8,16] parameter(0)\n"
        "  z = f32[] constant(0)\n  r = f32[8] reduce(x, z), dimensions={1},"
        " to_apply=sum\n  c = f32[16,8] transpose(x), dimensions={1,0}\n"
        "  ROOT t = (f32[8], f32[16,8]) tuple(r, c)\n}\n"
    )
    r, c = module.entry.root.operands
    assert vector_flops(r) == 128
    assert vector_flops(c) == 0


def test_gpu_and_tpu_count_the_same_for_one_program():
    """Both fixtures are the same step on 8 devices: two layers of 256 x 512 x 2048.

    Each device multiplies [256, 512] by [512, 2048] and back, forward once and backward
    twice; the gradient of the step's input is not needed: 11 of 12 products.
    """
    expected = 11 * 2 * 256 * 512 * 2048
    for name in ("gpu_h100.txt.gz", "tpu_v5e_fused.txt.gz"):
        module = parse(content(DATA / name))
        found = [matmul(i) for i in module.instructions()]
        assert sum(m.flops for m in found if m is not None) == expected, name
