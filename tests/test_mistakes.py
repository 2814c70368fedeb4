"""Ordinary mistakes end with a message that says what to change.

Each in a process of its own: exit code 1, no signal, and the last line of the error is
the message. Starting one takes seconds, so mistakes that leave the process usable share
one: all but the last are caught and printed.
"""

import textwrap

import pytest

SETUP = """
import torch, torch_xla, torch.nn as nn, spmd
from fsdpv2 import FSDPv2
"""
MODEL = """
spmd.init()
mesh = spmd.Mesh({"replica": 2, "fsdp": 4})
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
x = torch.ones(8, 8).to("xla")

def fails(call):
    try:
        call()
    except Exception as error:
        print(f"{type(error).__name__}: {error}")
    else:
        raise SystemExit("nothing was raised")
"""


@pytest.fixture
def ends(run_script):
    """Run a script that must fail well; returns what it printed and its last line."""

    def run(source: str, **kwargs) -> tuple[list[str], str]:
        result = run_script(SETUP + textwrap.dedent(source), **kwargs)
        assert result.rc == 1, f"exit code {result.rc}\n{result.stderr}"
        return result.stdout.splitlines(), result.stderr.strip().splitlines()[-1]

    return run


# SPMD switched on too late

LATE = "RuntimeError: SPMD mode was switched on too late: the XLA device was already"


@pytest.mark.parametrize(
    "early, named",
    [
        ("x = torch.ones(3, 5, device='xla')", "used by a tensor (float32[3, 5])"),
        (
            "torch_xla.manual_seed(3)",
            "used by a random seed (torch_xla.manual_seed or xm.set_rng_state)",
        ),
        (
            "model = nn.Linear(3, 5).to('xla')",
            "used by a model (parameter 'weight' [5, 3] of Linear)",
        ),
        ("torch_xla.device()", "used by torch_xla.device()"),
    ],
    ids=["tensor", "seed", "model", "device"],
)
@pytest.mark.parametrize(
    "late",
    [
        "spmd.init()",
        pytest.param("FSDPv2(nn.Linear(8, 8))", marks=pytest.mark.slow),
        pytest.param("spmd.Mesh({'fsdp': -1})", marks=pytest.mark.slow),
    ],
)
def test_spmd_switched_on_too_late(ends, early, named, late):
    _, last = ends(f"{early}\n{late}")
    assert last.startswith(f"{LATE} {named}") and "Call spmd.init() before" in last


def test_a_mesh_of_given_sizes_first_does_not_switch_it_on(ends):
    _, last = ends(
        """
        mesh = spmd.Mesh({"fsdp": 8})
        x = torch.ones(8, 2, device="xla")
        spmd.mark_sharding(x, mesh, ("fsdp", None))
        """
    )
    assert last.startswith(f"{LATE} used by a tensor (float32[8, 2])")


def test_a_backward_on_the_cpu_before_the_runtime_is_up(ends):
    _, last = ends(
        """
        nn.Linear(2, 2)(torch.ones(1, 2)).sum().backward()
        spmd.init()
        """
    )
    assert last.startswith("RuntimeError: a backward ran on the CPU before the XLA")
    assert "Call spmd.init() before the first backward" in last


# Specs and meshes


