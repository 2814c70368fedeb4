import jax
import jax.numpy as jnp
import pytest

from spmd._pjrt import profile


@pytest.fixture(autouse=True)
def eight_devices():
    if jax.device_count() != 8:
        pytest.fail("tests need jax_num_cpu_devices=8 before jax's backend starts")


def test_a_session_records_what_ran_inside():
    double = jax.jit(lambda x: x @ x)
    double(jnp.ones((8, 8)))
    session = profile.Session()
    assert profile.is_recording()
    kept = double(jnp.ones((8, 8)))
    profile.wait()
    assert kept.is_ready()
    space = session.stop()
    assert not profile.is_recording()
    assert b"hlo_op" in space
    assert b"$" + b"test_pjrt_profile" not in space  # Python calls are not recorded


def test_waiting_includes_work_whose_results_are_dropped():
    done = []

    @jax.jit
    def slow(x):
        y = jnp.linalg.matrix_power(x, 50).sum()
        jax.debug.callback(lambda _: done.append(1), y)
        return y

    x = jnp.ones((300, 300)) / 300
    slow(x).block_until_ready()
    jax.effects_barrier()
    done.clear()
    for _ in range(5):
        slow(x)
    profile.wait()
    assert len(done) == 5


def test_waiting_passes_over_what_was_given_away():
    donate = jax.jit(lambda x: x + 1, donate_argnums=0)
    given = jnp.ones(8)
    donate(given)
    profile.wait()


def test_this_process_is_the_only_one():
    profile.start_runtime()
    assert profile.is_up() and profile.team() == (0, 1)
