"""`ShardedLoader`: values, epochs, threads, warnings, and training beside it."""

import gc
import threading
import time
import traceback
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

from spmd import Mesh, ShardedLoader, get_sharding
from spmd._batches import ahead
from spmd._batches import hosts as hosts_module
from spmd._batches.agree import fingerprint
from spmd._batches.batch import plan_batch
from spmd._marking.mark import Annotation

MESH = Mesh({"fsdp": 8})


def batches(*sizes):
    return [{"x": torch.arange(n * 2).reshape(n, 2) + n} for n in sizes]


def our_threads():
    return [t for t in threading.enumerate() if t.name == "spmd.ShardedLoader"]


def all_end(within_s=5.0):
    limit = time.perf_counter() + within_s
    while our_threads() and time.perf_counter() < limit:
        time.sleep(0.005)
    return not our_threads()


@pytest.mark.parametrize("prefetch", [0, 1, 2, 5])
def test_two_epochs_of_a_data_loader(prefetch):
    data = torch.arange(80).reshape(40, 2)
    loader = ShardedLoader(
        DataLoader(TensorDataset(data, data[:, 0]), batch_size=8),
        MESH,
        prefetch=prefetch,
    )
    assert len(loader) == 5
    for _ in range(2):
        seen = list(loader)
        assert torch.equal(torch.cat([x.cpu() for x, _ in seen]), data)
        assert torch.equal(torch.cat([y.cpu() for _, y in seen]), data[:, 0])
        assert get_sharding(seen[0][1]) == Annotation(MESH, ("fsdp",))
    assert all_end()


WORKERS = """
import spmd
spmd.init(cpu_devices=8)
import torch
from torch.utils.data import DataLoader, TensorDataset

data = torch.arange(32)
loader = DataLoader(TensorDataset(data), batch_size=8, num_workers=2)
for _ in range(2):
    seen = [x.cpu() for (x,) in spmd.ShardedLoader(loader, spmd.Mesh({"fsdp": 8}))]
    assert torch.equal(torch.cat(seen), data)
print("equal")
"""


def test_worker_processes(run_script):
    """In a process of its own: forking one where jax runs too may hang."""
    result = run_script(WORKERS)
    assert result.rc == 0, result.stderr
    assert result.stdout == "equal\n"


def test_shuffling_does_not_depend_on_the_thread():
    def order(prefetch):
        torch.manual_seed(3)
        loader = DataLoader(TensorDataset(torch.arange(32)), batch_size=8, shuffle=True)
        seen = []
        for _ in range(2):
            for (x,) in ShardedLoader(loader, MESH, prefetch=prefetch):
                torch.rand(1)  # the caller's own use of the generator
                seen.append(x.cpu())
        return torch.cat(seen)

    assert torch.equal(order(0), order(3))


def test_loaders_without_a_length():
    loader = ShardedLoader((b for b in batches(8, 8)), MESH)
    with pytest.raises(TypeError, match="has no len"):
        len(loader)
    assert len(list(loader)) == 2


def test_a_generator_ends_after_one_epoch():
    loader = ShardedLoader((b for b in batches(8, 8)), MESH)
    assert len(list(loader)) == 2
    with pytest.raises(ValueError, match="is a generator, which can be iterated once"):
        list(loader)


def test_a_loader_without_batches_warns():
    with pytest.warns(UserWarning, match="the loader gave no batch"):
        assert list(ShardedLoader([], MESH)) == []


@pytest.mark.parametrize(
    ("loader", "prefetch", "error", "text"),
    [
        (5, 2, TypeError, "loader is a int, over which one cannot loop"),
        ([], 1.5, TypeError, "prefetch=1.5; an int is needed"),
        ([], True, TypeError, "prefetch=True; an int is needed"),
        ([], -1, ValueError, "prefetch=-1; 0 \\(no thread\\) or more"),
    ],
)
def test_arguments_are_checked(loader, prefetch, error, text):
    with pytest.raises(error, match=text):
        ShardedLoader(loader, MESH, prefetch=prefetch)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_errors_of_the_loader_surface_at_next(prefetch):
    class Broken(Dataset):
        def __len__(self):
            return 16

        def __getitem__(self, index):
            if index == 12:
                raise KeyError("sample 12 is bad")
            return torch.tensor(index)

    loop = iter(
        ShardedLoader(DataLoader(Broken(), batch_size=8), MESH, prefetch=prefetch)
    )
    assert next(loop).cpu().tolist() == list(range(8))
    with pytest.raises(KeyError, match="sample 12 is bad") as caught:
        next(loop)
    frames = [f.name for f in traceback.extract_tb(caught.value.__traceback__)]
    assert "__getitem__" in frames
    with pytest.raises(StopIteration):
        next(loop)
    assert all_end()


