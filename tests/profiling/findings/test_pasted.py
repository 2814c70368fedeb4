"""The line of a fix, pasted into the page's program, gives the step that was proven."""

import warnings
from typing import Any

import pytest

import profiling
from profiling._findings.verify import figures
from tests.profiling import finding_pages
from tests.profiling.compilers import need

PLAN = "spmd.shard_module(model, mesh, "
MARKED = "    spmd.mark_sharding(turned, mesh"
# Where each page's program takes the line: what stands there, what then stands there.
PASTED = {
    "activation-gathered": [
        ('spmd.Plan({"*.weight": ("fsdp", None)}))', "plan)"),
        (PLAN, 'plan = spmd.Plan({"*.weight": ("fsdp", None)})\nCODE\n' + PLAN),
    ],
    "batch-replicated": [('"x": (None, None)', '"x": ("fsdp", None)')],
    "gradient-all-reduced": [
        (
            'spmd.mark_sharding(model.weight, mesh, ("fsdp", None), grad=(None, None))',
            "CODE",
        )
    ],
    "gradient-per-micro-batch": [("optimizer = torch", "CODE\noptimizer = torch")],
    "large-replicated": [
        ('spmd.Plan({"head.weight": ("fsdp", None)}))', "plan)"),
        (PLAN, 'plan = spmd.Plan({"head.weight": ("fsdp", None)})\nCODE\n' + PLAN),
    ],
    "many-small": [(PLAN, "CODE\n" + PLAN)],
    "padding-waste": [
        ('spmd.Plan({"weight": ("fsdp", None)}))', "plan)"),
        (PLAN, "plan = spmd.Plan({})\nCODE\n" + PLAN),
    ],
    "reshard-between-annotations": [(MARKED, "    CODE\n" + MARKED)],
    "tensor-across-hosts": [('mesh = spmd.Mesh({"tensor": 2, "fsdp": 8})', "CODE")],
    "weight-gathered-again": [
        ("    for _ in", "    CODE\n    for _ in"),
        ("model(x)", "torch.nn.functional.linear(x, weight)"),
    ],
    "weights-across-hosts": [('mesh = spmd.Mesh({"fsdp": 4, "replica": 2})', "CODE")],
    "wide-dtype": [(MARKED, "    CODE\n" + MARKED)],
}


@pytest.mark.parametrize("kind", PASTED)
def test_a_pasted_line_does_what_was_proven(kind):
    fix = finding_pages.finding(kind, after=True).fix
    assert fix is not None and fix.proof is not None
    source = finding_pages.source(kind)
    for old, new in PASTED[kind]:
        assert source.count(old) == 1, old
        source = source.replace(old, new.replace("CODE", fix.code))
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        exec(compile(source, kind, "exec"), names)
    schedule = profiling.compile(names["program"], need(names["target"]))
    got, proven = figures(schedule), fix.proof.after
    assert got.wire_bytes == proven.wire_bytes
    assert got.weight_gather_bytes == proven.weight_gather_bytes
    assert got.step_s == pytest.approx(proven.step_s, rel=0.02)
