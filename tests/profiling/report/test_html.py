"""The page, as text and in a real browser."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from profiling._analyse import analyse
from profiling._report.html import html
from profiling._schedule import Schedule
from spmd._program.summary import bytes_text
from tests.profiling import chromium
from tests.profiling.hlo_files import DATA, content, parse
from tests.profiling.html_documents import NASTY, bare, step

Open = Callable[..., chromium.Browser]


def text_of(selector: str) -> str:
    return f"document.querySelector({selector!r}).innerText"


def texts(selector: str) -> str:
    return f"[...document.querySelectorAll({selector!r})].map(e => e.innerText.trim())"


def attributes(selector: str, name: str) -> str:
    every = f"[...document.querySelectorAll({selector!r})]"
    return f"{every}.map(e => e.getAttribute({name!r}))"


def column(number: int) -> str:
    return texts(f"#collectives tbody tr:not(.spacer) td:nth-child({number})")


def nasty() -> dict[str, Any]:
    """Every text of a document has something in it that HTML takes for its own."""

    def spoil(value: Any, key: str = "") -> Any:
        if isinstance(value, dict):
            return {k: spoil(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [spoil(v, key) for v in value]
        free = ("name", "tensor", "module", "source", "op_name", "warnings", "compiler")
        return value + NASTY if isinstance(value, str) and key in free else value

    return {**spoil(step(2)), "notes": [NASTY]}


def compiled(name: str, target: str, **how: Any) -> Schedule:
    return analyse(parse(content(DATA / f"{name}.txt.gz")), target=target, **how)


DOCUMENTS = {
    "gpu": lambda: compiled("gpu_h100", "h100:1x8", mesh={"fsdp": 8}).as_json(),
    "tpu": lambda: compiled("tpu_v5e_windowed", "v5e:2x4").as_json(),
    "step": step,
    "bare": bare,
    "nasty": nasty,
    "empty": lambda: {"name": "empty", "collectives": []},
    "one device": lambda: {**step(2), "collectives": [], "totals": {}},
}


def test_loads_nothing_and_forbids_it() -> None:
    page = html(step())
    assert re.findall(r"(?:src|href)=\"([^\"#]+)\"", page) == ["data:,"]
    assert "http:" not in page and "https:" not in page
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', page)
    assert policy.startswith("default-src &#39;none&#39;; script-src &#39;sha256-")
    assert "unsafe" not in policy


def test_no_text_breaks_out_of_its_place() -> None:
    page = html(nasty())
    assert page.count("</script>") == 2  # the data's own and the script's own
    assert NASTY not in page
    assert "<b>bold" not in page
    (data,) = re.findall(r'id="data">(.*?)</script>', page, re.DOTALL)
    assert json.loads(data)["name"] == "train_step" + NASTY


def test_says_where_figures_come_from() -> None:
    page = html(step())
    assert "estimate for h100:2x8" in page
    assert "compiled for h100:2x8 by jax 0.10.2" in page
    assert "It took 4.2 s, measured where it ran." in page
    assert "involuntary rematerialisation of &lt;f32[8]&gt;" in page
    assert "<dd>true</dd>" in page


def test_says_what_is_missing_and_how_to_give_it() -> None:
    page = html(bare())
    assert "Not known here" in page
    assert "no target: give it (--target h100:2x8)" in page
    assert "There is no timeline" in page
    assert "read from dump/module_0001.step" in page


def test_a_large_step_stays_small() -> None:
    document = step(200, small_ops=10)
    written = len(json.dumps(document))
    assert len(document["timeline"]["events"]) == 5400
    assert len(html(document)) - len(html(step(1))) < written / 4


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    if chromium.find() is None:
        pytest.skip(f"no browser: none of {', '.join(chromium.NAMES)} is on the path")
    with chromium.browser(tmp_path_factory.mktemp("browser")) as found:
        yield found


@pytest.fixture
def show(browser: chromium.Browser, tmp_path: Path) -> Iterator[Open]:
    """Open a document's page; nothing may be logged or loaded until the test ends."""
    path = tmp_path / "page.html"
    browser.complaints.clear()
    browser.requested.clear()

    def opened(document: dict[str, Any], **how: Any) -> chromium.Browser:
        path.write_text(html(document), encoding="utf-8")
        browser.open(path, **how)
        return browser

    yield opened
    assert browser.complaints == []
    assert set(browser.requested) <= {path.as_uri(), "data:,"}


