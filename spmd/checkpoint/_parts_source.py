"""A source as it looks to a model that holds tensors in pieces or stacked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, final

import torch
from torch import nn

from spmd.checkpoint._dcp import Region
from spmd.checkpoint._parts import (
    MODEL,
    OPTIMIZER,
    SINGLE,
    Holding,
    Holdings,
)
from spmd.checkpoint._places import Place
from spmd.checkpoint._read import Advance
from spmd.checkpoint._source import Kind, Source


@final
class PartsSource(Source):
    """A source under the keys of what a model holds.

    Args:
        source: Has every tensor under the name that the unwrapped model has for it.
        holdings: What is held otherwise, by key.
        found: For first keys of the model, as they are saved, the ones in `source`.

    Attributes:
        uncut: Keys of an optimizer's state that does not go number by number with a
            parameter, and is left out.
        partly: For what is held, but not all of it is in `source`: keys of the rest.
    """

    def __init__(
        self, source: Source, holdings: Holdings, found: Mapping[str, str]
    ) -> None:
        self.url = source.url
        self.num_processes = source.num_processes
        self.uncut: list[str] = []
        self.partly: dict[str, list[str]] = {}
        self._source = source
        self._found = found
        self._holdings: dict[str, Holding] = {}
        self._singles: dict[str, list[str]] = {}
        self._kept: dict[str, torch.Tensor] = {}
        self._all = holdings
        saved = {part.saved for h in holdings.values() for part in h.parts}
        self._kinds: dict[str, Kind] = {
            key: kind
            for key, kind in source.kinds.items()
            if key not in saved and _parameter(key)[0] not in saved
        }
        self._kinds.update(
            {k: source.kinds[n] for k, n in found.items() if k not in saved}
        )
        self.kinds = self._kinds
        for key, holding in holdings.items():
            self._see(key, holding)
        self._see_state()

    def _see(self, key: str, holding: Holding) -> None:
        kinds = self._source.kinds
        names = {part.saved: self._found.get(part.saved) for part in holding.parts}
        there = [kinds[name][0] for name in names.values() if name is not None]
        if there:
            self._add(key, _widest(there), holding)
        if there and None in names.values():
            self.partly[key] = [k for k, name in names.items() if name is None]

    def _add(self, key: str, dtype: str, holding: Holding) -> None:
        self._kinds[key] = dtype, holding.shape
        self._holdings[key] = holding

    def _see_state(self) -> None:
        """See to the state of an optimizer of what is held otherwise."""
        entries: dict[str, dict[str, Kind]] = {}
        for key, kind in self._source.kinds.items():
            name, entry = _parameter(key)
            if entry:
                entries.setdefault(name, {})[entry] = kind
        for key, holding in self._all.items():
            known = [entries.get(part.saved, {}) for part in holding.parts]
            for entry in dict.fromkeys(e for table in known for e in table):
                own = f"{OPTIMIZER}{key.removeprefix(MODEL)}.{entry}"
                self._see_entry(own, entry, holding, [t.get(entry) for t in known])

    def _see_entry(
        self, own: str, entry: str, holding: Holding, kinds: Sequence[Kind | None]
    ) -> None:
        state = holding.state(entry)
        there = [kind for kind in kinds if kind is not None]
        shapes = [None if kind is None else kind[1] for kind in kinds]
        if not any(shapes) and None not in shapes and _is_single(entry, holding):
            self._kinds[own] = there[0]
            self._singles[own] = [part.saved for part in state.parts]
        elif shapes == [part.saved_shape for part in holding.parts]:
            self._add(own, _widest(kind[0] for kind in there), state)
        else:
            at = next(i for i, kind in enumerate(kinds) if kind is not None)
            self.uncut.append(state.parts[at].saved)

    def check_numbers(self) -> None:
        """Refuse numbers that differ between layers where the model has one for all.

        Raises:
            ValueError: They do.
        """
        for own, keys in self._singles.items():
            first, *others = dict.fromkeys(keys)
            number = self._source.whole(first)
            for key in others:
                other = self._source.whole(key)
                if not torch.equal(other, number):
                    raise ValueError(
                        f"load: {self.url} has {first} {number.item()} and {key} "
                        f"{other.item()}, but the model holds these layers stacked, "
                        f"with one number for all ({own}). Load into a model without "
                        f"scan_layers, or load without the optimizer"
                    )

    def is_stack(self, key: str) -> bool:
        """See `Source`."""
        return key in self._holdings and bool(self._holdings[key].stack)

    def keep(self, model: nn.Module, places: Iterable[Place]) -> None:
        """Keep the values of rows of stacks that the source does not have.

        Args:
            model: The model, its values not in a step's arrays.
            places: Its tensors.

        Raises:
            ValueError: There are none to keep.
        """
        if self.partly:
            from spmd._plans.fulfil import fulfil

            fulfil(model)
        for place in places:
            if place.key not in self.partly:
                continue
            tensor = place.read()
            if tensor.device.type == "meta":
                raise ValueError(
                    f"load: {self.url} has no {self.partly[place.key][0]}, and the "
                    f"model, which holds its layers stacked, is on meta and has no "
                    f"values to keep for it. Call fsdpv2.materialize first, or load a "
                    f"checkpoint that has all layers"
                )
            self._kept[place.key] = tensor.detach().cpu()

    def fill(
        self,
        key: str,
        regions: Sequence[tuple[Region, torch.Tensor]],
        *,
        advance: Advance,
    ) -> None:
        """See `Source`; each saved tensor is asked for once."""
        holding = self._holdings.get(key)
        if holding is None:
            name = self._singles.get(key, [key])[0]
            self._source.fill(self._found.get(name, name), regions, advance=advance)
            return
        wanted: dict[str, list[tuple[Region, torch.Tensor]]] = {}
        for (offset, shape), target in regions:
            for part, region, at in holding.cuts(offset, shape):
                wanted.setdefault(part.saved, []).append((region, target[at]))
                if part.saved in self.partly.get(key, ()):
                    assert part.row is not None
                    box = zip(offset[1:], shape[1:], strict=True)
                    row = self._kept[key][part.row]
                    target[at].copy_(row[tuple(slice(o, o + n) for o, n in box)])
        for name, found in wanted.items():
            if name not in self.partly.get(key, ()):
                self._source.fill(self._found.get(name, name), found, advance=advance)

    def object(self, key: str) -> Any:
        """See `Source`; what is said of a saved tensor is said of the held one."""
        found = self._source.object(key)
        if key != "optimizer" or not isinstance(found, dict):
            return found
        values = dict(found["values"])
        for name, holding in self._all.items():
            names = [part.saved.removeprefix(MODEL) for part in holding.parts]
            if any(n in found["values"] for n in names):
                values[name.removeprefix(MODEL)] = self._one(names, found["values"])
        return {**found, "values": values}

    def _one(self, names: Sequence[str], values: Mapping[str, Any]) -> dict[str, Any]:
        """What is said of all these parameters."""
        first, *others = dict.fromkeys(names)
        for name in others:
            if not _equal(values.get(name), values.get(first)):
                raise ValueError(
                    f"load: {self.url} has other optimizer state of {name} than of "
                    f"{first} ({values.get(name)}, {values.get(first)}), but the model "
                    f"holds these layers stacked, with one for all. Load into a model "
                    f"without scan_layers, or load without the optimizer"
                )
        return dict(values[first])

    def objects(self) -> Iterable[str]:
        """See `Source`."""
        return self._source.objects()


def _parameter(key: str) -> tuple[str, str]:
    """For a key of an optimizer's state the key of the parameter, and the entry."""
    if not key.startswith(OPTIMIZER):
        return "", ""
    name, _, entry = key.removeprefix(OPTIMIZER).rpartition(".")
    return MODEL + name, entry


def _is_single(entry: str, holding: Holding) -> bool:
    """Whether a number is not what goes number by number with a parameter of one."""
    return entry in SINGLE or all(part.saved_shape for part in holding.parts)


def _widest(dtypes: Iterable[str]) -> str:
    found, *others = (getattr(torch, name) for name in dict.fromkeys(dtypes))
    for dtype in others:
        found = torch.promote_types(found, dtype)
    return str(found).removeprefix("torch.")


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except (RuntimeError, ValueError):  # tensors in it
        return False
