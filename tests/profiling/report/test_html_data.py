import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from profiling._report.html_data import columns, page_data
from tests.profiling.html_documents import bare, step


def unpacked(packed: dict[str, Any]) -> list[dict[str, Any]]:
    """What the page's own reader makes of columns."""

    def values(column: Any) -> list[Any]:
        if isinstance(column, list):
            return column
        if "words" in column:
            return [column["words"][i] for i in column["at"]]
        return [column["all"]] * packed["length"]

    found = {key: values(column) for key, column in packed["columns"].items()}
    return [{k: v[i] for k, v in found.items()} for i in range(packed["length"])]


VALUES = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "fsdp", "replica", "a longer name than the others"])
    | st.lists(st.sampled_from(["fsdp", "tensor"]), max_size=2)
)


@given(st.lists(st.fixed_dictionaries({"a": VALUES, "b": VALUES}), max_size=30))
def test_columns_give_the_rows_back(rows: list[dict[str, Any]]) -> None:
    packed = json.loads(json.dumps(columns(rows)))
    assert json.dumps(unpacked(packed), sort_keys=True) == json.dumps(
        rows, sort_keys=True
    )


def test_columns_write_what_repeats_once() -> None:
    rows = [{"role": "weight gather", "n": i, "axes": ["fsdp"]} for i in range(3)]
    rows.append({"role": "scalar", "n": 3, "axes": ["fsdp"]})
    assert columns(rows) == {
        "length": 4,
        "columns": {
            "role": {"words": ["weight gather", "scalar"], "at": [0, 0, 0, 1]},
            "n": [0, 1, 2, 3],
            "axes": {"all": ["fsdp"]},
        },
    }
    assert columns([]) == {"length": 0, "columns": {}}


def test_events_keep_their_times() -> None:
    document = step(3)
    events = unpacked(page_data(document)["timeline"]["events"])
    for packed, event in zip(events, document["timeline"]["events"], strict=True):
        assert packed["name"] == event["name"]
        assert abs(packed["start_ns"] - event["start_s"] * 1e9) <= 0.051
        assert abs(packed["duration_ns"] - event["duration_s"] * 1e9) <= 0.051


def test_what_collectives_move_keeps_its_place() -> None:
    document = step(3)
    document["collectives"][1]["moved"] *= 2
    data = page_data(document)
    moved = unpacked(data["moved"])
    assert [m["of"] for m in moved] == [0, 1, 1, *range(2, 12)]
    assert moved[1]["tensor"] == document["collectives"][1]["tensor"]
    assert "moved" not in data["collectives"]["columns"]


def test_replicated_tensors_are_not_kept_twice() -> None:
    data = page_data(step(2))
    assert "replicated" not in data["memory"]
    assert data["memory"]["tensors"]["length"] == 7


def test_what_is_not_there_stays_away() -> None:
    data = page_data(bare())
    assert (data["timeline"], data["mesh"]) == (None, None)
    assert page_data({})["collectives"]["length"] == 0
