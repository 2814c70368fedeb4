import pytest

from profiling._hlo.shape import BITS, ENUM, Shape


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("f32[]", 4),
        ("bf16[64,128]{1,0:T(8,128)(2,1)S(1)}", 64 * 128 * 2),
        ("pred[3]{0}", 3),
        ("c128[2]{0}", 32),
        ("s4[5]{0}", 5),  # unpacked: a byte each
        ("s4[5]{0:E(4)}", 3),  # packed: 20 bits
        ("token[]", 0),
        ("f32[0,4]{1,0}", 0),
        ("f32[<=8,4]{1,0}", 128),
        ("()", 0),
        ("(f32[2]{0}, /*index=1*/(s32[], u8[3]{0}))", 8 + 4 + 3),
    ],
)
def test_bytes(text: str, num_bytes: int) -> None:
    assert Shape.parse(text).num_bytes == num_bytes


def test_layout() -> None:
    shape = Shape.parse("bf16[64,128]{0,1:T(8,128)(2,1)S(5)}")
    assert shape.minor_to_major == (0, 1)
    assert shape.memory_space == 5
    assert str(shape) == "bf16[64,128]"


def test_a_tuple_has_leaves() -> None:
    shape = Shape.parse("((f32[2], s32[]), pred[])")
    assert [str(leaf) for leaf in shape.leaves()] == ["f32[2]", "s32[]", "pred[]"]
    assert shape.num_elements == 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("f33[2]", r"no dtype 'f33'[^^]*\n  f33\[2\]\n  \^"),
        ("f32", "a shape such as"),
        ("(f32[2] s32[])", "',' or '\\)' is expected"),
        ("(f32[2]", "',' or '\\)' is expected"),
        ("f32[2] x", "nothing more is expected"),
        ("f32[2,,3]", "numbers are expected"),
        ("(" * 100, "nested more than 64 deep"),
        ("b[2]", "buffer types are not read"),
    ],
)
def test_what_is_no_shape(text: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        Shape.parse(text)


def test_every_numbered_dtype_has_a_size() -> None:
    assert set(ENUM.values()) <= set(BITS)
