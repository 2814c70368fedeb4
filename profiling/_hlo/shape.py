"""`Shape`: what an HLO value is, and how many bytes it takes.

Source of the grammar and of the type names: XLA's `xla_data.proto` and `shape.cc`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from profiling._hlo.damage import TextFault

BITS: dict[str, int] = {
    "pred": 8,
    **{kind + str(n): n for kind in "su" for n in (1, 2, 4, 8, 16, 32, 64)},
    **{"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128},
    **dict.fromkeys(
        "f8e5m2 f8e4m3 f8e4m3fn f8e4m3b11fnuz f8e3m4 f8e5m2fnuz f8e4m3fnuz f8e8m0fnu"
        "".split(),
        8,
    ),
    **{"f4e2m1fn": 4, "f6e3m2fn": 6, "f6e2m3fn": 6},
    **{"token": 0, "opaque": 0},
}
"""Bits of one element by dtype; 0 for what has no size."""

ENUM: dict[int, str] = {
    **dict(enumerate("pred s8 s16 s32 s64 u8 u16 u32 u64 f16 f32 f64".split(), 1)),
    **{14: "opaque", 15: "c64", 16: "bf16", 17: "token", 18: "c128", 19: "f8e5m2"},
    **{20: "f8e4m3fn", 21: "s4", 22: "u4", 23: "f8e4m3b11fnuz", 24: "f8e5m2fnuz"},
    **{25: "f8e4m3fnuz", 26: "s2", 27: "u2", 28: "f8e4m3", 29: "f8e3m4", 30: "s1"},
    **{31: "u1", 32: "f4e2m1fn", 33: "f8e8m0fnu", 35: "f6e3m2fn", 36: "f6e2m3fn"},
}
"""Dtype by XLA's `PrimitiveType`; tuples (13) and buffers (34) are handled apart."""


@dataclass(frozen=True, slots=True)
class Shape:
    """One array's type, or a tuple of them.

    Attributes:
        dtype: XLA's name, e.g. ``"bf16"``; ``"tuple"`` for a tuple.
        dims: Sizes; a bounded dynamic dim counts with its bound.
        elements: Of a tuple, its elements.
        minor_to_major: Layout; empty where none is said.
        element_bits: Bits an element takes where the layout says so (packed int4);
            0 for the dtype's own size.
        memory_space: Where the layout puts it, as the backend counts (0 is the default
            memory; TPU and GPU use 5 for the host's).

    Example:
        >>> shape = Shape.parse("(bf16[64,128]{1,0}, s32[])")
        >>> shape.num_bytes, [str(leaf) for leaf in shape.leaves()]
        (16388, ['bf16[64,128]', 's32[]'])
    """

    dtype: str
    dims: tuple[int, ...] = ()
    elements: tuple[Shape, ...] = ()
    minor_to_major: tuple[int, ...] = ()
    element_bits: int = 0
    memory_space: int = 0

    @property
    def is_tuple(self) -> bool:
        """Whether this is a tuple."""
        return self.dtype == "tuple"

    @property
    def num_elements(self) -> int:
        """Elements of the array; of a tuple, of all its arrays."""
        if self.is_tuple:
            return sum(e.num_elements for e in self.elements)
        return math.prod(self.dims)

    @property
    def num_bytes(self) -> int:
        """Bytes of the data, without tuple tables and without a TPU's tile padding.

        A type of fewer than 8 bits takes a byte an element unless the layout packs it
        (XLA's `ShapeUtil::ByteSizeOfElements`).
        """
        if self.is_tuple:
            return sum(e.num_bytes for e in self.elements)
        bits = self.element_bits or -(-BITS[self.dtype] // 8) * 8
        return -(-math.prod(self.dims) * bits // 8)

    def leaves(self) -> Iterator[Shape]:
        """Yield the arrays, depth first; an array yields itself.

        Yields:
            Shapes that are not tuples.
        """
        if not self.is_tuple:
            yield self
        for element in self.elements:
            yield from element.leaves()

    def __str__(self) -> str:
        """XLA's text without the layout."""
        if self.is_tuple:
            return "(" + ", ".join(map(str, self.elements)) + ")"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Read XLA's text.

        Args:
            text: E.g. ``f32[8,16]{1,0:T(8,128)S(1)}`` or a tuple of such.

        Returns:
            The shape.

        Raises:
            ValueError: Text that is no shape; a caret shows where it stops.
        """
        try:
            return parse_shape(text)
        except TextFault as fault:
            raise ValueError(
                f"{fault.problem}:\n  {text}\n  {' ' * fault.at}^"
            ) from None


def parse_shape(text: str) -> Shape:
    """Read a shape for a reader that knows where it stands in a file.

    Args:
        text: XLA's text.

    Returns:
        The shape.

    Raises:
        TextFault: Text that is no shape.
    """
    shape, end = _shape(text, 0, 0)
    if text[end:].strip():
        raise TextFault("nothing more is expected after this shape", end)
    return shape


_ARRAY = re.compile(
    r"(?P<dtype>[a-z][a-z0-9]*)\[(?P<dims>[0-9,<=? ]*)\]"
    r"(?:\{(?P<order>[0-9,]*)(?P<rest>:[^{}]*|)\})?"
)
_GAP = re.compile(r"(?:\s|/\*.*?\*/)*")
_DEEPEST = 64


def _shape(text: str, at: int, depth: int) -> tuple[Shape, int]:
    at = _after_gap(text, at)
    if text[at : at + 1] == "(":
        return _tuple(text, at, depth)
    match = _ARRAY.match(text, at)
    if match is None:
        raise TextFault("a shape such as f32[8,16]{1,0} is expected here", at)
    dtype, dims, order, rest = match.groups()
    if dtype not in BITS:
        if dtype == "b":  # b(f32[8]) and kin: buffers, of newer XLA
            raise TextFault("buffer types are not read", at)
        raise TextFault(f"no dtype {dtype!r}; XLA's are {', '.join(BITS)}", at)
    sizes = _ints(dims.replace("<=", "").replace(" ", ""), match.start("dims"))
    bits, space = (0, 0) if not rest else _layout(rest)
    layout = _ints(order, match.start("order")) if order else ()
    return Shape(dtype, sizes, (), layout, bits, space), match.end()


def _tuple(text: str, at: int, depth: int) -> tuple[Shape, int]:
    if depth > _DEEPEST:
        raise TextFault(f"tuples nested more than {_DEEPEST} deep", at)
    elements: list[Shape] = []
    end = _after_gap(text, at + 1)
    while text[end : end + 1] != ")":
        if elements:
            if text[end : end + 1] != ",":
                raise TextFault("',' or ')' is expected in this tuple", end)
            end += 1
        element, end = _shape(text, end, depth + 1)
        elements.append(element)
        end = _after_gap(text, end)
    return Shape("tuple", (), tuple(elements)), end + 1


def _after_gap(text: str, at: int) -> int:
    match = _GAP.match(text, at)
    return match.end() if match else at


def _ints(text: str, at: int) -> tuple[int, ...]:
    try:
        return tuple(map(int, text.split(","))) if text else ()
    except ValueError:
        raise TextFault(f"numbers are expected here, not {text!r}", at) from None


_LAYOUT = re.compile(r"([ES])\((\d+)\)")


def _layout(text: str) -> tuple[int, int]:
    """Element bits and memory space of ``:T(8,128)(2,1)E(4)S(1)``."""
    found = {key: int(value) for key, value in _LAYOUT.findall(text)}
    return found.get("E", 0), found.get("S", 0)
