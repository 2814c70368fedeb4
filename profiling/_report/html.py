"""A schedule as one page of HTML that needs nothing else: no network, no server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from profiling._report.html_data import page_data
from profiling._report.html_figures import compiled_by, figures, subtitle
from profiling._report.html_page import render

_SCRIPTS = (
    "start.js",
    "format.js",
    "facts.js",
    "table.js",
    "lanes.js",
    "timeline_input.js",
    "timeline.js",
    "collectives.js",
    "memory.js",
    "pieces.js",
    "sharding.js",
    "theme.js",
    "page.js",
)


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
    return render(
        "page.html.j2",
        _SCRIPTS,
        page_data(document),
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
