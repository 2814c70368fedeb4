"""Each example runs for a few steps, from another folder, and leaves what it says."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
PNG = b"\x89PNG\r\n\x1a\n"
# Like the command of the docstring, but compiling with less optimisation. PJRT_DEVICE
# and the like are left out: an example has to choose its devices itself.
ENVIRONMENT = {
    **{k: v for k, v in os.environ.items() if k not in ("PJRT_DEVICE", "XLA_FLAGS")},
    "CPU_NUM_DEVICES": "1",
    "PYTHONPATH": str(ROOT),
    "PYTHONWARNINGS": "error",
    "XLA_FLAGS": "--xla_backend_optimization_level=0 "
    "--xla_llvm_disable_expensive_passes=true",
}

Trained = tuple[subprocess.CompletedProcess[str], Path]


def run(
    name: str, *args: str, folder: Path, columns: int = 80
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *args],
        cwd=folder,
        env={**ENVIRONMENT, "COLUMNS": str(columns)},
        capture_output=True,
        text=True,
        timeout=240,
    )


def test_mark_sharding(tmp_path: Path) -> None:
    result = run("01_mark_sharding.py", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    pieces = re.findall(r"device (\d) holds (\[.*\]), (\S+)", result.stdout)
    assert len(pieces) == 16  # up.weight and its gradient, on 8 devices each
    for device, shape, rows in pieces:
        assert shape == "[128, 64]"
        assert rows == ("[128:256," if int(device) % 2 else "[0:128,")
    loss = re.search(r"sharded ([\d.]+)  unsharded ([\d.]+)", result.stdout)
    assert loss
    assert float(loss[1]) == pytest.approx(float(loss[2]), rel=1e-5)
    assert not list(tmp_path.iterdir())


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("fsdp")
    options = "--steps 12 --layers 1 --sample 12".split()
    result = run("02_fsdp.py", *options, folder=folder)
    assert result.returncode == 0, result.stderr
    return result, folder


def test_fsdp_prints_steps_sample_and_table(trained: Trained) -> None:
    result, _ = trained
    assert result.stderr == ""
    line = (
        r"^step: +(\d+)  loss: +\d+\.\d{4}  grad_norm: +\d+\.\d{4}  tps: [\d,]+  "
        r"data: \d+%  host: \d+%$"
    )
    assert re.findall(line, result.stdout, re.MULTILINE) == ["1", "10", "12"]
    assert len(re.findall(r"^validate step: 12 ", result.stdout, re.MULTILINE)) == 1
    assert 'Prompt:\nThe "assert" statement\n' in result.stdout
    sample = result.stdout.split("Sample:\n")[1].split("\n\n")[0]
    assert len(sample) == 12
    assert re.search(r"^1\.q\.weight ", result.stdout, re.MULTILINE)
    assert max(len(line) for line in result.stdout.splitlines()) <= 80


def test_fsdp_shards_parameters_and_optimizer(trained: Trained) -> None:
    """Norms stay whole, so a little more than an eighth."""
    result, _ = trained
    held = re.findall(r"^Each device holds .*\((.*)%\)$", result.stdout, re.MULTILINE)
    assert len(held) == 2
    assert all(12.5 <= float(percent) < 13.5 for percent in held)


def test_fsdp_learns_and_compiles_its_step_once(trained: Trained) -> None:
    result, folder = trained
    out = folder / "runs" / "02_fsdp"
    assert (out / "loss.png").read_bytes().startswith(PNG)
    text = (out / "steps.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert rows[-1]["loss"] < rows[0]["loss"] - 1.0
    assert [row["num_steps"] for row in rows] == [1, *[9] * 9, 2, 2]
    # Each window adds nothing to what the first step and the validation compiled.
    assert len({row["num_compiles"] for row in rows[:10]}) == 1
    validated = re.search(r"^validate step: 12  loss: (\S+)$", result.stdout, re.M)
    assert validated and float(validated[1]) < rows[0]["loss"] - 1.0
    assert [p.name for p in folder.iterdir()] == ["runs"]


def test_fsdp_inspects_the_step_it_trained(trained: Trained) -> None:
    result, folder = trained
    text = result.stdout.split("The same step on h100:1x8:\n")[1]
    assert "8 GPUs (NVIDIA H100 SXM5 80 GB), 1 host" in text
    assert re.search(r"fsdp weight gather +nvlink", text)
    assert "role unknown: 0% of the bytes on the wire" in text
    report = folder / "runs" / "02_fsdp" / "inspect.html"
    assert "Report: runs/02_fsdp/inspect.html" in text
    assert report.read_text().startswith("<!doctype html>")


def test_fsdp_refuses_a_text_that_is_too_short(tmp_path: Path) -> None:
    text = tmp_path / "short.txt"
    text.write_text("too short")
    result = run("02_fsdp.py", "--data", str(text), folder=tmp_path)
    assert result.returncode == 2
    assert "9 bytes; 2560 or more are needed" in result.stderr


def test_examples_are_numbered_and_each_is_run_by_a_test() -> None:
    names = sorted(path.name for path in EXAMPLES.glob("*.py"))
    numbers = [name.partition("_")[0] for name in names]
    assert numbers == [f"{number:02}" for number in range(1, len(numbers) + 1)]
    tests = [path.read_text() for path in Path(__file__).parent.glob("test_*.py")]
    assert not [name for name in names if not any(f'"{name}"' in t for t in tests)]


@pytest.mark.parametrize("processes", [1, 2])
def test_run_on_jax_gives_the_same_losses_everywhere(
    processes: int, tmp_path: Path
) -> None:
    result = run("04_run_on_jax.py", "--processes", str(processes), folder=tmp_path)
    assert result.returncode == 0, result.stderr
    found = re.findall(r"step: (\d)  loss: ([\d.]+)", result.stdout)
    assert len(found) == 10  # five steps on both runtimes, or in both processes
    for number in "12345":
        losses = [float(loss) for step, loss in found if step == number]
        assert len(losses) == 2
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_inspect_a_pod_writes_a_report(tmp_path: Path) -> None:
    result = run("03_inspect_a_pod.py", "--layers", "1", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "16 GPUs (NVIDIA H100 SXM5 80 GB), 2 hosts" in result.stdout
    assert re.search(r"replica +gradient reduction +ib ", result.stdout)
    assert re.search(r"fsdp +weight gather +nvlink ", result.stdout)
    assert "This is 1 of 32 layers" in result.stdout
    names = sorted(path.suffix for path in (tmp_path / "out").iterdir())
    assert names == [".html", ".spmd"]


def test_resume_on_another_mesh(tmp_path: Path) -> None:
    result = run("09_resume_on_another_mesh.py", folder=tmp_path)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    parts = re.split(r"^\{.*\} from step (\d+)$", result.stdout, flags=re.MULTILINE)
    whole, first, second = (
        {int(n): float(x) for n, x in re.findall(r"step: +(\d+)  loss: ([\d.]+)", part)}
        for part in parts[2::2]
    )
    assert list(whole) == list(range(1, 13)) and list(first) == list(range(1, 9))
    assert int(parts[5]) in (3, 6) and list(second) == list(
        range(int(parts[5]) + 1, 13)
    )
    assert first == {n: whole[n] for n in first}
    for number, loss in second.items():
        assert loss == pytest.approx(whole[number], rel=1e-4)
    folder = tmp_path / "runs" / "09_resume"
    assert (folder / "exported" / "model.safetensors").exists()
    again = run("09_resume_on_another_mesh.py", folder=tmp_path)
    assert again.returncode == 2 and "is there already; delete it" in again.stderr
