"""Eight CPU devices for every test, and a fixture for what may crash a process.

The environment is written while pytest loads this file, which is before any test module
imports torch_xla or jax; a value that the user has set wins.
"""

import os
import re
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("CPU_NUM_DEVICES", "8")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "8")
# The tests ask whether the numbers are right, not how fast they come: less optimisation
# means less time in the compiler, which is most of the time of a test.
for _flag in (
    "--xla_backend_optimization_level=0",
    "--xla_llvm_disable_expensive_passes=true",
):
    _flags = os.environ.get("XLA_FLAGS", "")
    if _flag.partition("=")[0] not in _flags:
        os.environ["XLA_FLAGS"] = f"{_flags} {_flag}".strip()

# An address differs from worker to worker, and xdist wants the same names in all.
_ADDRESS = re.compile(r"at 0x[0-9a-f]+")

# What scripts start from, whatever tests and libraries write to os.environ later on.
ENVIRONMENT = dict(os.environ)


@dataclass(frozen=True, slots=True)
class ScriptResult:
    """How a script ended: an `rc` below zero is the signal that killed it."""

    rc: int
    stdout: str
    stderr: str

    @property
    def returncode(self) -> int:
        """The same as `rc`, under the name that `subprocess` uses."""
        return self.rc


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse names of tests that are other ones in another process."""
    for item in items:
        if _ADDRESS.search(item.nodeid):
            raise pytest.UsageError(f"{item.nodeid}: an address in its name; give ids=")


@pytest.fixture
def run_script(tmp_path: Path) -> Callable[..., ScriptResult]:
    """Run Python source in a fresh process, from a temporary folder.

    `run_script(source, *args, env=None, timeout_s=120)`: `source` is dedented, `args`
    become `sys.argv[1:]`, and `env` adds to the environment that pytest started with
    (a value of None removes the variable). A script that runs too long fails the test.
    """

    def run(
        source: str,
        *args: str,
        env: Mapping[str, str | None] | None = None,
        timeout_s: float = 120.0,
    ) -> ScriptResult:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(source), encoding="utf-8")
        path = os.pathsep.join(
            p for p in (str(ROOT), ENVIRONMENT.get("PYTHONPATH")) if p
        )
        variables = {**ENVIRONMENT, "PYTHONPATH": path, **(env or {})}
        process = subprocess.Popen(
            [sys.executable, str(script), *args],
            cwd=tmp_path,
            env={name: value for name, value in variables.items() if value is not None},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,  # so that a timeout also ends its children
        )
        try:
            stdout, stderr = process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            stdout, stderr = process.communicate()
            pytest.fail(
                f"the script ran for more than {timeout_s:g} s; it printed\n"
                f"{stdout}{stderr}"
            )
        return ScriptResult(process.returncode, stdout, stderr)

    return run
