"""What is written is what the schema in the package says, and nothing else."""

import copy
import dataclasses
import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
from referencing import Registry, Resource

from profiling import analyse, read
from profiling._collectives.collective import Collective, Moved
from profiling._collectives.totals import Total
from profiling._compiling.compiled import CompileError
from profiling._compiling.outcome import Outcome, document
from profiling._memory.use import HeldTensor, MemoryUse, PeakBuffer
from profiling._schedule_json import as_json, error_as_json, schema
from profiling._targets.target import Target
from profiling._timeline.timeline import Event, Overlap, Timeline
from tests.profiling.hlo_files import JAX, TEXTS
from tests.profiling.schedules import COLLECTIVES, schedule

NAMES = ("diff", "schedule", "inspect", "profile")


def check(content: Any, name: str = "schedule") -> None:
    """Validate plain data after a round trip through JSON."""
    text = json.dumps(content, allow_nan=False)
    assert json.loads(text) == content, "something else than plain data"
    resources = [(f"{n}.json", Resource.from_contents(schema(n))) for n in NAMES]
    registry: Registry = Registry().with_resources(resources)
    jsonschema.Draft202012Validator(schema(name), registry=registry).validate(content)


def nodes(node: Any, path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema inside a schema."""
    yield path, node
    for key in ("properties", "$defs"):
        for name, child in node.get(key, {}).items():
            yield from nodes(child, f"{path}/{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(node.get(key), dict):
            yield from nodes(node[key], f"{path}/{key}")


@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_schemas(name):
    jsonschema.Draft202012Validator.check_schema(schema(name))
    assert schema(name)["$schema"] == "https://json-schema.org/draft/2020-12/schema"


@pytest.mark.parametrize("name", NAMES)
def test_everything_is_described(name):
    for path, node in nodes(schema(name)):
        assert node.get("description", "").endswith("."), path


@pytest.mark.parametrize("name", NAMES)
def test_objects_have_no_other_fields_and_all_of_theirs(name):
    for path, node in nodes(schema(name)):
        if node.get("type") == "object" and "properties" in node:
            assert node["additionalProperties"] is False, path
            assert node["required"] == list(node["properties"]), path


@pytest.mark.parametrize(
    ("name", "kind", "more"),
    [
        (
            "collective",
            Collective,
            {"step_wire_bytes", "role", "phase", "tensor", "module", "source"},
        ),
        ("moved", Moved, set()),
        ("memory", MemoryUse, {"replicated"}),
        ("tensor", HeldTensor, set()),
        ("peak_buffer", PeakBuffer, set()),
        ("timeline", Timeline, {"mfu"}),
        ("event", Event, set()),
        ("overlap", Overlap, set()),
        ("total", Total, set()),
    ],
)
def test_fields_have_the_names_of_the_dataclass(name, kind, more):
    names = {f.name for f in dataclasses.fields(kind)} | more
    assert set(schema()["$defs"][name]["properties"]) == names


def test_by_hand():
    content = as_json(schedule())
    check(content)
    assert content["mesh"] == {
        "axis_names": ["fsdp", "tensor"],
        "shape": [4, 2],
        "dcn_axes": ["tensor"],
    }
    assert content["target"]["text"] == "h100:1x8"
    assert content["memory"]["replicated"][0]["copies"] == 8
    assert content["memory"]["tensors"][2]["spec"] == [["fsdp", "tensor"]]
    assert content["collectives"][0]["step_wire_bytes"] == 288
    assert content["collectives"][1]["tensor"] == "w +1"
    assert content["totals"]["by_link"][1]["key"] == "ib"
    assert content["timeline"]["mfu"] == 0.2
    assert content["flags"] == {"xla_a": True, "xla_b": 3}
    check(as_json(schedule(mesh=None, target=None, timeline=None, compile_s=None)))


def test_what_is_not_in_the_schema_is_refused():
    content = as_json(schedule())
    for change in ({"more": 1}, {"compile_s": -1}, {"format": 2}, {"name": None}):
        with pytest.raises(jsonschema.ValidationError):
            check({**content, **change})
    wrong = copy.deepcopy(content)
    wrong["collectives"][0]["role"] = "other"
    with pytest.raises(jsonschema.ValidationError, match="'other' is not one of"):
        check(wrong)


@pytest.mark.parametrize("path", [*TEXTS, JAX], ids=lambda p: p.name)
def test_dumps(path):
    program = read(path).largest
    for target in (None, f"cpu:{max(1, _devices(program))}"):
        check(as_json(analyse(program, target=target)))


def _devices(program: Any) -> int:
    module = program.scheduled or program.before
    return module.num_partitions * module.num_replicas


def test_failures():
    target = Target.parse("h100:1x8")
    error = CompileError(
        "too big",
        kind="memory",
        target=target,
        over_bytes=5,
        holders={"temporaries": 9},
    )
    assert error_as_json(error) == {
        "target": "h100:1x8",
        "kind": "memory",
        "message": "too big",
        "words": "",
        "over_bytes": 5,
        "holders": {"temporaries": 9},
    }
    crash = CompileError("x", kind="crash", target=target, words="dead")
    outcomes = [
        Outcome("h100:1x8", schedule(), error),
        Outcome("h100:1x8", None, crash),
        Outcome("", schedule(collectives=COLLECTIVES[:1])),
    ]
    content = document(outcomes)
    check(content, "inspect")
    assert [len(content[k]) for k in ("schedules", "failures")] == [2, 2]
