import jax
import pytest

from spmd._pjrt import processes as pjrt_processes


@pytest.fixture(autouse=True)
def eight_devices():
    if jax.device_count() != 8:
        pytest.fail("tests need jax_num_cpu_devices=8 before jax's backend starts")


def test_devices_of_one_process():
    assert pjrt_processes.num_devices() == 8
    assert pjrt_processes.processes() == (tuple(range(8)),)
    assert pjrt_processes.process_index() == 0
    assert not pjrt_processes.sees_accelerator()


def test_another_number_of_cpu_devices_comes_too_late():
    pjrt_processes.choose_cpu(8)  # what runs already
    with pytest.raises(RuntimeError, match=r"already runs with 8 cpu devices"):
        pjrt_processes.choose_cpu(4)


def test_talking_needs_jax_distributed():
    with pytest.raises(RuntimeError, match=r"jax.distributed.initialize"):
        pjrt_processes.publish("key", "text")
    with pytest.raises(RuntimeError, match=r"jax.distributed.initialize"):
        pjrt_processes.read("key", timeout_s=1)
