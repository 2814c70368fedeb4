"""The command: what it prints, and its exit status."""

import json
import os

import pytest
import torch
from click.testing import CliRunner
from torch import nn

from spmd import checkpoint
from spmd.checkpoint import Manager
from spmd.checkpoint._cli import checkpoint as command


@pytest.fixture
def folder(tmp_path):
    torch.manual_seed(0)
    manager = Manager(tmp_path / "run")
    for step in (1, 2):
        manager.save(step, nn.Linear(4, 3))
    return tmp_path / "run"


def run(*args):
    return CliRunner().invoke(command, [str(a) for a in args])


def test_ls(folder):
    done = run("ls", folder)
    assert done.exit_code == 0, done.output
    assert "step-00000001" in done.output and "step-00000002" in done.output
    rows = json.loads(run("ls", folder, "--json").output)
    assert [row["step"] for row in rows] == [1, 2]
    assert all(row["complete"] and row["bytes"] > 1000 for row in rows)
    done = run("ls", folder / "step-00000002")
    assert done.exit_code == 0
    assert "model.weight" in done.output and "[3, 4]" in done.output
    assert "step 2, 2 tensors, 15 elements" in done.output
    body = json.loads(run("ls", folder / "step-00000002", "--json").output)["body"]
    assert body["tensors"]["model.bias"]["dtype"] == "float32"


def test_ls_tells_of_incomplete_ones(folder, tmp_path):
    os.remove(folder / "step-00000001" / "manifest.json")
    (folder / "step-00000003.writing-01").mkdir()
    (folder / "notes").mkdir()
    (folder / "step-00000002" / "manifest.json").write_text("{")
    done = run("ls", folder)
    assert done.exit_code == 1
    assert done.output.count("incomplete") == 3
    assert "notes" not in done.output
    done = run("ls", tmp_path / "nothing")
    assert done.exit_code == 1 and "holds no checkpoint" in done.output
    done = run("ls", folder / "step-00000002")
    assert done.exit_code == 1 and "is damaged" in done.output


def test_verify(folder):
    done = run("verify", folder)
    assert done.exit_code == 0
    assert done.output.count(": good") == 2
    (data,) = (folder / "step-00000002").glob("*.distcp")
    os.truncate(data, 50)
    done = run("verify", folder)
    assert done.exit_code == 1
    assert "step-00000002: damaged" in done.output and "has 50 bytes" in done.output
    found = json.loads(run("verify", folder, "--json").output)
    assert [bool(lines) for lines in found.values()] == [False, True]
    assert run("verify", folder / "step-00000001").exit_code == 0


def test_convert(folder, tmp_path):
    source = folder / "step-00000002"
    done = run("convert", source, tmp_path / "a.pt")
    assert done.exit_code == 0 and "written (torch)" in done.output
    held = torch.load(tmp_path / "a.pt")
    assert held["step"] == 2 and held["model"]["weight"].shape == (3, 4)
    assert run("convert", source, tmp_path / "hf").exit_code == 0
    done = run("convert", tmp_path / "hf", tmp_path / "back", "--to", "checkpoint")
    assert done.exit_code == 0
    model = nn.Linear(4, 3)
    checkpoint.load(tmp_path / "back", model)
    assert torch.equal(model.weight, held["model"]["weight"])


def test_bad_use(folder, tmp_path):
    assert run("ls", "nowhere://x").exit_code == 2
    assert run("convert", folder / "step-00000002", folder).exit_code == 2
    done = run("convert", tmp_path / "nothing", tmp_path / "b")
    assert done.exit_code == 1 and "no complete checkpoint" in done.output
    assert run("convert", "a", "b", "--to", "zip").exit_code == 2


def test_listing_and_verifying_load_no_torch(folder, run_script):
    done = run_script(
        f"""
        import sys
        from click.testing import CliRunner
        from spmd.checkpoint._cli import checkpoint
        for what in ("ls", "verify"):
            done = CliRunner().invoke(checkpoint, [what, {str(folder)!r}])
            assert done.exit_code == 0
        print([name for name in ("torch", "jax", "numpy") if name in sys.modules])
        """
    )
    assert done.stdout == "[]\n", done.stderr
