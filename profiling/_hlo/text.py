"""Read HLO text, one line at a time.

XLA writes one instruction a line, so a dump is streamed: what stays in memory is the
module, not the text. Nothing native is called, so that damaged text is an error with
its place and never a crash. Grammar: XLA's `hlo_parser.cc`; the reader is held against
jaxlib's own in the tests.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from profiling._hlo.attributes import AttributeReader, unquoted
from profiling._hlo.damage import TextFault, in_text
from profiling._hlo.header import Header, read_header
from profiling._hlo.lines import (
    NAME,
    call,
    closing,
    depth_of,
    operand_names,
    without_comments,
)
from profiling._hlo.module import (
    MAIN_THREAD,
    NO_METADATA,
    Computation,
    Frame,
    Instruction,
    Metadata,
    Module,
    interned,
)
from profiling._hlo.opcodes import check_opcode
from profiling._hlo.shape import Shape, parse_shape

_INSTRUCTION = re.compile(rf"\s*(ROOT\s+)?%?({NAME})\s*=\s*")
_NEXT = re.compile(rf"\s*(?:ROOT\s+)?%?{NAME}\s+=\s")  # attributes have no spaces
_ARRAY = re.compile(r"[a-z]\w*\[[^\]]*\](?:\{[^}]*\})?")
_COMPUTATION = re.compile(rf"\s*(ENTRY\s+)?%?({NAME})\s*(?:\(.*)?\{{\s*$")
_END = re.compile(r"\s*\}\s*(?:,\s*execution_thread=\"([^\"]*)\")?\s*$")
_METADATA = re.compile(r"metadata=\{((?:[^\"{}]|\"(?:[^\"\\]|\\.)*\"|\{[^{}]*\})*)\}")
_METADATA_ITEM = re.compile(r"(\w+)=(\"(?:[^\"\\]|\\.)*\"|[^\s\"{}]+)")
_LONGEST_JOIN = 4096


@dataclass(slots=True)
class _Open:
    """A computation that is being read."""

    name: str
    is_entry: bool
    line: int
    instructions: list[Instruction] = field(default_factory=list)
    by_name: dict[str, Instruction] = field(default_factory=dict)
    root: Instruction | None = None


def read_text(lines: Iterable[bytes], *, source: str) -> Module:
    """Read a module from the lines of its text.

    Args:
        lines: The text, e.g. a file opened for reading bytes.
        source: What errors call it.

    Returns:
        The module.

    Raises:
        ValueError: Text that is no whole HLO module; says where.
    """
    return _Reader(source).read(lines)


class _Reader:
    def __init__(self, source: str) -> None:
        self.source = source
        self.line = 0
        self.text = ""
        self.shapes: dict[str, Shape] = {}
        self.metadata: dict[str, Metadata] = {}
        self.attributes = AttributeReader()
        self.computations: list[Computation] = []
        self.names: set[str] = set()
        self.entry: Computation | None = None
        self.header: Header | None = None
        self.frames: tuple[Frame, ...] = ()
        self.called: dict[str, tuple[int, str]] = {}
        self.count = 0

    def read(self, lines: Iterable[bytes]) -> Module:
        numbered = self._decoded(lines)
        current: _Open | None = None
        try:
            self.header, self.frames, first = read_header(numbered)
            for line in itertools.chain(first, numbered):
                if current is None:
                    current = self._opened(line)
                elif end := _END.match(line):
                    self._close(current, end[1])
                    current = None
                else:
                    self._lines(current, line, numbered)
        except TextFault as fault:
            raise self.error(fault.problem, fault.at) from None
        if current is not None:
            raise self.error(
                f"the text ends inside computation {current.name!r}, which starts at "
                f"line {current.line}; the file is cut short",
                len(self.text),
            )
        return self._module()

    def error(self, problem: str, column: int) -> ValueError:
        return in_text(
            self.source, problem, line=self.line, column=column, text=self.text
        )

    def _decoded(self, lines: Iterable[bytes]) -> Iterator[str]:
        """Lines that say something, with comments outside of strings removed."""
        for raw in lines:
            self.line += 1
            try:
                self.text = line = raw.decode()
            except UnicodeDecodeError as error:
                self.text = raw.decode(errors="replace")
                before = raw[: error.start].decode(errors="replace")
                raise TextFault(
                    f"byte 0x{raw[error.start]:02x} is no UTF-8", len(before)
                ) from None
            if "/*" in line or "//" in line:
                line = without_comments(line)
            if line and not line.isspace():
                yield line

    def _lines(self, current: _Open, line: str, more: Iterator[str]) -> None:
        """Read an instruction, which may go on in the next lines."""
        try:
            self._instruction(current, line)
        except TextFault:
            place = self.line, self.text
            whole = self._joined(line, more)
            if whole is None:
                self.line, self.text = place
                raise
            self._instruction(current, whole)

    def _joined(self, line: str, more: Iterator[str]) -> str | None:
        """An instruction whose brackets stay open, or that ends in a comma, goes on."""
        parts, depth = [line], depth_of(line)
        while len(parts) < _LONGEST_JOIN and (
            depth > 0 or parts[-1].rstrip().endswith(",")
        ):
            following = next(more, None)
            if following is None:
                break
            if _NEXT.match(following) or (_END.match(following) and depth < 2):
                return None
            parts.append(following)
            depth += depth_of(following)
        return " ".join(part.rstrip() for part in parts) if len(parts) > 1 else None

    def _opened(self, line: str) -> _Open:
        match = _COMPUTATION.match(line)
        if match is None:
            raise TextFault(
                "a computation such as '%name (p: f32[]) -> f32[] {' is expected here",
                len(line) - len(line.lstrip()),
            )
        name = match[2]
        if name in self.names:
            raise TextFault(
                f"a second computation of the name {name!r}", match.start(2)
            )
        self.names.add(name)
        return _Open(name, match[1] is not None, self.line)

    def _close(self, current: _Open, thread: str | None) -> None:
        if not current.instructions:
            raise TextFault(f"computation {current.name!r} has no instructions", 0)
        root = current.root or current.instructions[-1]
        done = Computation(
            current.name,
            tuple(current.instructions),
            root,
            thread or MAIN_THREAD,
            len(self.computations),
        )
        self.computations.append(done)
        if current.is_entry:
            if self.entry is not None:
                raise TextFault(
                    f"a second ENTRY computation, after {self.entry.name!r}", 0
                )
            self.entry = done

    def _instruction(self, current: _Open, line: str) -> None:
        match = _INSTRUCTION.match(line)
        if match is None:
            raise TextFault(
                "an instruction such as '%name = f32[8] add(%a, %b)' is expected here",
                len(line) - len(line.lstrip()),
            )
        root, name = match.groups()
        if name in current.by_name:
            raise TextFault(f"a second instruction {name!r}", match.start(2))
        shape, at = self._shape(line, match.end())
        opcode, inside, start, at = call(line, at)
        check_opcode(opcode, start - len(opcode) - 1)
        metadata, rest, offset = self._metadata(line, at)
        try:
            attributes, called = self.attributes.read(opcode, shape, inside, rest)
        except TextFault as fault:
            raise TextFault(fault.problem, at + fault.at + offset(fault.at)) from None
        for callee in called:
            if callee not in self.called:
                self.called[callee] = (self.line, self.text)
        instruction = Instruction(
            name,
            interned(opcode),
            shape,
            self._operands(current, opcode, inside, start),
            called,
            metadata,
            attributes,
            self.count,
        )
        self.count += 1
        current.instructions.append(instruction)
        current.by_name[name] = instruction
        if root:
            if current.root is not None:
                raise TextFault(f"a second ROOT, after {current.root.name!r}", 0)
            current.root = instruction

    def _shape(self, line: str, at: int) -> tuple[Shape, int]:
        match = _ARRAY.match(line, at)
        end = match.end() if match else at
        if line[at : at + 1] == "(":
            end = closing(line, at)
        text = line[at:end]
        shape = self.shapes.get(text)
        if shape is None:
            try:
                shape = self.shapes[text] = parse_shape(text)
            except TextFault as fault:
                raise TextFault(fault.problem, at + fault.at) from None
        return shape, end

    def _operands(
        self, current: _Open, opcode: str, inside: str, start: int
    ) -> tuple[Instruction, ...]:
        if opcode in ("constant", "parameter") or not inside or inside.isspace():
            return ()
        try:
            return tuple([current.by_name[name] for name in operand_names(inside)])
        except KeyError as error:
            raise TextFault(
                f"operand {error.args[0]!r} is not defined before this line in "
                f"computation {current.name!r}",
                start,
            ) from None

    def _metadata(self, line: str, at: int) -> tuple[Metadata, str, _Offset]:
        start = line.find("metadata={", at)
        match = _METADATA.match(line, start) if start >= 0 else None
        if match is None or line[start - 1] not in ", ":
            return NO_METADATA, line[at:].rstrip(), _Offset(0, 0)
        text = match[1]
        found = self.metadata.get(text)
        if found is None:
            found = self.metadata[text] = self._new_metadata(text, match.start(1))
        before = line[at:start].rstrip(" ,")
        rest = before + line[match.end() :].rstrip()
        return found, rest, _Offset(len(before), match.end() - at - len(before))

    def _new_metadata(self, text: str, at: int) -> Metadata:
        items = dict(_METADATA_ITEM.findall(text))
        try:
            line = int(items.get("source_line", 0))
            frame = int(items.get("stack_frame_id", 0)) - 1
        except ValueError:
            raise TextFault(
                "a line or frame of this metadata is no number", at
            ) from None
        file = interned(unquoted(items.get("source_file", "")))
        if 0 <= frame < len(self.frames) and not file:
            file, line = self.frames[frame].file, self.frames[frame].line
        found = Metadata(
            unquoted(items.get("op_name", "")),
            file,
            line,
            frame if 0 <= frame < len(self.frames) else -1,
            interned(unquoted(items.get("op_type", ""))),
        )
        return self.metadata.setdefault(repr(found), found)

    def _module(self) -> Module:
        if self.header is None or self.entry is None:
            raise self.error(
                "the text ends without an ENTRY computation; the file is cut short or "
                "holds only a part of a module",
                len(self.text),
            )
        for name, (line, text) in self.called.items():
            if name not in self.names:
                raise in_text(
                    self.source,
                    f"computation {name!r} is called here and defined nowhere",
                    line=line,
                    column=max(text.find(f"%{name}") + 1, text.find(f"={name}") + 1),
                    text=text,
                )
        return self.header.module(
            tuple(self.computations), self.entry, self.frames, self.source
        )


@dataclass(frozen=True, slots=True)
class _Offset:
    """Columns that a cut moved: what stands behind it was `length` further on."""

    start: int
    length: int

    def __call__(self, at: int) -> int:
        return self.length if at >= self.start else 0