def test_specs_and_meshes(ends):
    printed, last = ends(
        MODEL
        + textwrap.dedent(
            """
            mark = spmd.mark_sharding
            fails(lambda: mark(x, mesh, ("fsdp",), name="x"))
            fails(lambda: mark(x, mesh, ("fsdb", None), name="x"))
            fails(lambda: mark(x, mesh, ("fsdp", "fsdp"), name="x"))
            fails(lambda: mark(x, mesh, "fsdp", name="x"))
            fails(lambda: mark(x, spmd.Mesh({"fsdp": 4}), ("fsdp", None), name="x"))
            fails(lambda: spmd.Mesh({"fsdp": -1, "tensor": 3}))
            assert x.sum().item() == 64  # the process goes on
            FSDPv2(model, spmd.Mesh({"fsdp": 16}))
            """
        )
    )
    starts = [
        "ValueError: x [8, 8]: spec ('fsdp',) has 1 entries for 2 dims; give one entry",
        "ValueError: x [8, 8]: spec ('fsdb', None) names mesh axis 'fsdb', but the",
        "ValueError: x [8, 8]: spec ('fsdp', 'fsdp') uses mesh axis 'fsdp' 2 times; an",
        "TypeError: x [8, 8]: a spec is a tuple with one entry per dim, got 'fsdp'",
        "ValueError: x [8, 8]: Mesh(fsdp=4) has 4 devices, this machine runs 8; use a",
        "ValueError: Mesh: {fsdp: -1, tensor: 3}: the fixed axes make 3, which",
    ]
    for line, start in zip(printed, starts, strict=True):
        assert line.startswith(start)
    assert "did you mean 'fsdp'?" in printed[1]
    assert last.startswith("ValueError: 0.weight [16, 8]: Mesh(fsdp=16) has 16 devices")
    assert "spmd.init(cpu_devices=16)" in last


def test_a_model_on_the_cpu_or_meta(ends):
    printed, last = ends(
        MODEL
        + textwrap.dedent(
            """
            plan = spmd.Plan({"*.weight": ("fsdp", None), "*.bias": (None,)})
            fails(lambda: spmd.mark_sharding(model[0].weight, mesh, ("fsdp", None)))
            fails(lambda: spmd.shard_module(model, mesh, plan))
            with torch.device("meta"):
                empty = nn.Linear(8, 8)
            fails(lambda: spmd.to_device(empty))
            FSDPv2(empty, mesh)(x)
            """
        )
    )
    starts = [
        "ValueError: parameter [16, 8] is on cpu, not on the XLA device; move it first",
        "ValueError: shard_module: 0.weight [16, 8] is still on cpu; call spmd.to_dev",
        "ValueError: to_device: weight [8, 8] is on the meta device and has no values",
    ]
    for line, start in zip(printed, starts, strict=True):
        assert line.startswith(start)
    assert last.startswith("ValueError: FSDPv2: parameter weight [8, 8] is on the meta")
    assert "call fsdpv2.materialize(model) to initialise it in place" in last


# Wrapping and running


def test_wrapping_and_running(ends):
    printed, last = ends(
        MODEL
        + textwrap.dedent(
            """
            fails(lambda: FSDPv2(model, mesh, auto_wrap_policy={"Liner"}))
            fails(lambda: FSDPv2(model, mesh, auto_wrap_policy=3))
            fails(lambda: FSDPv2(model, spmd.Mesh({"data": 8})))
            wrapped = FSDPv2(model, mesh)
            fails(lambda: FSDPv2(wrapped, mesh))
            fails(lambda: wrapped(torch.ones(8, 8)))
            fails(lambda: wrapped.load_state_dict({}))
            x = spmd.mark_sharding(x, mesh, (("replica", "fsdp"), None))
            assert wrapped(x).shape == (8, 8)
            wrapped(x[:4])
            """
        )
    )
    text = "\n".join(printed)
    starts = [
        "ValueError: auto_wrap_policy: no submodule of Sequential is a 'Liner'; did",
        "TypeError: auto_wrap_policy=3: give layer classes or their names",
        "ValueError: FSDPv2: the mesh has no axis 'fsdp', only {'data': 8}",
        "ValueError: FSDPv2: this Sequential is already wrapped",
        "ValueError: FSDPv2: input args[0] [8, 8] is on cpu; give it to the devices",
        "RuntimeError: Error(s) in loading state_dict for FSDPv2",
    ]
    position = 0
    for start in starts:
        position = text.index(start, position)
    assert last.startswith("ValueError: FSDPv2: input args[0] [4, 8] has a batch of 4")
    assert "shard_batch(..., pad=True), or model.module(...)" in last


def test_the_number_of_devices_after_the_runtime_is_up(ends):
    _, last = ends("spmd.init()\nspmd.init(cpu_devices=4)")
    assert last.startswith("RuntimeError: init: cpu_devices=4, but the runtime already")
