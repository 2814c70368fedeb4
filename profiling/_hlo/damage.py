"""What is said about input that is no HLO: the file, the place, and a caret."""

from __future__ import annotations

_SHOWN = 88


class TextFault(Exception):
    """What is wrong at a column; the reader adds file and line."""

    def __init__(self, problem: str, at: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.at = at


def in_text(
    source: str, problem: str, *, line: int, column: int, text: str
) -> ValueError:
    """An error that points into a text file.

    Args:
        source: File, or what the text came from.
        problem: What is wrong there.
        line: Line number, from 1.
        column: Column, from 0; shown from 1.
        text: The line.

    Returns:
        The error, to be raised.

    Example:
        >>> print(in_text("a.txt", "no name", line=3, column=4, text="ROOT = 1"))
        a.txt:3:5: no name
          ROOT = 1
              ^
    """
    text = text.rstrip("\r\n").expandtabs(1)
    column = max(0, min(column, len(text)))
    first = max(0, column - _SHOWN // 2)
    shown = "".join(
        c if c.isprintable() else "\N{REPLACEMENT CHARACTER}"
        for c in text[first : first + _SHOWN]
    )
    return ValueError(
        f"{source}:{line}:{column + 1}: {problem}\n  {shown}\n  "
        f"{' ' * (column - first)}^"
    )


def in_bytes(source: str, problem: str, *, offset: int) -> ValueError:
    """An error that points into a binary file.

    Args:
        source: File, or what the bytes came from.
        problem: What is wrong there.
        offset: Byte offset.

    Returns:
        The error, to be raised.

    Example:
        >>> print(in_bytes("a.pb", "the file ends here", offset=12))
        a.pb: at byte 12: the file ends here
    """
    return ValueError(f"{source}: at byte {offset}: {problem}")
