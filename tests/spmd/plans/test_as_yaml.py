from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from spmd._plans.as_yaml import read, write
from spmd._plans.rule import PlanPart, Rule

TORCHPRIME = """\
# Weights
model.embed_tokens.weight: [fsdp, null]
model.layers.*.mlp.up_proj.weight: [[tensor, fsdp], ~]

# Activations
model.layers.*[0]: [[data, fsdp], null, null]
"""

SECTIONS = """\
name: llama
parameters:
  "**.weight": [fsdp, 1]
outputs:
  lm_head:
    - [replica, fsdp]
    - null
"""


def test_flat_mapping() -> None:
    assert read(TORCHPRIME, where="f") == [
        (
            None,
            (
                Rule("model.embed_tokens.weight", ("fsdp", None)),
                Rule("model.layers.*.mlp.up_proj.weight", (("tensor", "fsdp"), None)),
                Rule("model.layers.*[0]", (("data", "fsdp"), None, None)),
            ),
        )
    ]


def test_sections() -> None:
    rules = (
        Rule("**.weight", ("fsdp", 1)),
        Rule("lm_head", (("replica", "fsdp"), None), outputs_only=True),
    )
    assert read(SECTIONS, where="f") == [("llama", rules)]
    swapped = "outputs:\n  b: [x]\nparameters:\n  a: [x]"
    (_, found), *_ = read(swapped, where="f")
    assert [r.pattern for r in found] == ["a", "b"]
    assert read("name: x\nparameters:\n", where="f") == [("x", ())]
    assert read("parameters: [fsdp]", where="f")[0][1][0].pattern == "parameters"


def test_documents() -> None:
    found = read("name: a\nw: [x]\n---\nname: b\nw: [y]\n", where="f")
    assert [name for name, _ in found] == ["a", "b"]


def test_writing() -> None:
    rules = (Rule("**.w", (("a", "b"), None)), Rule("m", ("on",), outputs_only=True))
    assert write([PlanPart("mine", rules)]) == (
        "name: mine\nparameters:\n  '**.w': [[a, b], null]\noutputs:\n  m: ['on']\n"
    )


NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)
ENTRIES = st.one_of(
    st.none(),
    NAMES.filter(lambda n: n not in ("None", "none")),
    st.integers(0, 3),
    st.lists(NAMES.filter(lambda n: n not in ("None", "none")), max_size=2).map(tuple),
)
PATTERNS = st.lists(
    st.sampled_from(["*", "**", "a", "w1", "0", "q_*", "null", "on"])
).map(".".join)


@given(
    NAMES,
    st.dictionaries(PATTERNS, st.lists(ENTRIES), max_size=4),
    st.dictionaries(PATTERNS, st.lists(ENTRIES), max_size=4),
)
def test_there_and_back(
    name: str, patterns: dict[str, list[object]], outputs: dict[str, list[object]]
) -> None:
    rules = [Rule(p, s) for p, s in patterns.items()]
    rules += [Rule(p, s, outputs_only=True) for p, s in outputs.items()]
    part = PlanPart(name, tuple(rules))
    assert read(write([part]), where="f") == [(name, part.rules)]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", r"^plan\.yaml: no patterns; write e\.g\."),
        ("# nothing\n", "no patterns"),
        (
            "- a\n- b\n",
            r"^plan\.yaml, line 1: the plan is a list; a mapping of pattern",
        ),
        ("a: [x]\n'b: [y]\n", r"^plan\.yaml, line \d: "),
        ("a: [x\n", "^plan.yaml, line 2: "),
        (
            "a: [x]\n*.weight: [x]\n",
            "line 2: .*; a pattern that begins with \\* must stand in quo",
        ),
        ("a: [x]\n\x00", r"^plan\.yaml: .*special characters"),
        ("a: [x]\nb: fsdp\n", "line 2: key 'b': the spec is a string; a list with one"),
        ("b: 3\n", "line 1: key 'b': the spec is an int"),
        ("a: [x]\nb: [x]\na: [y]\n", "line 3: key 'a' was given before, in line 1"),
        ("parameters:\n  a: [x]\n  a: [x]\n", "line 3: key 'a' was given before"),
        ("[a, b]: [x]\n", "line 1: a pattern is a string"),
        (
            "parameters: 3\noutputs: {}\n",
            "line 1: section 'parameters' is an int; a map",
        ),
        (
            "parametres:\n  a: [x]\n",
            "unknown section 'parametres'; .*mean 'parameters'",
        ),
        (
            "parameters: {}\nlm_head: [x]\n",
            r"line 2: unknown section 'lm_head'; [^;]*$",
        ),
        ("a: [x, {}]\n", "line 1: key 'a': spec entry a mapping; an axis name or null"),
        ("a:\n- x\n- [y, null]\n", "line 3: key 'a': spec entry null; an axis name"),
        ("a:\n- x\n- [y, [z]]\n", "line 3: key 'a': spec entry a list; an axis name"),
        ("a: [1.5]\n", "spec entry 1.5; an axis name or null is needed"),
        ("a: [on]\n", "spec entry on; YAML reads it as true or false; .*in quotes"),
        ("a: [None]\n", "spec entry None; write null"),
        ("a..b: [x]\n", "line 1: pattern 'a..b' has an empty component"),
    ],
)
def test_errors_name_line_and_key(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        read(text, where="plan.yaml")


def test_errors_show_the_place() -> None:
    with pytest.raises(ValueError, match="line 2") as caught:
        read("a: [x]\nb: fsdp\n", where="plan.yaml")
    assert str(caught.value).splitlines()[1:] == ["  b: fsdp", "     ^"]
