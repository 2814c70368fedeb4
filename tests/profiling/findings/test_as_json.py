"""What is written is what the schema says."""

import json
from dataclasses import fields

import jsonschema
import pytest

from profiling import Figures, Finding, Fix, Proof, Verified
from profiling._findings.as_json import document
from profiling._findings.finding import FINDING_KINDS
from profiling._schedule_json import schema
from tests.profiling import field_case, finding_pages

SCHEMA = schema("explain")


def check(content):
    text = json.dumps(content, allow_nan=False)
    assert json.loads(text) == content
    jsonschema.Draft202012Validator(SCHEMA).validate(content)


@pytest.mark.parametrize("kind", ["large-replicated", "many-small", "synchronous"])
def test_findings(kind):
    _, schedule = finding_pages.compiled(kind)
    content = document(schedule, finding_pages.explained(kind), None)
    check(content)
    assert content["verified"] is None
    assert kind in {f["kind"] for f in content["findings"]}


def test_with_proofs_and_the_end():
    _, schedule = field_case.compiled()
    verified = field_case.verified()
    content = document(schedule, (), verified)
    check(content)
    found = field_case.gathered(verified.findings)
    first = content["findings"][verified.findings.index(found)]
    assert first["fix"]["outputs"] == {"up": [["fsdp", "replica"], []]}
    assert first["fix"]["proof"]["gains"] == ["memory"]
    assert content["verified"]["plan"].startswith("name: explain")
    assert found.as_json() == first
    assert content["verified"]["mesh"] is None


def test_advice_and_the_mesh_of_the_end():
    _, schedule = finding_pages.compiled("tensor-across-hosts")
    verified = finding_pages.verified("tensor-across-hosts")
    content = document(schedule, (), verified)
    check(content)
    assert content["verified"]["mesh"] == 'spmd.Mesh({"fsdp": 8, "tensor": 2})'
    said = finding_pages.finding("gradient-per-micro-batch").as_json()
    assert said["advice"].startswith("run the micro-batches as one batch")


def test_the_schema_has_every_field():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    found = SCHEMA["$defs"]
    own = {f.name for f in fields(Finding)}
    assert set(found["finding"]["properties"]) == own
    assert set(found["finding"]["properties"]["kind"]["enum"]) == set(FINDING_KINDS)
    own = {f.name for f in fields(Fix)} - {"change"} | {"flags"}
    assert set(found["fix"]["properties"]) == own
    assert set(found["verified"]["properties"]) == {
        f.name for f in fields(Verified) if f.name not in ("findings", "program")
    }
    more = {"gains", "costs", "even_at"}
    assert set(found["proof"]["properties"]) == {f.name for f in fields(Proof)} | more
    assert set(found["figures"]["properties"]) == {f.name for f in fields(Figures)}
    for name, node in [("", SCHEMA), *found.items()]:
        assert node["required"] == list(node["properties"]), name
        assert node["additionalProperties"] is False, name
        for child in node["properties"].values():
            assert child["description"].endswith("."), name
