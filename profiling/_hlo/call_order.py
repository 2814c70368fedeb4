"""Refuse a module whose computations call each other in a circle."""

from __future__ import annotations

from profiling._hlo.module import Module


def check_calls(module: Module) -> None:
    """Check that computations call only those that stand before them.

    XLA writes callees first. What a damaged file says may be a circle, in which whoever
    follows calls would never end.

    Args:
        module: The module.

    Raises:
        ValueError: A computation calls one that does not stand before it.
    """
    before: set[str] = set()
    for computation in module.computations:
        for instruction in computation.instructions:
            for name in instruction.called:
                if name not in before:
                    raise ValueError(
                        f"{module.source or module.name}: {instruction.name} in "
                        f"{computation.name} calls {name!r}, which does not stand "
                        f"before it; the module is damaged"
                    )
        before.add(computation.name)