@pytest.mark.parametrize("name", DOCUMENTS)
@pytest.mark.parametrize("width", [1440, 390])
def test_any_document_fits_its_window(show: Open, name: str, width: int) -> None:
    page = show(DOCUMENTS[name](), width=width, dark=width == 390)
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.run("document.querySelectorAll('b').length") == 0
    for part in ("timeline-section", "collectives", "memory", "sharding", "compiler"):
        assert len(page.run(text_of(f"#{part}"))) > 20
    unnamed = "e => !(e.innerText || e.ariaLabel || e.labels?.length)"
    controls = "[...document.querySelectorAll('button, input, select')]"
    assert page.run(f"{controls}.filter({unnamed}).length") == 0


def test_table_sorts(show: Open) -> None:
    document = step(12)
    page = show(document)
    waits = sorted((c["exposed_s"] for c in document["collectives"]), reverse=True)
    shown = page.run(column(12))
    assert shown[0] == f"{waits[0] * 1e6:.0f} us"
    assert len(shown) < len(waits)  # only those in sight are drawn
    page.click("#collectives th:nth-child(6) button")
    assert page.run(column(6))[:8] == [
        f"layers.{i}.mlp.weight" for i in (0, 0, 0, 0, 1, 1, 1, 1)
    ]
    page.click("#collectives th:nth-child(6) button")
    assert page.run(column(6))[0] == "layers.11.mlp.weight"
    assert page.run(attributes("#collectives th", "aria-sort")).count("none") == 12
    page.run("document.querySelector('#collectives .table').scrollTop = 1e6")
    page.wait_for(f"{column(6)}.at(-1) === 'layers.0.mlp.weight'")


def test_filters_and_their_totals(show: Open) -> None:
    document = step(12)
    page = show(document)
    footer = texts("#collectives tfoot td")

    def totals() -> list[str]:
        cells = page.run(footer)
        return [cells[1], cells[8], cells[9]]

    def choose(which: int, value: str) -> None:
        page.run(
            f"(s => {{ s.value = {value!r}; s.dispatchEvent(new Event('change')) }})"
            f"(document.querySelectorAll('#collectives select')[{which}])"
        )

    assert totals() == ["48 in all", "48", "552 MiB"]
    choose(0, "gradient reduction")
    assert totals() == ["24 in all", "24", "216 MiB"]
    choose(1, "replica")
    assert totals() == ["12 in all", "12", "48 MiB"]
    page.click("#collectives input[type=search]")
    for key in "ers.11":
        page.key(key)
    assert totals() == ["1 in all", "1", "4 MiB"]
    page.click("#collectives .filters button")
    assert totals() == ["48 in all", "48", "552 MiB"]
    page.click("#collectives .check:nth-of-type(3) input")
    exposed = [c for c in document["collectives"] if c["exposed_s"] > 0]
    assert totals()[0] == f"{len(exposed)} in all"
    page.click("#collectives .check:nth-of-type(3) input")
    page.click("#collectives .check:nth-of-type(4) input")
    assert set(page.run(column(6))) == {"layers.*.mlp.weight"}
    assert totals() == ["48 in all", "48", "552 MiB"]


def test_bars_filter_too(show: Open) -> None:
    page = show(step(4))
    page.click("#collectives .totals section:nth-child(1) button:nth-of-type(2)")
    assert page.run(text_of("#collectives .filters [role=status]")) == "8 of 16"
    assert set(page.run(column(2))) == {"gradient reduction"}


def test_rows_find_their_event(show: Open) -> None:
    page = show(step(12))
    row = "#collectives tbody tr:nth-child(3)"
    page.mouse("Moved", *page.centre(row))
    (marked,) = page.run(
        "document.querySelector('#timeline').dataset.marked.split(' ')"
    )
    page.click(row)
    assert page.run(text_of("#detail strong")) == marked
    assert view_share(page) < 0.5
    page.click("#detail button:nth-of-type(2)")
    assert page.run(text_of("#collectives .filters [role=status]")) == "1 of 48"


def test_table_by_keyboard(show: Open) -> None:
    page = show(step(12))
    page.run("document.querySelector('#collectives table').focus()")
    for key in ("ArrowDown", "ArrowDown", "End", "ArrowUp"):
        page.key(key)
    selected = "document.querySelector('#collectives tr[aria-selected=true]')"
    assert page.run(f"{selected}.ariaRowIndex") == "48"  # the head is row 1 of 49
    page.key("Enter")
    assert page.run("document.querySelector('#detail').hidden") is False


