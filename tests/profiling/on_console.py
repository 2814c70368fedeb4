"""What is printed, as plain text that fits its columns."""

import io
from collections.abc import Callable
from typing import Any

from rich.console import Console


def on_console(
    print_it: Callable[..., Any], what: Any, *, width: int = 80, **options: Any
) -> str:
    """Text of what `print_it` prints, each line without what is blank at its end."""
    screen = io.StringIO()
    print_it(what, Console(file=screen, width=width), **options)
    lines = [line.rstrip() for line in screen.getvalue().splitlines()]
    assert max(map(len, lines), default=0) <= width
    return "\n".join(lines) + "\n"
