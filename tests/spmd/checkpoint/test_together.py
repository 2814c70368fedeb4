"""Several processes write one folder: faked here, and two real ones on jax."""

import os

import pytest
import torch

from spmd.checkpoint import CheckpointError, _together
from spmd.checkpoint._folder import folder_at
from spmd.checkpoint._safetensors import SafetensorsSource, plan_files
from spmd.checkpoint._team import Team
from spmd.checkpoint._together import write_share, write_together
from tests.two_processes import TWO_PROCESSES

WEIGHTS = {name: torch.full((4,), i) for i, name in enumerate("abcde")}
FILES, _ = plan_files({name: ("int64", (4,)) for name in WEIGHTS}, max_bytes=70)


def share(folder, index, count):
    asked = []

    def tensor(name):
        asked.append(name)
        return WEIGHTS[name]

    problem = write_share(
        folder, FILES, tensor, Team(index, count), advance=lambda _: None
    )
    return problem, asked


def test_every_process_asks_for_all_and_writes_its_own(tmp_path):
    folder = folder_at(tmp_path)
    assert len(FILES) == 3
    for index, written in enumerate([["a", "b", "e"], ["c", "d"]]):
        before = set(os.listdir(tmp_path))
        assert share(folder, index, 2) == (None, list(WEIGHTS))
        new = set(os.listdir(tmp_path)) - before
        assert new == {f.name for f in FILES if set(f.tensors) <= set(written)}
    source = SafetensorsSource(folder)
    assert all(torch.equal(source.whole(k), v) for k, v in WEIGHTS.items())


def test_one_that_cannot_write_goes_on_for_the_others(tmp_path, monkeypatch):
    def fails(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("spmd.checkpoint._folder.os.fsync", fails)
    problem, asked = share(folder_at(tmp_path), 1, 2)
    assert problem is not None and problem.errno == 28
    assert asked == list(WEIGHTS)


@pytest.mark.parametrize("index", [0, 1])
def test_a_failure_is_told_to_all(index, tmp_path, monkeypatch):
    told = []
    good = iter([True, False])  # began, did not write

    def agree(team, mine):
        told.append(mine)
        return mine and next(good, False)

    monkeypatch.setattr(_together, "all_agree", agree)
    monkeypatch.setattr(_together, "shared_token", lambda team: "1")
    target, team = folder_at(tmp_path / "a"), Team(index, 2)
    with pytest.raises(CheckpointError, match="another process could not write"):
        write_together(target, team, lambda folder: None, lambda folder: None)
    assert told == [True, True]
    good = iter([True])
    with pytest.raises(CheckpointError, match=rf"by process {index} \(No space"):
        write_together(
            target,
            team,
            lambda folder: OSError(28, "No space left"),
            lambda folder: None,
        )
    assert told == [True, True, True, False]
    assert not (tmp_path / "a").exists()


def test_the_end_is_told_too(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(_together, "shared_token", lambda team: "1")
    monkeypatch.setattr(
        _together, "all_agree", lambda t, mine: told.append(mine) or mine
    )
    target = folder_at(tmp_path / "a")

    def fails(folder):
        raise OSError(28, "No space left")

    with pytest.raises(CheckpointError, match=r"could not be written \(No space"):
        write_together(target, Team(0, 2), lambda folder: None, fails)
    assert told == [True, True, False]
    answers = iter([True, True, False])
    monkeypatch.setattr(_together, "all_agree", lambda team, mine: next(answers))
    with pytest.raises(CheckpointError, match="process 0 could not put it in place"):
        write_together(target, Team(1, 2), lambda folder: None, fails)


TWO = (
    TWO_PROCESSES
    + """
import torch, transformers
from fsdpv2 import FSDPv2
from spmd.checkpoint import _together, export_hf
torch.manual_seed(0)
config = transformers.Qwen3MoeConfig(
    hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2,
    num_key_value_heads=2, vocab_size=33, moe_intermediate_size=8, num_experts=4,
    head_dim=8, bos_token_id=0, eos_token_id=1,
)
mesh = spmd.Mesh({"fsdp": -1})
model = transformers.AutoModelForCausalLM.from_config(config)
model = FSDPv2(model, mesh, min_shard_elements=1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

def fn(batch):
    weights = [p for n, p in model.named_parameters() if "norm" not in n]
    loss = sum(p.square().mean() for p in weights) + batch.mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

step = spmd.compile_step(fn, model=model, optimizer=optimizer)
step(spmd.shard_batch(torch.ones(4, 16), mesh)).item()
export_hf(folder + "/ours", model, max_file_bytes=3000)
assert next(model.parameters()).device.type == "meta"
weights = {k: v.cpu().clone() for k, v in model.state_dict().items()}
if index == 0:
    torch.save(weights, folder + "/weights.pt")

real = _together.write_files
def full(*args, **options):
    raise OSError(28, "No space left on device")
_together.write_files = full if index == 1 else real
step(spmd.shard_batch(torch.ones(4, 16), mesh)).item()
try:
    export_hf(folder + "/full", model, max_file_bytes=3000)
except spmd.checkpoint.CheckpointError as error:
    print(index, error)
"""
)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*does not divide over")
def test_two_processes_export_together(run_script, tmp_path):
    transformers = pytest.importorskip("transformers")
    done = run_script(TWO, str(tmp_path), timeout_s=300)
    assert done.rc == 0, done.stderr
    weights = torch.load(tmp_path / "weights.pt")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    found = again.state_dict()
    assert found.keys() == weights.keys()
    assert all(torch.equal(found[k], v) for k, v in weights.items())
    names = os.listdir(tmp_path / "ours")
    assert len([n for n in names if n.endswith(".safetensors")]) > 2
    assert {"config.json", "model.safetensors.index.json"} <= set(names)
    said = sorted(n for n in done.stdout.splitlines() if n[:1] in {"0", "1"})
    assert len(said) == 2
    assert "another process could not write its files" in said[0]
    assert "by process 1 (No space left on device)" in said[1]
    assert not [n for n in os.listdir(tmp_path) if n.startswith("full")]
