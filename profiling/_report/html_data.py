"""The data inside a page: a schedule's document with its long lists as columns.

A step has tens of thousands of events whose fields mostly repeat. As a list of objects
they would be most of the page; as columns, with each repeated value written once, they
are a tenth of it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_WHOLE = ("name", "mesh", "totals")
_EVENT = ("name", "stream", "kind", "num_runs", "module", "phase")


def page_data(document: Mapping[str, Any]) -> dict[str, Any]:
    """What the scripts of the page read.

    Args:
        document: What `Schedule.as_json` gives.

    Returns:
        The parts that the page shows, long lists as `columns`.
    """
    collectives: Sequence[Mapping[str, Any]] = document.get("collectives") or ()
    return {
        **{key: document.get(key) for key in _WHOLE},
        "memory": _memory(document.get("memory")),
        "collectives": columns([_without(c, "moved") for c in collectives]),
        "moved": columns(
            [
                {"of": i, **moved}
                for i, collective in enumerate(collectives)
                for moved in collective.get("moved") or ()
            ]
        ),
        "timeline": _timeline(document.get("timeline")),
    }


def columns(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Turn rows with the same keys into columns.

    Args:
        rows: The rows.

    Returns:
        ``{"length": …, "columns": {key: column}}``, where a column is a list; or
        ``{"all": value}``; or ``{"words": […], "at": […]}``, whose `at` says for each
        row which of the words it has.

    Example:
        >>> columns([{"a": "x", "b": 1}, {"a": "x", "b": 2}])
        {'length': 2, 'columns': {'a': {'all': 'x'}, 'b': [1, 2]}}
    """
    keys = list(rows[0]) if rows else []
    return {
        "length": len(rows),
        "columns": {key: _column([row.get(key) for row in rows]) for key in keys},
    }


def _column(values: list[Any]) -> Any:
    texts = [json.dumps(value) for value in values]
    words = dict(zip(texts, values, strict=True))
    if len(words) == 1:
        return {"all": values[0]}
    at = {text: index for index, text in enumerate(words)}
    digits = len(str(len(words))) + 1
    if sum(map(len, words)) + digits * len(values) < sum(map(len, texts)):
        return {"words": list(words.values()), "at": [at[text] for text in texts]}
    return values


def _memory(memory: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """Its replicated tensors are found among its tensors; they are not kept twice."""
    if memory is None:
        return None
    return {
        **_without(memory, "replicated"),
        "tensors": columns(memory.get("tensors") or ()),
        "at_peak": columns(memory.get("at_peak") or ()),
    }


def _timeline(timeline: Mapping[str, Any] | None) -> dict[str, Any] | None:
    if timeline is None:
        return None
    return {
        "step_s": timeline["step_s"],
        "events": columns([_event(e) for e in timeline.get("events") or ()]),
    }


def _event(event: Mapping[str, Any]) -> dict[str, Any]:
    """Times become nanoseconds: no digit more than an estimate is worth."""
    return {
        "start_ns": round(event["start_s"] * 1e9, 1),
        "duration_ns": round(event["duration_s"] * 1e9, 1),
        **{key: event.get(key) for key in _EVENT},
    }


def _without(mapping: Mapping[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in mapping.items() if key not in keys}
