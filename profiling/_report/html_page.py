"""Put a page of HTML together that needs nothing else: no network, no server."""

from __future__ import annotations

import base64
import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from profiling._report.show_words import seconds_text

_UNSAFE = {ord(char): f"\\u{ord(char):04x}" for char in "<>&"}
"""In JSON these stand only inside strings, where an escape means the same."""


def render(template: str, scripts: tuple[str, ...], data: Any, **values: Any) -> str:
    """Write a page.

    Args:
        template: Name of a file in ``report``.
        scripts: Names of files there, which share one scope, in their order.
        data: What the scripts read.
        values: What the template shows.

    Returns:
        A whole page. It loads nothing, and its policy forbids it to.
    """
    style, script = _asset("page.css"), _script(scripts)
    return _template(template).render(
        policy=f"default-src 'none'; script-src {_hash(script)}; "
        f"style-src {_hash(style)}; img-src data:; base-uri 'none'; form-action 'none'",
        style=style,
        script=script,
        data=_embedded(data),
        **values,
    )


def _embedded(data: Any) -> str:
    """JSON that no text in it can break out of."""
    return json.dumps(data, separators=(",", ":")).translate(_UNSAFE)


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"


@cache
def _asset(name: str) -> str:
    page = files("profiling") / "_report" / "page"
    return page.joinpath(name).read_text(encoding="utf-8")


@cache
def _script(names: tuple[str, ...]) -> str:
    """All scripts as one, in a scope of their own."""
    return "\n".join(['(() => {\n"use strict";', *map(_asset, names), "})();\n"])


@cache
def _template(name: str) -> Template:
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["seconds"] = seconds_text
    environment.filters["flag"] = lambda v: str(v).lower() if v in (True, False) else v
    environment.filters["capitalize_first"] = lambda text: text[:1].upper() + text[1:]
    return environment.from_string(_asset(name))
