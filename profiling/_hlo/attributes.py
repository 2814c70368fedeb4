"""Read what follows an instruction's operands: ``, dimensions={0}, channel_id=1``."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

from profiling._hlo.damage import TextFault
from profiling._hlo.device_groups import DeviceGroups
from profiling._hlo.module import NO_ATTRIBUTES, Attributes, interned
from profiling._hlo.shape import Shape

PLAIN_STEP = (1, 0, 0, 1, 1)
"""Of a window that moves by ones over what is neither padded nor dilated."""

MAX_LITERAL = 64
"""Constants of more elements keep no values."""

_KEY = re.compile(r"\s*,?\s*([A-Za-z_][\w\-.]*)=")
_MARK = re.compile(r"\"(?:[^\"\\]|\\.)*\"|[{}()\[\],\"]")
_NUMBER = re.compile(r"-?\d+")
_WINDOW_PART = re.compile(r"(\w+)=(-?\d+(?:[x_]-?\d+)*)")
_NAME = re.compile(r"%?([A-Za-z_][\w.\-]*)")
_ONE_CALL = re.compile(r", (?:calls|to_apply)=%([A-Za-z_][\w.\-]*)(?=,|$)")
_PAIR = re.compile(r"\{\s*(\d+)\s*,\s*(\d+)\s*\}")
_SLICE = re.compile(r"\[(\d+):(\d+)(?::(\d+))?\]")
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|([0-7]{3})|(.))", re.DOTALL)
_FRONTEND = re.compile(
    r"([\w.\-]+)="
    r"(\"(?:[^\"\\]|\\.)*\"|\{(?:[^{}]|\{[^{}]*\})*\}|[^,{}\"]*)"
)
_NAMED_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}
_CALLS = (
    "body",
    "condition",
    "true_computation",
    "false_computation",
    "select",
    "scatter",
    "branch_computations",
    "calls",
    "to_apply",
    "called_computations",
)
"""Attributes that name computations, in the order a proto lists what they name."""


def split(text: str) -> Iterator[tuple[str, str, int]]:
    """Take ``, a=1, b={x,y}`` apart.

    Args:
        text: Attributes.

    Yields:
        Key, value, and the column the value starts at.

    Raises:
        TextFault: A bracket or string that is not closed, or no ``key=``.

    Example:
        >>> list(split(", kind=kLoop, dimensions={0,1}"))
        [('kind', 'kLoop', 7), ('dimensions', '{0,1}', 25)]
    """
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _KEY.match(text, at)
        if match is None:
            raise TextFault("an attribute such as 'dimensions={0}' is expected", at)
        start = match.end()
        at = _value_end(text, start)
        yield match[1], text[start:at].strip(), start


def _value_end(text: str, start: int) -> int:
    depth: list[str] = []
    for match in _MARK.finditer(text, start):
        mark = match[0]
        if mark in "{([":
            depth.append({"{": "}", "(": ")", "[": "]"}[mark])
        elif mark in "})]":
            if not depth or depth.pop() != mark:
                raise TextFault(f"this {mark!r} closes nothing", match.start())
        elif mark == '"':
            raise TextFault("this string is not closed", match.start())
        elif mark == "," and not depth:
            return match.start()
    if depth:
        raise TextFault(f"{depth[-1]!r} is missing after this", start)
    return len(text)


class AttributeReader:
    """Reads attributes; those of equal text are one object."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], tuple[Attributes, tuple[str, ...]]] = {
            ("", ""): (NO_ATTRIBUTES, ())
        }
        self._interned: dict[Attributes, Attributes] = {}

    def read(
        self, opcode: str, shape: Shape, inside: str, rest: str
    ) -> tuple[Attributes, tuple[str, ...]]:
        """Read one instruction's.

        Args:
            opcode: Its opcode.
            shape: Its result.
            inside: What is in its brackets: a constant's value, a parameter's number.
            rest: What follows them, without the metadata.

        Returns:
            Attributes, and names of called computations.

        Raises:
            TextFault: With the column in `rest`, below zero for what is before it.
        """
        own: dict[str, Any] = {}
        if opcode == "parameter":
            own["parameter"] = _int(inside, -1 - len(inside))
        elif opcode == "constant" and (literal := _literal(inside, shape)):
            own["literal"] = literal
        call = _ONE_CALL.search(rest) if rest.count("=%") == 1 else None
        if call is not None:  # cut what differs from line to line: the rest repeats
            rest = rest[: call.start()] + rest[call.end() :]
        key = (repr(own) if own else "", rest)
        found = self._known.get(key)
        if found is None:
            try:
                fields, called = _read(rest)
            except TextFault as fault:
                moved = call is not None and fault.at >= call.start()
                cut = len(call[0]) if call is not None and moved else 0
                raise TextFault(fault.problem, fault.at + cut) from None
            fields.update(own)
            kept = self.intern(Attributes(**fields)) if fields else NO_ATTRIBUTES
            found = self._known[key] = (kept, called)
        return found if call is None else (found[0], (interned(call[1]),))

    def intern(self, attributes: Attributes) -> Attributes:
        """One object for equal attributes.

        Args:
            attributes: New ones.

        Returns:
            The same or equal ones.
        """
        return self._interned.setdefault(attributes, attributes)


