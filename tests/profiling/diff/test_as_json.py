"""What ``spmd diff --json`` writes is what the schema says."""

import json
from dataclasses import fields
from typing import get_args

import jsonschema
import pytest

from profiling import diff
from profiling._collectives.collective import Role
from profiling._collectives.totals import Total
from profiling._diff.diff import Change, Diff, Group, What
from profiling._diff.held import Held
from profiling._diff.side import FIGURES
from profiling._schedule_json import schema
from tests.profiling.schedules import COLLECTIVES, collective, moved, schedule

SCHEMA = schema("diff")
MORE = (*COLLECTIVES[1:], collective("more", moved("activation", 70)))


def check(found: Diff, **given) -> None:
    content = found.as_json(**given)
    text = json.dumps(content, allow_nan=False)
    jsonschema.Draft202012Validator(SCHEMA).validate(json.loads(text))


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (schedule(), schedule()),
        (schedule(), schedule(collectives=MORE)),
        (schedule(), schedule(mesh=None, target=None, timeline=None)),
    ],
    ids=["same", "other", "bare"],
)
def test_what_is_written(a, b):
    found = diff(a, b)
    check(found)
    check(found, failed=["wire_bytes=+5%: more"])


def test_the_schema_has_every_field():
    found = {n: set(d["properties"]) for n, d in SCHEMA["$defs"].items()}
    assert found["figures"] == set(FIGURES)
    for name, noun in (("group", Group), ("held", Held), ("total", Total)):
        assert found[name] == {f.name for f in fields(noun)}
    assert found["change"] == {f.name for f in fields(Change)} | {"more_bytes"}
    properties = SCHEMA["$defs"]
    kinds = properties["change"]["properties"]["what"]["enum"]
    assert kinds == list(get_args(What))
    assert properties["group"]["properties"]["role"]["enum"] == list(get_args(Role))


def test_what_is_not_in_the_schema_is_refused():
    content = diff(schedule(), schedule()).as_json()
    for key in ("format", "a", "failed"):
        less = {k: v for k, v in content.items() if k != key}
        with pytest.raises(jsonschema.ValidationError, match=key):
            jsonschema.Draft202012Validator(SCHEMA).validate(less)
