import gc

import pytest
import torch_xla.runtime as xr
from torch import nn

import spmd
from spmd import _runtime
from spmd._torch_xla import seam
from tests.on_device import on_device


def test_the_device_count_is_the_environments():
    assert _runtime.num_devices() == 8


def test_again_is_fine():
    spmd.init()
    spmd.init(cpu_devices=8)


@pytest.mark.parametrize("count", [True, 8.0, "8"])
def test_a_count_that_is_no_int(count):
    with pytest.raises(TypeError, match=rf"init: cpu_devices={count!r}; an int"):
        spmd.init(cpu_devices=count)


@pytest.mark.parametrize("count", [0, -1, 128])
def test_a_count_that_cannot_run(count):
    with pytest.raises(ValueError, match=rf"init: {count} CPU devices; 1\.\.127 work"):
        spmd.init(cpu_devices=count)


@pytest.mark.parametrize(
    "text, message",
    [("eight", r"CPU_NUM_DEVICES='eight'; a number"), ("256", "256 CPU devices")],
)
def test_an_environment_that_cannot_run(monkeypatch, text, message):
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setenv("CPU_NUM_DEVICES", text)
    with pytest.raises(ValueError, match=message):
        spmd.init()


def test_another_count_than_the_one_that_runs():
    text = r"cpu_devices=4, but the runtime already runs with 8 devices; call spmd"
    with pytest.raises(RuntimeError, match=text):
        spmd.init(cpu_devices=4)


@pytest.fixture
def too_late(monkeypatch):
    monkeypatch.setattr(seam, "spmd_is_on", lambda: False)
    monkeypatch.setattr(seam, "device_was_used", lambda: True)
    monkeypatch.setattr(seam, "seed_was_set", lambda: False)
    gc.collect()
    known = gc.get_objects()  # held, so that no new object gets the id of one of them
    before = {id(o) for o in known}
    monkeypatch.setattr(
        _runtime,
        "_objects",
        lambda: [o for o in gc.get_objects() if id(o) not in before],
    )
    yield
    known.clear()


def error_of(call) -> str:
    with pytest.raises(RuntimeError, match="switched on too late") as error:
        call()
    return str(error.value)


def test_an_early_tensor_is_named(too_late):
    tensor = on_device(3, 5)
    assert "by a tensor (float32[3, 5]). Call spmd.init()" in error_of(spmd.init)
    del tensor


def test_an_early_model_is_named(too_late):
    model = nn.Linear(3, 5).to("xla")
    assert "a model (parameter 'weight' [5, 3] of Linear)" in error_of(spmd.init)
    del model


def test_a_module_that_is_being_built_is_passed_over(too_late):
    class Early(nn.Module):
        def __init__(self):
            self.__dict__["message"] = error_of(spmd.init)

    assert "by torch_xla.device(). Call" in Early().message


def test_an_early_seed_is_named(too_late, monkeypatch):
    monkeypatch.setattr(seam, "seed_was_set", lambda: True)
    assert "by a random seed (torch_xla.manual_seed" in error_of(spmd.init)


def test_an_early_device_is_named(too_late):
    assert "by torch_xla.device(). Call" in error_of(spmd.init)


def test_a_backward_before_the_runtime_was_up(monkeypatch):
    monkeypatch.setattr(_runtime, "_autograd_works", False)
    monkeypatch.setattr(seam, "autograd_works", lambda: False)
    with pytest.raises(RuntimeError, match="a backward ran on the CPU before the XLA"):
        spmd.init()


def test_init_chooses_the_cpu_and_its_count(run_script):
    result = run_script(
        """
        import os
        import spmd
        before = dict(os.environ)
        spmd.init(cpu_devices=3)
        from spmd._runtime import num_devices
        print(num_devices(), spmd.Mesh({"fsdp": -1}).size, os.environ["PJRT_DEVICE"])
        import torch
        torch.ones(2, requires_grad=True).sum().backward()  # on the CPU, after init
        x = torch.ones(3, requires_grad=True, device="xla")
        x.sum().backward()
        print(x.grad.cpu().tolist())
        """,
        env={"PJRT_DEVICE": None, "CPU_NUM_DEVICES": None},
    )
    assert result.rc == 0, result.stderr
    assert result.stdout.splitlines() == ["3 3 CPU", "[1.0, 1.0, 1.0]"]


def test_the_first_mesh_that_counts_devices_switches_it_on(run_script):
    result = run_script(
        """
        import spmd, torch
        mesh = spmd.Mesh({"fsdp": -1})
        x = spmd.mark_sharding(torch.ones(8).to("xla"), mesh, ("fsdp",))
        print(mesh, x.sum().item())
        """
    )
    assert result.rc == 0, result.stderr
    assert result.stdout.splitlines() == ["Mesh(fsdp=8) 8.0"]


def test_what_runs_is_spmd():
    assert xr.is_spmd()