@pytest.mark.parametrize("sizes", [(12,), (8, 12)])
def test_a_batch_that_does_not_divide_is_advised(sizes):
    with pytest.raises(ValueError, match=r"12 rows.*drop_last=True.*pad=True"):
        list(ShardedLoader(batches(*sizes), MESH))


def test_a_small_last_batch_is_filled_up_to_the_first():
    loader = ShardedLoader(batches(16, 16, 3), MESH, pad=True, pad_values={"x": -1})
    added = []
    for batch in loader:
        assert batch["x"].shape == (16, 2)
        added.append(loader.rows_added)
    assert added == [0, 0, 13]
    assert batch["x"].cpu()[2:5].tolist() == [[7, 8], [-1, -1], [-1, -1]]


def test_padding_that_divides_anyway():
    loader = ShardedLoader(batches(5, 5, 3), MESH, pad=True)
    assert [len(b["x"]) for b in loader] == [8, 8, 8]


def test_a_new_shape_is_warned_of_once():
    loader = ShardedLoader(batches(16, 8, 16, 24), MESH)
    text = r"batch\['x'\] was \[16, 2\] torch.int64 in the first batch and is \[8, 2\]"
    with pytest.warns(UserWarning, match=text) as caught:
        assert len(list(loader)) == 4
        assert len(list(loader)) == 4
    assert len(caught) == 1
    assert caught[0].filename == __file__


def test_an_absent_tensor_is_a_new_shape():
    loader = ShardedLoader(
        [{"x": torch.ones(8), "y": torch.ones(8)}, {"x": torch.ones(8)}], MESH
    )
    with pytest.warns(UserWarning, match=r"batch\['y'\] was \[8\].* and is absent now"):
        list(loader)


def test_what_is_left_whole_is_warned_of_once():
    data = [{"x": torch.ones(8), "pos": torch.ones(1, 4)}] * 3
    loader = ShardedLoader(data, MESH)
    with pytest.warns(UserWarning, match=r"batch\['pos'\] \[1, 4\]") as caught:
        list(loader)
        list(loader)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    assert len(list(ShardedLoader(data, MESH, {"pos": None}))) == 3


def test_waiting_is_measured():
    def slow():
        for batch in batches(8, 8, 8):
            time.sleep(0.1)
            yield batch

    loader = ShardedLoader(slow(), MESH)
    waits = []
    for _ in loader:
        waits.append(loader.wait_s)
        time.sleep(0.25)
    assert waits[0] >= 0.1
    assert max(waits[1:]) < 0.1


@pytest.mark.parametrize("taken", [1, 2])
def test_leaving_the_loop_ends_the_thread(taken):
    for i, _ in enumerate(ShardedLoader(batches(*[8] * 100), MESH), start=1):
        if i == taken:
            break
    assert all_end()


def test_an_error_in_the_loop_ends_the_thread():
    with pytest.raises(ZeroDivisionError):
        for _ in ShardedLoader(batches(*[8] * 100), MESH):
            _ = 1 / 0
    assert all_end()


def test_a_loop_without_a_reader_ends_with_its_last_reference():
    loop = iter(ShardedLoader(batches(*[8] * 100), MESH))
    next(loop)
    assert our_threads()
    del loop
    assert all_end()


def test_a_loop_in_a_reference_cycle_ends_with_the_collector():
    class Trainer:
        pass

    trainer = Trainer()
    trainer.me = trainer
    trainer.loop = iter(ShardedLoader(batches(*[8] * 100), MESH))
    next(trainer.loop)
    del trainer
    gc.collect()
    assert all_end()


def test_a_loop_that_never_began_has_no_thread():
    iter(ShardedLoader(batches(8), MESH))
    assert not our_threads()


