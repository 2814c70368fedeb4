from __future__ import annotations

from typing import Any

import pytest

from spmd._plans.rule import PlanPart, Rule


def test_lists_become_tuples() -> None:
    rule = Rule("layers.*[1]", [["replica", "fsdp"], None, 0])
    assert rule.spec == (("replica", "fsdp"), None, 0)
    assert (rule.name_pattern, rule.index) == ("layers.*", 1)
    assert rule == Rule("layers.*[1]", (("replica", "fsdp"), None, 0))
    assert hash(PlanPart("user", (rule,))) == hash(PlanPart("user", (rule,)))


@pytest.mark.parametrize(
    ("pattern", "spec", "error", "match"),
    [
        (3, (), TypeError, "a pattern is a string such as .*, got 3"),
        ("a", "fsdp", TypeError, r"pattern 'a': a spec is a tuple .*, got 'fsdp'"),
        ("a", None, TypeError, "pattern 'a': a spec is a tuple .*, got None"),
        ("a", {"x": 1}, TypeError, "pattern 'a': a spec is a tuple"),
        ("a", (1.5,), TypeError, "pattern 'a': spec entry 1.5 is no axis name"),
        ("a", (True,), TypeError, "spec entry True is no axis name"),
        ("a", (("x", None),), TypeError, r"spec entry \('x', None\) is no axis name"),
        ("a..b", (), ValueError, "empty component"),
        ("a[b]", (), ValueError, "picks an output of a module"),
    ],
)
def test_wrong_rules(
    pattern: Any, spec: Any, error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        Rule(pattern, spec)
