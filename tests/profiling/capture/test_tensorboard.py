"""A capture in TensorBoard's profile plugin, in a real browser.

The plugin draws its tables with Google Charts, which it loads from the internet. Where
there is none, what fills the tables is asked from within the page instead.
"""

import importlib.util
import json
from pathlib import Path
from urllib.parse import urlencode

import pytest

import profiling
from tests.profiling import captured, chromium
from tests.profiling.tensorboards import tensorboard

MISSING = [
    name
    for name, there in (
        ("chromium", chromium.find()),
        ("tensorboard", importlib.util.find_spec("tensorboard")),
        ("tensorboard-plugin-profile", importlib.util.find_spec("xprof")),
    )
    if not there
]
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(MISSING), reason=f"not here: {', '.join(MISSING)}"),
]

FRAME = "document.querySelector('iframe')?.contentDocument?.body?.innerText"


@pytest.fixture(scope="module", params=["torch_xla", "jax"])
def pages(request, tmp_path_factory):
    """A run's folder with one capture of three steps, served, and a browser."""
    folder: Path = tmp_path_factory.mktemp("run")
    step = captured.compiled_step(request.param)
    captured.loop(step, 1)
    with profiling.capture(folder, steps=range(1, 4)) as capture:
        captured.loop(step, 5)
    with tensorboard(folder) as board, chromium.browser(folder / "browser") as page:
        page.resize(1440)
        (host,) = board.json("hosts", run=capture.path.name, tag="overview_page")

        def show(tool: str) -> chromium.Browser:
            query = urlencode({"run": capture.path.name, "tag": tool})
            page.call("Page.navigate", url=f"{board.url}/index.html?{query}")
            page.wait_for("document.body?.innerText?.includes('Hosts (1)')")
            return page

        def data(tool: str) -> str:
            """What the page is given, as the page reads it."""
            query = urlencode(
                {"run": capture.path.name, "tag": tool, "host": host["hostname"]}
            )
            return page.run(f"fetch('{board.url}/data?{query}').then(d => d.text())")

        yield show, data


def rows(table):
    return [[cell["v"] for cell in row["c"]] for row in table["rows"]]


def test_the_overview_shows_the_steps(pages):
    show, data = pages
    page = show("overview_page")
    page.wait_for("/Host Compute Time[^]*?[1-9]\\d* ?ms/.test(document.body.innerText)")
    steps = next(
        table
        for table in json.loads(data("overview_page"))
        if table["cols"] and table["cols"][0]["id"] == "stepnum"
    )
    assert len(rows(steps)) == 3
    assert all(row[0].startswith("train ") for row in rows(steps))
    assert all(row[-1] > 0 for row in rows(steps))


def test_the_trace_viewer_shows_host_and_devices(pages):
    show, data = pages
    page = show("trace_viewer@")
    page.wait_for(f"!!{FRAME}?.includes('tf_XLA')")
    text = page.run(FRAME)
    assert "/host:CPU" in text and "python" in text
    found = {e.get("name") for e in json.loads(data("trace_viewer@"))["traceEvents"]}
    assert {"spmd:dispatch", "dispatch"} & found
    assert any(str(name).startswith(("all-gather", "all-reduce")) for name in found)
    assert sum(str(name).startswith("train ") for name in found) == 3


def test_the_op_table_shows_the_runs_own_host_side(pages):
    show, data = pages
    page = show("framework_op_stats")
    page.wait_for("document.body.innerText.includes('Framework Operations')")
    table = json.loads(data("framework_op_stats"))[0]
    labels = [column["label"] for column in table["cols"]]
    by_name = {row[labels.index("Operation Name")]: row for row in rows(table)}
    # xprof takes what is before the colon for the name, so all spans are one row.
    assert by_name["spmd"][labels.index("#Occurrences")] >= 3 * 3


@pytest.mark.parametrize("tool", ["hlo_stats", "op_profile"])
def test_tables_of_device_ops_are_empty_on_cpu(pages, tool):
    """XLA's CPU client records threads of the host, and no plane of a device."""
    _, data = pages
    found = json.loads(data(tool))
    assert not (
        found["rows"] if tool == "hlo_stats" else found["byProgram"]["children"]
    )


def test_the_memory_of_the_compiled_module_is_there(pages):
    show, _ = pages
    page = show("memory_viewer")
    page.wait_for(
        "/Peak memory allocation: [\\d.]+ [MK]iB/.test(document.body.innerText)"
    )