def _read(rest: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    fields: dict[str, Any] = {}
    called: dict[str, list[str]] = {}
    for key, value, at in split(rest):
        if key in _CALLS:
            called[key] = [interned(n) for n in _NAME.findall(value)]
        elif key in _FIELDS:
            name, convert = _FIELDS[key]
            fields[name] = convert(value, at)
        elif key == "window":
            fields.update(_window(value, at))
        elif key == "dim_labels":
            fields.update(_dim_labels(value))
    return fields, tuple(name for key in _CALLS for name in called.get(key, ()))


def _literal(inside: str, shape: Shape) -> tuple[int, ...]:
    kind = shape.dtype
    if shape.is_tuple or shape.num_elements > MAX_LITERAL or kind[0] not in "sup":
        return ()
    if kind == "pred":
        found = re.findall(r"true|false|[01]", inside)
        values = tuple(int(v in ("true", "1")) for v in found)
    else:
        values = tuple(map(int, _NUMBER.findall(inside)))
    return values if len(values) == shape.num_elements else ()


def _int(value: str, at: int) -> int:
    try:
        return int(value)
    except ValueError:
        raise TextFault(f"a number is expected here, not {value[:40]!r}", at) from None


def _ints(value: str, at: int) -> tuple[int, ...]:
    body = value.strip("{}")
    try:
        return tuple(map(int, body.split(","))) if body.strip() else ()
    except ValueError:
        raise TextFault(f"numbers are expected here, not {value[:40]!r}", at) from None


def _groups(value: str, at: int) -> DeviceGroups | None:
    try:
        found = DeviceGroups.parse(value)
    except ValueError as error:
        raise TextFault(str(error), at) from None
    return None if found.is_all else found


def _pairs(value: str, at: int) -> tuple[tuple[int, int], ...]:
    found = tuple((int(a), int(b)) for a, b in _PAIR.findall(value))
    if value.count("{") != len(found) + 1:
        raise TextFault("pairs such as {{0,1},{1,0}} are expected here", at)
    return found


def _slices(value: str, at: int) -> tuple[tuple[int, int, int], ...]:
    found = _SLICE.findall(value)
    if value.count("[") != len(found):
        raise TextFault("slices such as {[0:4], [0:8:2]} are expected here", at)
    return tuple((int(a), int(b), int(c or 1)) for a, b, c in found)


def _frontend(value: str, at: int) -> tuple[tuple[str, str], ...]:
    found = _FRONTEND.findall(value[1:-1])
    return tuple(sorted((key, unquoted(text)) for key, text in found))


def _names(value: str, at: int) -> tuple[str, ...]:
    return tuple(_NAME.findall(value))


def _text(value: str, at: int) -> str:
    return interned(unquoted(value)) if len(value) < 256 else unquoted(value)


def _flag(value: str, at: int) -> bool:
    return value == "true"


def _window(value: str, at: int) -> dict[str, Any]:
    """From ``{size=3x3 stride=2x2 pad=1_1x1_1 lhs_dilate=2x2}``."""
    given = {key: text.split("x") for key, text in _WINDOW_PART.findall(value)}
    if "size" not in given:
        return {}
    try:
        sizes = tuple(map(int, given["size"]))
        pads = [p.split("_") for p in given.get("pad", ["0"] * len(sizes))]
        stride, base, window = (
            tuple(map(int, given.get(key, [1] * len(sizes))))
            for key in ("stride", "lhs_dilate", "rhs_dilate")
        )
        low, high = (tuple(int(p[i]) for p in pads) for i in (0, -1))
    except ValueError:
        raise TextFault("a window such as {size=3x3 pad=1_1x1_1} is due", at) from None
    steps = tuple(zip(stride, low, high, base, window, strict=False))
    plain = all(step == PLAIN_STEP for step in steps)
    return {"window": sizes, "window_steps": () if plain else steps}


def _dim_labels(value: str) -> dict[str, Any]:
    """Where ``o`` and the numbers stand in ``b01f_01io->b01f``."""
    operand, _, rest = value.partition("_")
    kernel, _, result = rest.partition("->")
    spatial = tuple(
        (operand.index(c), result.index(c))
        for c in sorted(filter(str.isdigit, operand))
        if c in result
    )
    found: dict[str, Any] = {"spatial": spatial} if spatial else {}
    return found | ({"kernel_output_dim": kernel.index("o")} if "o" in kernel else {})


_FIELDS: dict[str, tuple[str, Callable[[str, int], Any]]] = {
    "index": ("tuple_index", _int),
    "dimensions": ("dimensions", _ints),
    "slice": ("slices", _slices),
    "dynamic_slice_sizes": ("slice_sizes", _ints),
    "direction": ("direction", _text),
    "lhs_contracting_dims": ("lhs_contracting", _ints),
    "rhs_contracting_dims": ("rhs_contracting", _ints),
    "lhs_batch_dims": ("lhs_batch", _ints),
    "rhs_batch_dims": ("rhs_batch", _ints),
    "feature_group_count": ("feature_groups", _int),
    "fft_length": ("fft_length", _ints),
    "fft_type": ("fft_kind", _text),
    "kind": ("fusion_kind", _text),
    "custom_call_target": ("custom_call_target", _text),
    "backend_config": ("backend_config", _text),
    "frontend_attributes": ("frontend_attributes", _frontend),
    "sharding": ("sharding", _text),
    "channel_id": ("channel", _int),
    "replica_groups": ("groups", _groups),
    "use_global_device_ids": ("global_ids", _flag),
    "source_target_pairs": ("pairs", _pairs),
    "control-predecessors": ("after", _names),
    "async_execution_thread": ("thread", _text),
}


def unquoted(text: str) -> str:
    """What a quoted string stands for; other text as it is.

    Args:
        text: A string in its quotes, with escapes as in C.

    Returns:
        The string.
    """
    if len(text) < 2 or text[0] != '"' or text[-1] != '"':
        return text
    if "\\" not in text:
        return text[1:-1]
    return _ESCAPE.sub(_unescaped, text[1:-1])


def _unescaped(match: re.Match[str]) -> str:
    if match[1]:
        return chr(int(match[1], 16))
    if match[2]:
        return chr(int(match[2], 8))
    return _NAMED_ESCAPES.get(match[3], match[3])
