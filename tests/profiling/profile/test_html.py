"""The page of a profile, as text and in a real browser."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from profiling import read_profile
from profiling._profile.html import html
from tests.profiling import chromium
from tests.profiling.html_documents import NASTY
from tests.profiling.profiled_runs import jax_run
from tests.profiling.xplanes import cpu_profile, tpu_profile


def spoiled(value: Any, key: str = "") -> Any:
    """Every text of a document has something in it that HTML takes for its own."""
    if isinstance(value, dict):
        return {k: spoiled(v, k) for k, v in value.items()}
    if isinstance(value, list):
        return [spoiled(v, key) for v in value]
    free = ("name", "tensor", "module", "source", "program", "why", "chip", "notes")
    return value + NASTY if isinstance(value, str) and key in free else value


def test_text_never_becomes_markup(tmp_path):
    document = read_profile(cpu_profile(tmp_path / "x.xplane.pb")).as_json()
    page = html(spoiled(document))
    assert NASTY not in page
    assert "<title>jit_step(7)" in page


def test_it_loads_nothing(tmp_path):
    page = html(read_profile(tpu_profile(tmp_path / "x.xplane.pb")).as_json())
    assert "default-src &#39;none&#39;" in page
    assert not re.search(r"(src|href)=\"(?!#|data:)", page)


def test_figures_of_a_host_bound_run(tmp_path):
    path = cpu_profile(tmp_path / "x.xplane.pb", doing="spmd/compile:", pause=90)
    page = html(read_profile(path).as_json())
    assert "<strong>Host-bound</strong>" in page
    assert '<rect class="host-compile"' in page
    assert page.count('class="spent-row"') == 3


@pytest.fixture(scope="module")
def page(tmp_path_factory) -> Iterator[chromium.Browser]:
    if chromium.find() is None:
        pytest.skip("there is no Chromium here")
    folder: Path = tmp_path_factory.mktemp("chromium")
    with chromium.browser(folder / "profile") as found:
        path = folder / "page.html"
        read_profile(jax_run(), mesh={"fsdp": 8}).save_html(path)
        found.open(path)
        yield found
    assert found.complaints == []


def count(selector: str) -> str:
    return f"document.querySelectorAll({selector!r}).length"


def test_tables_and_timeline_are_drawn(page):
    found = read_profile(jax_run(), mesh={"fsdp": 8})
    rows = "#{} tbody tr:not(.spacer)"
    assert page.run(count(rows.format("collectives"))) == len(found.collectives)
    assert page.run(count(rows.format("classes"))) == len(found.op_classes)
    assert page.run(count(rows.format("operations"))) > 0
    assert page.run("document.getElementById('timeline').height") > 100
    assert all(url.startswith("file:") for url in page.requested)


def test_a_collective_of_the_table_is_found_in_the_timeline(page):
    page.click("#collectives tbody tr:not(.spacer)")
    page.settle()
    detail = page.run("document.getElementById('detail').innerText")
    assert "exposed" in detail
    assert "fsdp" in detail
    page.key("Escape")


def test_operations_are_filtered(page):
    set_text = (
        "(i => {{ i.value = '{}'; i.dispatchEvent(new Event('input')); }})"
        "(document.querySelector('#operations input'))"
    )
    page.run(set_text.format("all-gather"))
    page.settle()
    found = read_profile(jax_run(), mesh={"fsdp": 8})
    expected = sum("all-gather" in f"{op.name} {op.kind}" for op in found.ops)
    assert page.run(count("#operations tbody tr:not(.spacer)")) == expected
    page.run(set_text.format(""))


def test_a_narrow_window_and_dark_colours(page):
    page.resize(400)
    page.settle()
    assert page.run("document.documentElement.scrollWidth") <= 400
    page.click("#theme")
    page.click("#theme")
    assert page.run("document.documentElement.dataset.theme") == "dark"
    page.resize(1440)