def test_two_loops_over_one_loader():
    loader = ShardedLoader(batches(8, 8, 8), MESH)
    pairs = [(a["x"].cpu(), b["x"].cpu()) for a, b in zip(loader, loader, strict=True)]
    assert len(pairs) == 3
    assert all(torch.equal(a, b) for a, b in pairs)


def test_a_new_epoch_waits_for_the_thread_of_the_one_before(monkeypatch):
    monkeypatch.setattr(ahead, "PATIENCE_S", 0.01)
    using = []

    class Slow:
        """Fails if two threads are in it at once."""

        def __iter__(self):
            for batch in batches(8, 8, 8):
                assert not using
                using.append(1)
                time.sleep(0.2)
                using.pop()
                yield batch

    loader = ShardedLoader(Slow(), MESH)
    for _ in loader:
        break
    assert our_threads()
    assert len(list(loader)) == 3


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_batch_is_let_go_with_the_callers_reference(prefetch):
    loop = iter(ShardedLoader(batches(8, 8, 8), MESH, prefetch=prefetch))
    for _ in range(2):
        batch = next(loop)
        alive = weakref.ref(batch["x"])
        del batch
        assert alive() is None


@pytest.mark.parametrize("where", ["break", "next", "slow"])
def test_interpreter_exit_with_a_running_thread(where, run_script):
    result = run_script(
        f"""
        import time, torch, spmd
        spmd.init(cpu_devices=8)
        def source():
            while True:
                yield torch.ones(1024, 1024)
                if {where == "slow"}:
                    time.sleep(100)
        from spmd._batches import ahead
        ahead.EXIT_PATIENCE_S = 1.0
        loop = iter(spmd.ShardedLoader(source(), spmd.Mesh({{"fsdp": 8}})))
        next(loop)
        if {where == "break"}:
            for _ in loop:
                break
        print("end")
        """,
        timeout_s=60,
    )
    assert (result.rc, result.stdout) == (0, "end\n"), result.stderr


def train(loader, steps):
    """Losses of a small regression on the batches of a loader."""
    import torch_xla

    torch.manual_seed(0)
    weight = torch.randn(4, 1).to("xla").requires_grad_()
    optimizer = torch.optim.SGD([weight], lr=0.01, momentum=0.9)
    losses = []
    while len(losses) < steps:
        for x, y in loader:
            loss = (torch.tanh(x @ weight)[:, 0] - y).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            torch_xla.sync()
            losses.append(loss.detach())
    return torch.stack(losses[:steps]).cpu()


def test_training_beside_the_thread_gives_the_same_losses():
    x = torch.randn(256, 4)
    data = TensorDataset(x, x.sum(dim=1))
    loader = DataLoader(data, batch_size=16)
    alone = train(ShardedLoader(loader, MESH, prefetch=0), 64)
    beside = train(ShardedLoader(loader, MESH, prefetch=4), 64)
    assert torch.equal(alone, beside)
    assert alone[-1] < alone[0]


def test_hosts_are_compared_once(monkeypatch):
    calls = []
    hosts = ((0, 1, 2, 3), (4, 5, 6, 7))
    mesh = Mesh({"tensor": 2, "fsdp": 4})
    monkeypatch.setattr(hosts_module, "current_hosts", lambda: hosts)

    def exchange(mine):
        calls.append(threading.current_thread())
        return [list(mine)] * 8

    monkeypatch.setattr(hosts_module, "exchange", exchange)
    monkeypatch.setattr("spmd._batches.loader.send", lambda plan: plan.batch)
    loader = ShardedLoader(batches(8, 8), mesh)
    list(loader)
    list(loader)
    assert calls == [threading.main_thread()]
    list(ShardedLoader(batches(8), mesh, check_hosts=False))
    assert len(calls) == 1


def test_hosts_that_disagree_stop_the_loop(monkeypatch):
    hosts = ((0, 1, 2, 3), (4, 5, 6, 7))
    mesh = Mesh({"tensor": 2, "fsdp": 4})
    monkeypatch.setattr(hosts_module, "current_hosts", lambda: hosts)
    other = fingerprint(plan_batch({"x": torch.zeros(8, 2, dtype=torch.int64)}, mesh))
    monkeypatch.setattr(hosts_module, "exchange", lambda mine: [mine] * 4 + [other] * 4)
    with pytest.raises(ValueError, match=r"processes 0 and 1 .* rows of batch\['x'\]"):
        next(iter(ShardedLoader(batches(8), mesh)))
