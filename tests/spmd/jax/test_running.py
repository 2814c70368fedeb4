import gc

from spmd._jax import running
from tests.profiling import captured


def test_programs_of_runners_that_are_alive():
    step = captured.compiled_step("jax")
    captured.loop(step, 1)
    program = step._current.runner.program
    assert program in running.programs()
    names = [p.name for p in running.programs()]
    assert names == sorted(names)
    fingerprint = program.fingerprint
    del step, program
    gc.collect()
    assert fingerprint not in {p.fingerprint for p in running.programs()}
