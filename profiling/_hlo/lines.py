"""Take one line of HLO text apart, with regard to strings and brackets."""

from __future__ import annotations

import re

from profiling._hlo.damage import TextFault

NAME = r"[A-Za-z_][\w.\-]*"
"""Pattern of a name, without ``%``."""

_CALL = re.compile(r"\s*([a-z][a-z0-9\-]*)\(([^()\"]*(?:\([^()\"]*\)[^()\"]*)*)\)")
_OPCODE = re.compile(r"\s*([a-z][a-z0-9\-]*)\(")
_OPERAND = re.compile(rf"%({NAME})")
_PLAIN_OPERAND = re.compile(rf"({NAME})\s*$")
_STRING = re.compile(r"\"(?:[^\"\\]|\\.)*\"")
_BRACKETS = re.compile(r"\"(?:[^\"\\]|\\.)*\"|[()]")
_COMMENT = re.compile(r"\"(?:[^\"\\]|\\.)*\"|/\*.*?\*/|//.*")


def call(line: str, at: int) -> tuple[str, str, int, int]:
    """Find ``add(%a, %b)``.

    Args:
        line: One line.
        at: Where the opcode is expected.

    Returns:
        Opcode, what is in its brackets, where that starts, and where they end.

    Raises:
        TextFault: No opcode, or brackets that stay open.

    Example:
        >>> call("%c = f32[] add(%a, %b), x=1", 11)
        ('add', '%a, %b', 15, 22)
    """
    match = _CALL.match(line, at)
    if match is not None:
        return match[1], match[2], match.start(2), match.end()
    match = _OPCODE.match(line, at)
    if match is None:
        raise TextFault("an opcode such as 'add(' is expected here", at)
    end = closing(line, match.end() - 1)
    return match[1], line[match.end() : end - 1], match.end(), end


def closing(line: str, at: int) -> int:
    """Find the bracket that closes another.

    Args:
        line: One line.
        at: Where a ``(`` is.

    Returns:
        Just behind its ``)``.

    Raises:
        TextFault: It stays open.
    """
    depth = 0
    for match in _BRACKETS.finditer(line, at):
        mark = match[0]
        depth += (mark == "(") - (mark == ")")
        if depth == 0:
            return match.end()
    raise TextFault("this bracket is not closed", at)


def depth_of(line: str) -> int:
    """How many more brackets a line opens than it closes.

    Args:
        line: One line.

    Returns:
        The number; strings do not count.
    """
    bare = _STRING.sub("", line)
    return bare.count("(") + bare.count("{") - bare.count(")") - bare.count("}")


def operand_names(inside: str) -> list[str]:
    """Names of operands.

    Args:
        inside: What is in an opcode's brackets: names, each perhaps behind its shape,
            with ``%`` or, in text that people wrote, without.

    Returns:
        The names.

    Example:
        >>> operand_names("f32[2,3] a, (s32[], f32[]) b")
        ['a', 'b']
    """
    names = _OPERAND.findall(inside)
    if names or not inside or inside.isspace():
        return names
    found, depth, start = [], 0, 0
    for i, mark in enumerate(inside + ","):
        if mark in "([{":
            depth += 1
        elif mark in ")]}":
            depth -= 1
        elif mark == "," and depth == 0:
            match = _PLAIN_OPERAND.search(inside[start:i])
            found.append(match[1] if match else inside[start:i].strip())
            start = i + 1
    return found


def without_comments(line: str) -> str:
    """A line with ``/*...*/`` and ``//...`` blanked; strings are left alone.

    Args:
        line: One line.

    Returns:
        A line of the same length, so that columns stay true.

    Example:
        >>> without_comments('add(%a, /*index=1*/%b), x="/*"  // sum')
        'add(%a,            %b), x="/*"        '
    """
    return _COMMENT.sub(lambda m: m[0] if m[0][0] == '"' else " " * len(m[0]), line)
