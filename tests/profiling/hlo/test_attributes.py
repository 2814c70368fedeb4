import pytest

from profiling._hlo.attributes import MAX_LITERAL, split, unquoted
from profiling._hlo.damage import TextFault
from tests.profiling.hlo_files import entry


def test_attributes() -> None:
    module = entry(
        "p = (s32[], f32[8,16]) parameter(0), sharding={devices=[2]<=[2]}\n"
        "g = f32[8,16] get-tuple-element(p), index=1\n"
        "i = s32[] get-tuple-element(p), index=0\n"
        "z = s32[] constant(0)\n"
        "d = f32[4,16] dynamic-slice(g, i, z), dynamic_slice_sizes={4,16}\n"
        "s = f32[2,16] slice(d), slice={[0:4:2], [0:16]}\n"
        "m = f32[8,8] dot(g, g), lhs_contracting_dims={1}, rhs_contracting_dims={1}\n"
        "c = pred[] compare(i, z), direction=LT, control-predecessors={m, d}\n"
        'k = f32[2] custom-call(s), custom_call_target="f\\"g",\n'
        '  backend_config={"a":[1,{"b":"}"}]}, frontend_attributes={x="1,2",y=""}\n'
        "ROOT q = f32[8,16] collective-permute(g), channel_id=3,\n"
        "  source_target_pairs={{0,1},{1,0}}"
    )
    found = {i.name: i.attributes for i in module.entry.instructions}
    assert found["p"].sharding == "{devices=[2]<=[2]}"
    assert found["g"].tuple_index == 1
    assert found["d"].slice_sizes == (4, 16)
    assert found["s"].slices == ((0, 4, 2), (0, 16, 1))
    assert (found["m"].lhs_contracting, found["m"].rhs_contracting) == ((1,), (1,))
    assert (found["c"].direction, found["c"].after) == ("LT", ("m", "d"))
    assert found["k"].custom_call_target == 'f"g'
    assert found["k"].backend_config == '{"a":[1,{"b":"}"}]}'
    assert found["k"].frontend_attributes == (("x", "1,2"), ("y", ""))
    assert (found["q"].channel, found["q"].pairs) == (3, ((0, 1), (1, 0)))


def test_convolutions() -> None:
    module = entry(
        "x = f32[8,9,9,3] parameter(0)\n"
        "w = f32[3,3,3,16] parameter(1)\n"
        "ROOT y = f32[8,7,7,16] convolution(x, w), window={size=3x3},"
        " dim_labels=b01f_01io->b01f, feature_group_count=1"
    )
    found = module.entry.root.attributes
    assert (found.window, found.kernel_output_dim) == ((3, 3), 3)
    assert (found.window_steps, found.spatial) == ((), ((1, 1), (2, 2)))


def test_windows_that_jump() -> None:
    """Two dims: strides 1 and 2, padded by 0 and 1, the second one dilated."""
    module = entry(
        "x = f32[9,5,8,3] parameter(0)\nw = f32[3,3,3,16] parameter(1)\n"
        "ROOT y = f32[8,16,7,5] convolution(x, w), dim_labels=01bf_01io->bf01,"
        " window={size=3x3 stride=1x2 pad=0_0x1_1 lhs_dilate=1x2 rhs_dilate=1x1}"
    )
    found = module.entry.root.attributes
    assert found.window_steps == ((1, 0, 0, 1, 1), (2, 1, 1, 2, 1))
    assert found.spatial == ((0, 2), (1, 3))


def test_a_window_that_is_none() -> None:
    with pytest.raises(ValueError, match=r"a window such as .* is due"):
        entry(
            "x = f32[8] parameter(0)\n"
            "ROOT y = f32[8] reduce-window(x, x), window={size=3 stride=1_-2}"
        )


def test_kinds_of_fft() -> None:
    module = entry(
        "x = c64[8] parameter(0)\nROOT y = c64[8] fft(x), fft_type=IFFT, fft_length={8}"
    )
    found = module.entry.root.attributes
    assert (found.fft_kind, found.fft_length) == ("IFFT", (8,))


def test_large_constants_keep_no_values() -> None:
    values = ",".join(["1"] * (MAX_LITERAL + 1))
    module = entry(f"ROOT a = s32[{MAX_LITERAL + 1}] constant({{{values}}})")
    assert module.entry.root.attributes.literal == ()


def test_a_call_is_cut_out_so_that_the_rest_repeats() -> None:
    before = (
        "f {\n  ROOT p = f32[] parameter(0)\n}\ng {\n  ROOT p = f32[] parameter(0)\n}\n"
    )
    module = entry(
        "p = f32[] parameter(0)\n"
        'a = f32[] fusion(p), kind=kLoop, calls=%f, backend_config={"x":1}\n'
        'ROOT b = f32[] fusion(a), kind=kLoop, calls=%g, backend_config={"x":1}',
        before=before,
    )
    a, b = module.instruction("a"), module.instruction("b")
    assert (a.called, b.called) == (("f",), ("g",))
    assert a.attributes is b.attributes


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (", a=(1]", "this ']' closes nothing"),
        (", a={1", "'}' is missing after this"),
        (', a="x', "this string is not closed"),
        (", =1", "an attribute such as"),
    ],
)
def test_faults(text: str, problem: str) -> None:
    with pytest.raises(TextFault, match=problem):
        list(split(text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('"a"', "a"),
        (r'"a\"b\\c\n"', 'a"b\\c\n'),
        (r'"\x41\101\'"', "AA'"),
        ("plain", "plain"),
        ('"', '"'),
    ],
)
def test_strings(text: str, value: str) -> None:
    assert unquoted(text) == value
