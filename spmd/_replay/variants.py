"""Variants of a step: one graph for each batch shape and mode, up to a limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from spmd._capture.checks import CaptureError
from spmd._capture.state import KEY_WORDS
from spmd._marking.mark import get_sharding
from spmd._warn import warn_user

V = TypeVar("V")
Key = tuple[Any, ...]


class Variants(Generic[V]):
    """What was compiled for each key; several keys may share a graph.

    Args:
        max_graphs: How many different graphs may be compiled.
    """

    def __init__(self, max_graphs: int) -> None:
        self.max_graphs = max_graphs
        self._by_key: dict[Key, tuple[Any, V]] = {}
        self._recent: tuple[Key, V] | None = None

    @property
    def num_graphs(self) -> int:
        """Different graphs so far."""
        return len({identity for identity, _ in self._by_key.values()})

    def get(self, key: Key) -> V | None:
        """The variant for a key.

        Args:
            key: Batch, other arguments, then `StepState.key`.

        Returns:
            `None` where there is none yet.
        """
        if self._recent is not None and self._recent[0] == key:  # quicker than a hash
            return self._recent[1]
        found = self._by_key.get(key)
        if found is None:
            return None
        self._recent = key, found[1]
        return found[1]

    def same(self, identity: Any) -> V | None:
        """The variant with this graph, under whatever key.

        Args:
            identity: What identifies its graph.

        Returns:
            `None` where there is none yet.
        """
        return next((v for i, v in self._by_key.values() if i == identity), None)

    def add(self, key: Key, identity: Any, variant: V) -> None:
        """Keep a variant.

        Args:
            key: See `get`.
            identity: What identifies its graph.
            variant: What to keep.
        """
        self._by_key[key] = (identity, variant)
        self._recent = key, variant

    def drop(self, key: Key) -> None:
        """Forget a variant.

        Args:
            key: See `get`.
        """
        del self._by_key[key]
        self._recent = None

    def announce(self, key: Key, identity: Any = None) -> None:
        """Say that the step is traced again, or refuse it.

        Silent where only what exists between calls has changed and the graph has not:
        gradients, say, that the step drops first.

        Args:
            key: Of the new variant.
            identity: What identifies its graph.

        Raises:
            CaptureError: One too many; says what changed.
        """
        seen = {(i, _chosen(k)) for k, (i, _) in self._by_key.items()}
        if not seen or (identity, _chosen(key)) in seen:
            return
        change = self.change(key)
        if len(seen) >= self.max_graphs:
            raise CaptureError(
                f"the step needs another graph, beyond max_graphs={self.max_graphs}, "
                f"because of {change}. Keep it the same from call to call (pad "
                f"batches, drop the last one, pass numbers as tensors), or raise "
                f"max_graphs"
            )
        known = identity in {i for i, _ in seen}
        what = "tracing variant" if known else "compiling graph"
        warn_user(
            f"compile_step: {what} {len(seen) + 1} of at most {self.max_graphs}, "
            f"because of {change}"
        )

    def change(self, key: Key) -> str:
        """What about a key is new.

        Args:
            key: See `get`.

        Returns:
            How it differs from the known key that is most like it.
        """
        near = min(
            reversed(self._by_key),
            key=lambda k: sum(a != b for a, b in zip(k, key, strict=True)),
        )
        return difference(near, key)


def _chosen(key: Key) -> Key:
    """The parts of a key that the user decides: arguments, modes, hyperparameters."""
    return (*key[:2], *key[3:6])


def batch_key(
    batch: dict[str, torch.Tensor],
    layout: Callable[[torch.Tensor], str | None] = lambda tensor: None,
) -> Key:
    """What about a batch changes the graph.

    Args:
        batch: Tensors by name.
        layout: How a tensor without an annotation is split.

    Returns:
        Names, shapes, dtypes and annotations.
    """
    return tuple(
        (name, tuple(t.shape), t.dtype, get_sharding(t) or layout(t))
        for name, t in batch.items()
    )


def difference(old: Key, new: Key) -> str:
    """Say what changed between two variants.

    Args:
        old: A key.
        new: Another.

    Returns:
        The first difference, in words.
    """
    if old[0] != new[0]:
        before = {name: rest for name, *rest in old[0]}
        for name, *rest in new[0]:
            if before.get(name) != rest:
                return (
                    f"{name}, now {_tensor_text(rest)}, before "
                    f"{_tensor_text(before.get(name))}"
                )
        gone = sorted(set(before) - {name for name, *_ in new[0]})
        return f"{', '.join(gone)}, no longer given"
    if old[1] != new[1]:
        changed = [str(value) for value in new[1] if value not in old[1]]
        return f"an argument that is no tensor, now {', '.join(changed)[:120]}"
    for words, before, now in zip(KEY_WORDS, old[2:], new[2:], strict=False):
        grew = isinstance(now, bytes) and len(before) != len(now)
        if before != now and not grew:  # parameters or groups that were added
            return words + _details(before, now)
    return "nothing visible"


def _details(before: Any, now: Any) -> str:
    """``: betas, now (0.9, 0.99), before (0.9, 0.95)``, if it can be told."""
    if not isinstance(before, tuple) or len(before) != len(now):
        return ""
    for a, b in zip(before, now, strict=True):
        if a == b:
            continue
        if isinstance(b, str):
            return f": now {b}, before {a}"
        for one, other in zip(a, b, strict=False):
            if one != other and one[0] == other[0]:
                return f": {other[0]}, now {other[1]}, before {one[1]}"
    return ""


def _tensor_text(known: list[Any] | None) -> str:
    if known is None:
        return "not given"
    shape, dtype, split = known
    text = f"{str(dtype).removeprefix('torch.')}{list(shape)}"
    if split is None:
        return text
    return f"{text} split {split if isinstance(split, str) else split.spec}"
