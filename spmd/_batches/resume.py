"""Where a loader is in its data, and how to get there again after a restart."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any, final

import torch

from spmd import _random_state


@final
class Position:
    """How far a loop over a loader has come.

    Args:
        epoch: Epochs that have ended.
        batches: Batches of this epoch that were handed out.
        random: States of the random generators when it began; None outside an epoch.
        own: What the wrapped loader says of its position, if it does.
    """

    def __init__(
        self,
        epoch: int = 0,
        batches: int = 0,
        random: dict[str, Any] | None = None,
        own: Any = None,
    ) -> None:
        self.epoch = epoch
        self.batches = batches
        self.random = random
        self.own = own

    def begin(self) -> None:
        """An epoch begins; one that was left before its end counts."""
        self.epoch += self.random is not None
        self.batches, self.own = 0, None
        self.random = _random_state.host_state()

    def advance(self, own: Any) -> None:
        """A batch is handed out.

        Args:
            own: What the wrapped loader said when it gave this batch.
        """
        self.batches += 1
        self.own = own

    def end(self) -> None:
        """An epoch has ended."""
        self.epoch += 1
        self.batches, self.random, self.own = 0, None, None

    def as_dict(self) -> dict[str, Any]:
        """As plain values and tensors."""
        return {
            "epoch": self.epoch,
            "batches": self.batches,
            "random": self.random,
            "own": self.own,
        }

    @classmethod
    def from_dict(cls, state: dict[str, Any]) -> Position:
        """Read it again.

        Args:
            state: From `as_dict`.
        """
        names = ("epoch", "batches", "random", "own")
        return cls(**{name: state[name] for name in names})


@final
class Resume:
    """Goes on in the middle of an epoch.

    Args:
        position: Where.
        loader: The wrapped loader.
        fast_skip: Skip batches of a `DataLoader` without loading them.

    Raises:
        ValueError: The position is one that the wrapped loader named, and this loader
            cannot go to one.
    """

    def __init__(
        self, position: Position, loader: Iterable[Any], *, fast_skip: bool
    ) -> None:
        if position.own is not None and not hasattr(loader, "load_state_dict"):
            raise ValueError(
                f"ShardedLoader: the state was saved with a loader that goes to a "
                f"position by itself, a {type(loader).__name__} cannot "
                f"(load_state_dict); wrap the same kind of loader"
            )
        self._position = position
        self._loader = loader
        self._fast_skip = fast_skip

    def source(self, *, prefetch: bool) -> Iterator[Any]:
        """The batches that are left.

        Args:
            prefetch: Whether a thread loads ahead.

        Returns:
            An iterator; the random generators are where they were at this position.
        """
        at, loader = self._position, self._loader
        if at.random is None:  # between epochs
            at.begin()
            return iter(loader)
        if at.own is not None:
            stateful: Any = loader
            stateful.load_state_dict(at.own)
            return iter(loader)
        now = _random_state.host_state()
        _random_state.set_host_state(at.random)
        if self._fast_skip and isinstance(loader, torch.utils.data.DataLoader):
            source, skipped = _without_loading(loader, at.batches), 0
        else:
            source, skipped = iter(loader), at.batches
        for _ in itertools.islice(source, 1 if skipped else 0):
            pass  # a sampler draws its seed here
        after_first = _random_state.host_state()
        for _ in itertools.islice(source, max(skipped - 1, 0)):
            pass
        if prefetch or not skipped:
            source = itertools.chain(list(itertools.islice(source, 1)), source)
        drew = not _random_state.same(after_first, _random_state.host_state())
        if not (drew and skipped and prefetch):
            # Otherwise loading draws numbers, and when the state was saved the thread
            # was ahead by some batches: what was drawn until here is right.
            _random_state.set_host_state(now)
        return source


def own_state(loader: Iterable[Any]) -> Any:
    """What a loader says of its position, or None.

    Args:
        loader: The wrapped loader.
    """
    if hasattr(loader, "state_dict") and hasattr(loader, "load_state_dict"):
        stateful: Any = loader
        return stateful.state_dict()
    return None


def _without_loading(
    loader: torch.utils.data.DataLoader[Any], num: int
) -> Iterator[Any]:
    """Batches after the first `num`, of which only the indices are drawn."""
    sampler = loader.batch_sampler
    if sampler is None or isinstance(loader.dataset, torch.utils.data.IterableDataset):
        raise ValueError(
            "ShardedLoader: fast_skip needs a DataLoader with batches by index; this "
            "one has an iterable data set or no batch size. Use fast_skip=False"
        )
    # DataLoader refuses another sampler after it was made; its iterator asks for it.
    table = vars(loader)
    table["batch_sampler"] = _Rest(sampler, num)
    try:
        return iter(loader)
    finally:
        table["batch_sampler"] = sampler


class _Rest:
    """A batch sampler whose first epoch begins later.

    Args:
        sampler: The sampler.
        num: How many batches that epoch leaves out.
    """

    def __init__(self, sampler: Any, num: int) -> None:
        self._sampler = sampler
        self._num = num

    def __iter__(self) -> Iterator[Any]:
        num, self._num = self._num, 0
        return itertools.islice(iter(self._sampler), num, None)

    def __len__(self) -> int:
        return len(self._sampler)
