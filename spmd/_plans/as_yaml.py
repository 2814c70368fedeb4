"""Plans as YAML: the one place that reads and writes the format."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from spmd._plans.made_as_yaml import SECTIONS, plain
from spmd._plans.rule import PlanPart, RawEntry, Rule

_SECTIONS = ("parameters", "outputs", "inputs")
_TAG = "tag:yaml.org,2002:"


def read(text: str, *, where: str) -> list[tuple[str | None, tuple[Rule, ...]]]:
    """Read the documents of a plan.

    Args:
        text: YAML.
        where: What to call the text in an error, e.g. the file's name.

    Returns:
        Name (None where it has none) and rules of each document.

    Raises:
        ValueError: Text that is no plan; the message names line and key.
    """
    try:
        documents = list(yaml.compose_all(text, Loader=yaml.SafeLoader))
    except yaml.YAMLError as error:
        raise ValueError(_syntax_message(error, where)) from None
    if not documents:
        raise ValueError(
            f"{where}: no patterns; write e.g. 'layers.*.weight: [fsdp, null]'"
        )
    return [_Document(where).read(root) for root in documents]


def write(parts: Iterable[PlanPart]) -> str:
    """Write a plan, one document for each of its parts.

    Args:
        parts: The plan's parts.

    Returns:
        YAML.
    """
    return yaml.dump_all(
        (_plain(part) for part in parts),
        Dumper=_Dumper,
        sort_keys=False,
        width=100_000,
        allow_unicode=True,
    )


class _Flow(list[Any]):
    """A list that is written on one line."""


class _Dumper(yaml.SafeDumper):
    pass


_Dumper.add_representer(
    _Flow,
    lambda dumper, data: dumper.represent_sequence(_TAG + "seq", data, flow_style=True),
)


def _plain(part: PlanPart) -> dict[str, Any]:
    document: dict[str, Any] = {"name": part.name}
    for section in _SECTIONS:
        rules = [r for r in part.rules if _section(r) == section]
        if rules:
            document[section] = {r.pattern: _Flow(map(_entry, r.spec)) for r in rules}
    return {**document, **plain(part)}


def _section(rule: Rule) -> str:
    chosen = rule.outputs_only, rule.inputs_only
    return {(True, False): "outputs", (False, True): "inputs"}.get(chosen, "parameters")


def _entry(entry: RawEntry) -> Any:
    return _Flow(entry) if isinstance(entry, tuple) else entry


def _syntax_message(error: yaml.YAMLError, where: str) -> str:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    problem = getattr(error, "problem", None) or str(error)
    if mark is None:
        return f"{where}: {problem}"
    hint = ""
    if "alias" in f"{problem} {getattr(error, 'context', None)}":
        hint = "; a pattern that begins with * must stand in quotes"
    return f"{where}, line {mark.line + 1}: {problem}{hint}\n{_snippet(mark)}"


def _snippet(mark: Any) -> str:
    return mark.get_snippet(indent=2) or ""


class _Document:
    """Reads one document; remembers where the text came from."""

    def __init__(self, where: str) -> None:
        self.where = where

    def read(self, root: Node) -> tuple[str | None, tuple[Rule, ...]]:
        """Name and rules of the document."""
        items = list(self._items(root, "the plan"))
        name = None
        patterns: list[tuple[str, ScalarNode, Node]] = []
        sectioned = any(_is_section(key.value, value) for key, value in items)
        rules: list[Rule] = []
        for key, value in items:
            if key.value == "name" and _is(value, "str"):
                name = value.value
            elif not sectioned:
                patterns.append(("parameters", key, value))
            elif key.value in SECTIONS:
                continue  # read as values, see `read_made`
            elif key.value not in _SECTIONS:
                raise self._unknown_section(key)
            elif not _is(value, "null"):
                section = self._items(value, f"section {key.value!r}")
                patterns += [(key.value, k, v) for k, v in section]
        for section, key, value in patterns:
            rules.append(self._rule(key, value, section))
        rules.sort(key=lambda rule: _SECTIONS.index(_section(rule)))
        return name, tuple(rules)

    def _items(self, node: Node, what: str) -> Iterator[tuple[ScalarNode, Node]]:
        if not isinstance(node, MappingNode):
            raise self._error(
                node,
                f"{what} is {_kind(node)}; a mapping of pattern to spec is needed",
            )
        seen: dict[str, int] = {}
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                raise self._error(key, "a pattern is a string")
            if key.value in seen:
                raise self._error(
                    key,
                    f"key {key.value!r} was given before, in line {seen[key.value]}; "
                    f"remove one",
                )
            seen[key.value] = key.start_mark.line + 1
            yield key, value

    def _rule(self, key: ScalarNode, value: Node, section: str) -> Rule:
        if not isinstance(value, SequenceNode):
            raise self._error(
                value,
                f"key {key.value!r}: the spec is {_kind(value)}; a list with one "
                f"entry per dim is needed, e.g. [fsdp, null]",
            )
        spec = tuple(self._read_entry(entry, key.value) for entry in value.value)
        try:
            return Rule(
                key.value,
                spec,
                outputs_only=section == "outputs",
                inputs_only=section == "inputs",
            )
        except ValueError as error:
            raise self._error(key, str(error)) from None

    def _read_entry(self, node: Node, key: str) -> RawEntry:
        if isinstance(node, SequenceNode):
            return tuple(self._read_axis(entry, key) for entry in node.value)
        return None if _is(node, "null") else self._read_axis(node, key)

    def _read_axis(self, node: Node, key: str) -> str | int:
        if _is(node, "int"):
            return int(node.value)
        if _is(node, "str") and node.value not in ("None", "none"):
            return node.value
        fix = "write null" if _is(node, "str") else "an axis name or null is needed"
        if _is(node, "bool"):
            fix = "YAML reads it as true or false; put the axis name in quotes"
        shown = node.value if isinstance(node, ScalarNode) else _kind(node)
        raise self._error(node, f"key {key!r}: spec entry {shown}; {fix}")

    def _unknown_section(self, key: ScalarNode) -> ValueError:
        near = difflib.get_close_matches(key.value, _SECTIONS, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return self._error(
            key,
            f"unknown section {key.value!r}; sections are 'parameters', 'outputs' and "
            f"'inputs'{hint}",
        )

    def _error(self, node: Node, message: str) -> ValueError:
        mark = node.start_mark
        text = f"{self.where}, line {mark.line + 1}: {message}"
        return ValueError(f"{text}\n{_snippet(mark)}")


def _is_section(key: str, value: Node) -> bool:
    return isinstance(value, MappingNode) or (key in _SECTIONS and _is(value, "null"))


def _is(node: Node, kind: str) -> bool:
    return isinstance(node, ScalarNode) and node.tag == _TAG + kind


def _kind(node: Node) -> str:
    """What a node is, with its article."""
    kind = node.tag.removeprefix(_TAG)
    words = {"map": "a mapping", "seq": "a list", "str": "a string", "int": "an int"}
    return words.get(kind, kind)
