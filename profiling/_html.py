"""A schedule as one page of HTML that needs nothing else: no network, no server."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from profiling._html_data import page_data
from profiling._html_figures import compiled_by, figures, subtitle
from profiling._show_words import seconds_text

_SCRIPTS = (
    "start.js",
    "format.js",
    "table.js",
    "lanes.js",
    "timeline_input.js",
    "timeline.js",
    "collectives.js",
    "memory.js",
    "pieces.js",
    "sharding.js",
    "page.js",
)
_UNSAFE = {ord(char): f"\\u{ord(char):04x}" for char in "<>&"}
"""In JSON these stand only inside strings, where an escape means the same."""


def html(document: Mapping[str, Any]) -> str:
    """Write the page of a schedule.

    Args:
        document: What `Schedule.as_json` gives, or the same read from a file.

    Returns:
        A whole page. It loads nothing, and its policy forbids it to.

    Example:
        >>> page = html({"name": "<step>", "collectives": []})
        >>> "<title>&lt;step&gt;" in page, "<step>" in page
        (True, False)
    """
    style, script = _asset("page.css"), _script()
    return _template().render(
        policy=f"default-src 'none'; script-src {_hash(script)}; "
        f"style-src {_hash(style)}; img-src data:; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        data=_embedded(page_data(document)),
        name=document.get("name") or "Step",
        subtitle=subtitle(document),
        figures=figures(document),
        notes=document.get("notes") or (),
        compiled_by=compiled_by(document),
        flags=document.get("flags") or {},
        versions=document.get("versions") or {},
        compile_s=document.get("compile_s"),
        warnings=document.get("warnings") or (),
        has_timeline=bool(document.get("timeline")),
        memory_origin=(document.get("memory") or {}).get("origin", "not known"),
    )


def _embedded(data: Any) -> str:
    """JSON that no text in it can break out of."""
    return json.dumps(data, separators=(",", ":")).translate(_UNSAFE)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def _asset(name: str) -> str:
    return files("profiling").joinpath("report", name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    """All scripts as one, in a scope of their own."""
    return "\n".join(['(() => {\n"use strict";', *map(_asset, _SCRIPTS), "})();\n"])


@cache
def _template() -> Template:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["seconds"] = seconds_text
    environment.filters["flag"] = lambda v: str(v).lower() if v in (True, False) else v
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    return environment.from_string(_asset("page.html.j2"))
