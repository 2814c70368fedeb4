from types import SimpleNamespace

import jax
import jax.numpy as jnp
import torch

import spmd
from profiling._metrics import devices
from profiling._metrics.devices import (
    DeviceMemory,
    Devices,
    host_memory,
    listen,
)


def device(**stats) -> SimpleNamespace:
    return SimpleNamespace(memory_stats=lambda: stats or None)


def test_devices_are_those_of_the_values():
    spmd.init()
    assert Devices.of([1.0, torch.ones(()).to("xla")]) == Devices("torch_xla", 8)
    found = Devices.of([jnp.ones(())])
    assert (found.runtime, found.num, len(found.local)) == ("jax", 1, 1)


def test_floats_tell_nothing_so_spmd_is_asked(run_script):
    result = run_script(
        """
        import sys
        from profiling._metrics.devices import Devices
        assert Devices.of([1.0]) == Devices("", 1)
        assert Devices.of([1.0]).num_compiles() is None
        assert "torch" not in sys.modules and "jax" not in sys.modules
        import spmd
        spmd.init(cpu_devices=4)
        assert Devices.of([1.0]) == Devices("torch_xla", 4), Devices.of([1.0])
        """
    )
    assert result.rc == 0, result.stderr
    result = run_script(
        """
        import spmd
        spmd.init(cpu_devices=4, runtime="jax")
        from profiling._metrics.devices import Devices
        found = Devices.of([1.0])
        assert (found.runtime, found.num, len(found.local)) == ("jax", 4, 4), found
        """
    )
    assert result.rc == 0, result.stderr


def test_memory_is_that_of_the_fullest_device():
    fuller = device(peak_bytes_in_use=7, bytes_in_use=3, bytes_limit=90)
    local = (device(peak_bytes_in_use=5, bytes_limit=100), fuller, device())
    assert Devices("jax", local=local).memory() == DeviceMemory(7, 90)
    in_use = Devices("jax", local=(device(bytes_in_use=3),))
    assert in_use.memory() == DeviceMemory(3, None)


def test_cpu_devices_say_nothing_of_memory():
    assert Devices.of([jnp.ones(())]).memory() is None
    assert Devices("torch_xla", 8).memory() is None
    assert Devices("jax", local=(device(num_allocs=1),)).memory() is None


def test_programs_that_jit_compiles_are_counted_once():
    listen()
    listen()
    devices = Devices.of([jnp.ones(())])
    made = jax.jit(lambda x: x * 5 - 2)
    x = jnp.ones(9)
    before = devices.num_compiles()
    assert before is not None
    for _ in range(2):
        made(x)
    assert devices.num_compiles() == before + 1


def test_programs_that_torch_xla_compiles_are_counted():
    spmd.init()
    devices = Devices("torch_xla", 8)
    before = devices.num_compiles()
    assert before is not None
    (torch.ones(11).to("xla") * 3 - 1).cpu()
    assert devices.num_compiles() == before + 1


def test_resident_memory(monkeypatch):
    found = host_memory()
    assert found is not None and 2**20 < found < 2**40
    monkeypatch.setattr(devices, "_STATM", "/nowhere")
    assert host_memory() is None