def view(page: chromium.Browser) -> tuple[float, float]:
    found = page.run(
        "(({from, to}) => [+from, +to])(document.querySelector('#timeline').dataset)"
    )
    return found[0], found[1]


def view_share(page: chromium.Browser) -> float:
    low, high = view(page)
    return (high - low) / (step(12)["timeline"]["step_s"] * 1e9)


def test_timeline_zooms_and_moves(show: Open) -> None:
    page = show(step(12))
    whole = view(page)
    x, y = page.centre("#timeline")
    # A wheel that is still scrolling the page does not zoom, so it takes a rest first.
    page.run("new Promise(done => setTimeout(done, 600))")
    for _ in range(6):
        page.mouse("Wheel", x, y, deltaX=0, deltaY=-300)
    low, high = view(page)
    assert high - low < (whole[1] - whole[0]) / 2
    page.mouse("Pressed", x, y, button="left", buttons=1)
    page.mouse("Moved", x - 200, y, button="left", buttons=1)
    page.mouse("Released", x - 200, y, button="left")
    assert view(page)[0] > low
    page.run("document.querySelector('#timeline').focus()")
    page.key("0")
    assert view(page) == whole
    for key in ("+", "+", "ArrowRight"):
        page.key(key)
    assert view(page)[0] > whole[0]
    page.click("#zoom-all")
    assert view(page) == whole


def test_timeline_tells_of_what_is_under_the_mouse(show: Open) -> None:
    page = show(step(4))
    page.centre("#timeline")
    left, top = page.run(
        "(b => [b.x, b.y])(document.querySelector('#timeline').getBoundingClientRect())"
    )
    page.mouse("Moved", left + 3, top + 130)
    tip = page.run(text_of("#tip"))
    assert tip.startswith("all-gather-start.f0")
    assert "tensor layers.0.mlp.weight" in tip
    assert "sent 14 MiB a step" in tip
    page.mouse("Moved", 5, 5)
    assert page.run("document.querySelector('#tip').hidden") is True


def test_timeline_by_keyboard(show: Open) -> None:
    page = show(step(4))
    page.run("document.querySelector('#timeline').focus()")
    opened = []
    for key in "nnp.":
        page.key(key)
        opened.append(page.run(text_of("#detail strong")))
    assert opened[:3] == ["all-gather-start.f0", "all-gather-start.f1", opened[0]]
    page.key("Escape")
    assert page.run("document.querySelector('#detail').hidden") is True


def test_exposed_strip_is_what_the_estimate_says(show: Open) -> None:
    # As many layers forward as backward, so that each wait is for a gather.
    document = step(6)
    document["timeline"]["events"] = [
        e
        for e in document["timeline"]["events"]
        if not e["name"].startswith(("reduce-scatter", "all-reduce"))
    ]
    compute = [(0.0, 2e-3), (3e-3, 4e-3)]
    events = [event("c", "compute", *span) for span in compute]
    events += [event("w", "communication", 1e-3, 3.5e-3)]
    events += [event("v", "communication", 3.75e-3, 4.5e-3)]
    document["timeline"].update(events=events, step_s=4.5e-3)
    page = show(document)
    exposed = float(page.run("document.querySelector('#timeline').dataset.exposed"))
    assert exposed == pytest.approx((1e-3 + 0.5e-3) * 1e9)


def event(name: str, stream: str, start: float, end: float) -> dict[str, Any]:
    return {
        "name": name,
        "stream": stream,
        "kind": "fusion",
        "start_s": start,
        "duration_s": end - start,
        "num_runs": 1,
        "module": "",
        "phase": "",
    }


def test_theme_follows_the_system_until_chosen(show: Open) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    page = show(step(2), dark=True)
    dark = page.run(paper)
    page.click("#theme")
    assert page.run("document.documentElement.dataset.theme") == "light"
    light = page.run(paper)
    page.click("#theme")
    assert page.run(paper) == dark != light
    page.click("#theme")
    assert page.run(text_of("#theme")) == "Theme: auto"


def test_shows_what_a_schedule_has(show: Open) -> None:
    schedule = compiled("gpu_h100", "h100:1x8", mesh={"fsdp": 8})
    assert schedule.timeline is not None
    page = show(schedule.as_json())
    footer = page.run(texts("#collectives tfoot td"))
    assert footer[1] == f"{len(schedule.collectives)} in all"
    assert footer[9] == bytes_text(schedule.wire_bytes)
    exposed = page.run("+document.querySelector('#timeline').dataset.exposed")
    assert exposed / 1e9 == pytest.approx(schedule.timeline.exposed_s, rel=1e-3)
    assert page.run(texts("#memory .figures-row dd"))[-1] == bytes_text(
        schedule.memory.peak_bytes
    )


