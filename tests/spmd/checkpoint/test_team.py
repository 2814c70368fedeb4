"""Several processes: faked here, and two real ones on jax."""

import pytest

from spmd._batches import hosts
from spmd.checkpoint import _team
from spmd.checkpoint._team import Team, all_agree, of_process_zero, shared_token
from tests.two_processes import TWO_PROCESSES


def test_one_process():
    assert _team.current_team() == Team(0, 1)
    assert shared_token(Team()) != shared_token(Team())
    assert of_process_zero(Team(), 5) == 5
    assert all_agree(Team(), True) and not all_agree(Team(), False)


def test_several(monkeypatch):
    """Process 0 has the devices 2 and 3."""
    monkeypatch.setattr(hosts, "current_hosts", lambda: ((2, 3), (0, 1)))
    monkeypatch.setattr(hosts, "exchange", lambda n: [[7], [7], [5], [5]])
    assert of_process_zero(Team(1, 2), 9) == 5
    assert shared_token(Team(1, 2)) == f"{5:016x}"
    monkeypatch.setattr(hosts, "exchange", lambda n: [[1], [1], [0], [0]])
    assert not all_agree(Team(1, 2), True)


def test_a_process_without_a_runtime_does_not_start_one(run_script):
    done = run_script(
        """
        import sys
        from spmd.checkpoint._team import current_team
        assert current_team().count == 1
        assert not {"torch_xla", "jax"} & set(sys.modules)
        """
    )
    assert done.rc == 0, done.stderr


TWO = (
    TWO_PROCESSES
    + """
import torch
from torch import nn
from fsdpv2 import FSDPv2
from spmd import checkpoint
mesh = spmd.Mesh({"fsdp": -1})
data = torch.randn(6, 16, 16, generator=torch.Generator().manual_seed(1))

def start(seed):
    torch.manual_seed(seed)
    model = FSDPv2(nn.Linear(16, 16), mesh, min_shard_elements=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    def fn(batch):
        loss = (model(batch) - batch.sin()).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss
    return model, optimizer, spmd.compile_step(fn, model=model, optimizer=optimizer)

def go(step, numbers):
    mine = slice(8 * index, 8 * index + 8)
    return [step(spmd.shard_batch(data[i][mine], mesh)).item() for i in numbers]

model, optimizer, step = start(0)
manager = checkpoint.Manager(folder, keep=1, asynchronous=True)
go(step, [0, 1])
manager.save(2, model, optimizer)
go(step, [2])
manager.save(3, model, optimizer)
manager.wait()
assert next(model.parameters()).device.type == "meta"
wanted = go(step, [3, 4, 5])
model, optimizer, step = start(1)
assert manager.restore(model, optimizer).step == 3
assert go(step, [3, 4, 5]) == wanted, (go(step, [3]), wanted)
if index == 0:
    print(*wanted)
"""
)


@pytest.mark.slow
def test_two_processes_save_and_restore_together(run_script, tmp_path):
    import torch
    from torch import nn

    from spmd import checkpoint
    from spmd.checkpoint._folder import folder_at
    from spmd.checkpoint._manifest import read_manifest

    done = run_script(TWO, str(tmp_path / "run"), timeout_s=300)
    assert done.rc == 0, done.stderr
    path = tmp_path / "run" / "step-00000003"
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    found = read_manifest(folder_at(path))
    assert found.num_processes == 2 and len(found.files) == 2
    assert len({p.file for p in found.tensors["model.weight"].pieces}) == 2
    assert checkpoint.verify(path) == []
    model = nn.Linear(16, 16)
    optimizer = torch.optim.AdamW(model.parameters())
    assert checkpoint.load(path, model, optimizer).step == 3
    assert optimizer.state[model.weight]["step"].item() == 3
