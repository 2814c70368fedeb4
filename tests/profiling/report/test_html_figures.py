from typing import Any

import pytest

from profiling._report.html_figures import Figure, compiled_by, figures, subtitle
from tests.profiling.html_documents import bare, step


def by_label(document: dict[str, Any]) -> dict[str, Figure]:
    return {f.label: f for f in figures(document)}


def test_each_figure_says_where_it_comes_from() -> None:
    found = by_label(step(4))
    assert {label: f.origin for label, f in found.items()} == {
        "Step time": "estimate for h100:2x8",
        "Model FLOP/s utilisation": "estimate for h100:2x8",
        "Exposed communication": "estimate for h100:2x8",
        "Peak memory of a device": "compiled for h100:2x8 by jax 0.10.2",
        "Sent by a device in a step": "compiled for h100:2x8 by jax 0.10.2",
    }
    assert [f.is_estimate for f in found.values()] == [True] * 3 + [False] * 2


def test_step_and_exposed_share() -> None:
    document = step(4)
    document["timeline"].update(step_s=0.02, exposed_s=0.003, mfu=0.417)
    found = by_label(document)
    assert found["Step time"].value == "20 ms"
    mfu = found["Model FLOP/s utilisation"]
    assert mfu.value == "42%" and "causal attention in full" in mfu.detail
    document["timeline"].update(model_flops=2e12)
    mfu = by_label(document)["Model FLOP/s utilisation"]
    assert mfu.detail.startswith("2 TFLOP a device of the model's matmuls, causal")
    exposed = found["Exposed communication"]
    assert (exposed.value, exposed.is_bad) == ("15%", True)
    assert exposed.share == pytest.approx(0.15)
    document["timeline"].update(exposed_s=0.0)
    assert by_label(document)["Exposed communication"].is_bad is False
    document["timeline"].update(step_s=0.0)
    assert by_label(document)["Exposed communication"].value == "0%"


def test_memory_against_capacity() -> None:
    document = step(1)
    memory = document["memory"]
    memory.update(peak_bytes=3 << 30, total_bytes=3 << 30, capacity_bytes=4 << 30)
    peak = by_label(document)["Peak memory of a device"]
    assert (peak.value, peak.share, peak.is_bad) == ("3 GiB", 0.75, False)
    assert peak.detail.startswith("75% of 4 GiB, arguments ")
    memory["capacity_bytes"] = 2 << 30
    peak = by_label(document)["Peak memory of a device"]
    assert peak.is_bad
    assert peak.detail.startswith("needs 1 GiB more than 2 GiB, ")
    memory["capacity_bytes"] = None
    peak = by_label(document)["Peak memory of a device"]
    assert (peak.share, peak.is_bad) == (None, False)
    assert peak.detail.endswith("capacity not known")


def test_wire_bytes_by_link() -> None:
    document = step(2)
    document["collectives"][0]["num_runs"] = 5
    sent = by_label(document)["Sent by a device in a step"]
    assert sent.value == "92 MiB"  # 6 of 14 MiB, 2 of 4 MiB
    assert sent.detail == "nvlink 84 MiB; ib 8 MiB; 8 collectives, run 12 times"


def test_a_bare_dump_has_the_figures_that_it_can() -> None:
    found = by_label(bare())
    assert list(found) == ["Peak memory of a device", "Sent by a device in a step"]
    assert found["Peak memory of a device"].origin == "estimate"
    sent = found["Sent by a device in a step"]
    assert sent.origin == "read from dump/module_0001.step"
    assert sent.detail.startswith("link not known 92 MiB; ")


def test_compiled_by() -> None:
    target = {"text": "v5e:4x4"}
    versions = {"jax": "0.10.2", "libtpu": "0.0.42"}
    assert compiled_by({"target": target, "versions": versions}) == (
        "compiled for v5e:4x4 by jax 0.10.2, libtpu 0.0.42"
    )
    assert compiled_by({"target": target}) == "read from a module"


def test_subtitle() -> None:
    assert subtitle({**step(1), "source": "a.hlo"}) == [
        "target h100:2x8: 16 × NVIDIA H100 SXM5 80 GB on 2 hosts",
        "mesh replica 2 (dcn) × fsdp 8",
        "from a.hlo",
    ]
    assert subtitle({}) == []
