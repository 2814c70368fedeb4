"""A capture in TensorBoard's profile plugin, in a real browser.

The plugin draws its tables with Google Charts, which it loads from the internet. Here a
stand-in of what it uses of that draws them, so that the pages' own code runs to its
end; of the charts beside the tables nothing is drawn.
"""

import importlib.util
import json
from pathlib import Path
from urllib.parse import urlencode

import pytest

import profiling
from tests.profiling import captured, chromium
from tests.profiling.converters import rows
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

STAND_IN = Path(__file__).parents[1] / "stand_in_charts.js"
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
        page.call("Page.addScriptToEvaluateOnNewDocument", source=STAND_IN.read_text())
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


def drawn(page):
    """Rows of the table that the page has drawn, by its headings."""
    page.wait_for("document.querySelectorAll('table.stand-in tr').length > 1")
    head, *rest = page.run(
        "[...document.querySelector('table.stand-in').rows]"
        ".map(r => [...r.cells].map(c => c.textContent))"
    )
    return [dict(zip(head, row, strict=True)) for row in rest]


def test_the_overview_shows_the_steps_of_a_cpu(pages):
    show, data = pages
    page = show("overview_page")
    page.wait_for("document.body.innerText.includes('This ran on CPU devices')")
    page.wait_for(
        "/Device Collective Communication Time[^]*?[1-9]\\d* ?ms/"
        ".test(document.body.innerText)"
    )
    text = page.run("document.body.innerText")
    assert "Device type: CPU" in text
    _, steps, *_ = json.loads(data("overview_page"))
    first, *rest = [int(row["stepnum"]) for row in rows(steps)]
    assert rest == [first + 1, first + 2]
    assert all(row["stepTimeMs"] > 0 for row in rows(steps))
    assert all(row["deviceCollectivesTimeMs"] > 0 for row in rows(steps))


def test_the_trace_viewer_shows_host_and_devices(pages):
    show, data = pages
    page = show("trace_viewer@")
    page.wait_for(f"!!{FRAME}?.includes('tf_XLA')")
    text = page.run(FRAME)
    assert "/host:CPU" in text and "python" in text
    assert all(f"/device:TPU:CPU {n} (no TPU" in text for n in range(8))
    found = {e.get("name") for e in json.loads(data("trace_viewer@"))["traceEvents"]}
    assert {"spmd/dispatch:", "dispatch"} & found
    assert any(str(name).startswith(("all-gather", "all-reduce")) for name in found)
    assert sum(str(name).startswith("train ") for name in found) == 3


def test_the_table_of_framework_operations_shows_both_sides(pages):
    show, _ = pages
    page = show("framework_op_stats")
    by_name = {row["Operation Name"]: row for row in drawn(page)}
    for span in ("spmd/step", "spmd/dispatch", "spmd/data"):
        assert by_name[span]["Host/device"] == "Host"
        assert int(by_name[span]["#Occurrences"]) >= 3
    device = [row for row in by_name.values() if row["Host/device"] == "Device"]
    assert len(device) > 10
    assert not any(":" in row["Operation Name"] for row in device)


def test_the_table_of_operations_shows_them(pages):
    show, data = pages
    page = show("hlo_stats")
    table = drawn(page)
    assert len(table) > 8
    gathers = [row for row in table if row["HLO op category"] == "all-gather"]
    assert gathers and all(row["#Occurrences"] == "24" for row in gathers)
    assert gathers[0]["HLO op text"].startswith(f"%{gathers[0]['HLO op name']} = f32[")
    known = {row["hlo_op_name"] for row in rows(json.loads(data("hlo_stats")))}
    assert {row["HLO op name"] for row in table} <= known


def test_the_profile_of_operations_opens_down_to_them(pages):
    show, data = pages
    page = show("op_profile")
    closed = (
        "[...document.querySelectorAll('span')].filter(e => e.offsetParent "
        "&& !e.childElementCount && e.textContent.trim() === '►')"
    )
    for _ in range(3):  # programs, categories, operations
        page.wait_for(f"{closed}.length > 0")
        page.run(f"{closed}.forEach(e => e.click())")
        page.settle()
    names = {row["hlo_op_name"] for row in rows(json.loads(data("hlo_stats")))}
    text = page.run("document.body.innerText")
    shown = {line.strip() for line in text.splitlines()} & names
    assert len(shown) > 5 and any(name.startswith("all-gather") for name in shown)
    assert "Overall CPU_ONLY FLOPS utilization" in page.run("document.body.innerText")


def test_the_memory_of_the_compiled_module_is_there(pages):
    show, _ = pages
    page = show("memory_viewer")
    page.wait_for(
        "/Peak memory allocation: [\\d.]+ [MK]iB/.test(document.body.innerText)"
    )
