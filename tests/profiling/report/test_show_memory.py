import dataclasses

import pytest

from profiling._report.show_memory import own_output_bytes, show_memory
from tests.profiling.on_console import on_console
from tests.profiling.schedules import GIB, LONG, MEMORY, schedule


def bar_of(said: str) -> str:
    return next(line.strip() for line in said.splitlines() if "█" in line)


@pytest.mark.parametrize("width", [80, 120])
def test_bar(width):
    said = on_console(show_memory, schedule(), width=width)
    bar = bar_of(said)
    assert len(bar) == width - 4
    share = {mark: bar.count(mark) / len(bar) for mark in "█▓▒░"}
    assert share["█"] == pytest.approx(20 / 80, abs=0.02)
    assert share["▓"] == pytest.approx(30 / 80, abs=0.02)
    assert share["▒"] == pytest.approx(1 / 80, abs=0.02)
    assert "51 GiB of 80 GiB (64%)\n" in said


def test_sums():
    said = on_console(show_memory, schedule())
    assert "(compiled: the compiler's figures)" in said
    assert "arguments    20 GiB  optimizer 15 GiB, parameter 5 GiB" in said
    assert "outputs      16 GiB  15 GiB of them in place of arguments" in said
    assert "temporaries  30 GiB" in said
    assert "peak         50 GiB  most in use at any time" in said


def test_more_than_there_is():
    memory = dataclasses.replace(MEMORY, capacity_bytes=34 * GIB)
    said = on_console(show_memory, schedule(memory=memory))
    assert "░" not in bar_of(said)
    assert f"51 GiB of 34 GiB (150%), {17 * GIB} bytes too much" in said


def test_unknown_capacity():
    memory = dataclasses.replace(MEMORY, capacity_bytes=None, origin="estimate")
    said = on_console(show_memory, schedule(memory=memory))
    assert "(estimate from the module)" in said
    assert "51 GiB; its capacity is not known" in said


@pytest.mark.parametrize("width", [80, 120])
def test_replicated(width):
    said = on_console(show_memory, schedule(), width=width)
    assert "Held more than once: 2 inputs, 5 GiB a device; the largest:" in said
    rows = said[said.index("Held") : said.index("Known to live")].splitlines()[1:]
    assert rows[0].split()[:5] == ["3", "GiB", "parameter", "8x", "bf16[64]"]
    assert rows[0].endswith(LONG if width == 120 else "output_projection.weight")
    assert rows[1].split()[4:] == ["bf16[64/fsdp,8]", "w"]
    assert len(on_console(show_memory, schedule(), top=1)) < len(said)


def test_at_the_peak():
    said = on_console(show_memory, schedule())
    assert "Known to live at the peak: 1 temporary value, 9 GiB of 30 GiB" in said
    assert "9 GiB  bf16[9]  forward  layers.0" in said
    none = dataclasses.replace(MEMORY, at_peak=(), tensors=())
    assert "Known to live" not in on_console(show_memory, schedule(memory=none))


def test_own_outputs():
    assert own_output_bytes(MEMORY) == GIB
    odd = dataclasses.replace(MEMORY, alias_bytes=17 * GIB)
    assert own_output_bytes(odd) == 0