SPECS = [
    [None, None],
    ["fsdp", None],
    [None, "fsdp"],
    ["fsdp", "replica"],
    [["replica", "fsdp"], None],
    [["fsdp", "replica"], None],
]


def tensors_of(specs: list[Any], mesh: dict[str, int], shape: tuple[int, int]) -> Any:
    def ways(spec: Any) -> int:
        axes = [a for e in spec for a in ([e] if isinstance(e, str) else e or [])]
        return int(np.prod([mesh[a] for a in axes]))

    devices = int(np.prod(list(mesh.values())))
    return [
        {
            "name": f"w{i}",
            "role": "parameter",
            "dtype": "f32",
            "shape": list(shape),
            "spec": spec,
            "device_bytes": 4 * shape[0] * shape[1] // ways(spec),
            "copies": devices // ways(spec),
        }
        for i, spec in enumerate(specs)
    ]


def sharded(specs: list[Any], mesh: dict[str, int]) -> dict[str, Any]:
    document = step(1)
    document["mesh"] = {
        "axis_names": list(mesh),
        "shape": list(mesh.values()),
        "dcn_axes": [],
    }
    document["memory"]["tensors"] = tensors_of(specs, mesh, (64, 32))
    return document


def test_pieces_are_where_jax_puts_them(show: Open) -> None:
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    devices = np.array(jax.devices("cpu")[:8]).reshape(2, 4)
    page = show(sharded(SPECS, {"replica": 2, "fsdp": 4}))
    for i, spec in enumerate(SPECS):
        page.click(f"#sharding tbody tr:nth-child({i + 2})")
        shown = set(page.run(attributes("#sharding .piece", "aria-label")))
        entries = [tuple(e) if isinstance(e, list) else e for e in spec]
        sharding = NamedSharding(
            Mesh(devices, ("replica", "fsdp")), PartitionSpec(*entries)
        )
        pieces = sharding.devices_indices_map((64, 32))
        for (replica, fsdp), device in np.ndenumerate(devices):
            ranges = ", ".join(
                ":" if s.start is None else f"{s.start}:{s.stop}"
                for s in pieces[device]
            )
            where = f"replica {replica}, fsdp {fsdp} holds piece "
            (label,) = [text for text in shown if text.startswith(where)]
            assert label.endswith(f": [{ranges}]"), spec


def test_hovering_a_piece_shows_who_holds_it(show: Open) -> None:
    page = show(sharded(SPECS, {"replica": 2, "fsdp": 4}))
    page.click("#sharding tbody tr:nth-child(3)")
    page.mouse("Moved", *page.centre("#sharding .piece[data-piece='2']"))
    assert page.run("document.querySelectorAll('#sharding .piece.same').length") == 3
    assert page.run(text_of("#sharding .hold")) == (
        "piece 2 of 4: [32:48, :], on 2 devices"
    )


def test_a_pod_of_thousands_is_drawn_in_part(show: Open) -> None:
    mesh = {"data": 64, "fsdp": 32, "tensor": 4}
    page = show(sharded([["fsdp", "tensor"]], mesh))
    assert page.run("document.querySelectorAll('#sharding .piece').length") < 200
    picture = page.run(text_of("#sharding .picture"))
    assert "128 pieces, each on 64 devices." in picture
    assert "leaves out data (64)" in picture
    assert "fsdp 31" in str(page.run(attributes("#sharding .piece", "aria-label")))


def test_what_the_mesh_does_not_explain_is_not_drawn(show: Open) -> None:
    document = step(1)
    (tensor, *_) = document["memory"]["tensors"]
    tensor["spec"] = None
    page = show(document)
    assert "is not known" in page.run(text_of("#sharding .picture"))
    assert page.run(text_of("#sharding tbody tr:nth-child(2) td:nth-child(5)")) == (
        "split, axes not known"
    )


def test_memory_over_capacity_is_marked(show: Open) -> None:
    document = step(1)
    document["memory"]["capacity_bytes"] = document["memory"]["total_bytes"] - 1024
    page = show(document)
    assert "needs 1 KiB more than" in page.run(text_of(".figure.bad:nth-child(4)"))
    assert "capacity" in page.run(text_of("#memory .line.capacity"))
