import pytest
import torch

import spmd
from spmd._torch_xla import graph
from tests.on_device import on_device, sync
from tests.spmd.training import MESH


def test_handles_say_what_data_is_the_same():
    a, b = on_device(4), on_device(4)
    one, alias, other = graph.handles([a, a.detach(), b])
    assert one == alias != other
    assert graph.handles([]) == ()


def test_needs_execution():
    a = on_device(4)
    sync()
    assert graph.needs_execution([a, a * 2, a]) == [False, True, False]
    assert graph.needs_execution([]) == []


def test_execute_runs_what_it_is_given_and_only_that():
    a = on_device(4)
    wanted, other = a * 2, a * 3
    graph.execute([wanted])
    assert graph.needs_execution([wanted, other]) == [False, True]


def test_traced_inputs_in_the_order_of_parameters():
    a, b = on_device(8, 2), on_device(4)
    found = graph.traced_inputs([(a.sum() + b).sum()])
    assert found.seed is None
    assert set(found.handles) == set(graph.handles([a, b]))
    for value, handle in zip(found.values, found.handles, strict=True):
        assert value.shape == (a if handle == graph.handles([a])[0] else b).shape
    drawn = graph.traced_inputs([torch.rand(3, device="xla")])
    assert drawn.seed is not None and drawn.values[drawn.seed].dtype == torch.int64
    assert graph.traced_inputs([]) == graph.TracedInputs((), (), None)


def test_identities():
    a = on_device(4)
    y = a * 2
    same, again, other = graph.identities([y, y.detach(), a * 2])
    assert same == again != other


def compiled(donate: bool) -> tuple[bytes, torch.Tensor, list[torch.Tensor]]:
    """Key of the graph ``a * 2 + 1``, `a`, and all its inputs in order."""
    a = on_device(64, 64) * 1.0
    sync()
    outputs = [a * 2 + 1]
    values = graph.traced_inputs(outputs).values
    with graph.donating([v for v in values if v.ndim and donate]):
        key = graph.graph_key(outputs)
        graph.compile_graph(outputs)
    del outputs
    graph.forget_traced()
    return key, a, [a if v.ndim else v for v in values]


@pytest.mark.parametrize("donate", [False, True])
def test_a_compiled_graph_runs_again(donate):
    key, a, inputs = compiled(donate)
    wanted = a.cpu() * 2 + 1
    assert torch.equal(graph.run_graph(key, inputs)[0].cpu(), wanted)
    if donate:
        with pytest.raises(RuntimeError, match="Trying to access XLA data"):
            a.cpu()
    else:
        assert torch.equal(graph.run_graph(key, inputs)[0].cpu(), wanted)


def test_donation_makes_another_graph():
    assert compiled(False)[0] == compiled(False)[0] != compiled(True)[0]


def test_a_graph_that_is_not_there():
    with pytest.raises(graph.GraphEvicted, match="Failed to get computation by hash"):
        graph.run_graph(b"0123456789abcdef", [])


def test_forget_traced_drops_records_and_runs_nothing():
    a = on_device(4)
    sync()
    num = graph.num_compiles()
    y = a * 17
    graph.forget_traced()
    assert graph.num_compiles() == num and not graph.needs_execution([y])[0]
    assert a.sum().item() == 6


def test_settle_runs_everything_and_keeps_the_seed():
    graph.set_seed(5)
    y = on_device(4) * 1.5
    graph.settle(wait_for_it=True)
    assert not graph.needs_execution([y])[0] and graph.seed() == 5
    z = on_device(4) * 1.5
    graph.settle()
    assert not graph.needs_execution([z])[0] and graph.seed() == 5
    drawn = torch.rand(4, device="xla")
    graph.settle()
    assert graph.seed() == (1012031 + 5 * 7012063) % 2**64
    assert drawn.sum().item() > 0


def test_settle_looks_only_if_something_was_recorded(monkeypatch):
    graph.settle()
    graph.mark_settled()
    syncs: list[object] = []
    monkeypatch.setattr(graph.torch_xla, "sync", lambda **o: syncs.append(o))
    held = spmd.shard_batch(torch.ones(8, 4), MESH)
    held.detach()
    graph.settle()
    assert not syncs
    y = held * 2
    graph.settle()
    assert len(syncs) == 1
    monkeypatch.undo()
    assert y.sum().item() == 64


def test_settle_hears_of_an_operation_that_is_used_for_the_first_time(monkeypatch):
    held = on_device(4, dtype=torch.float32)
    graph.settle()
    syncs: list[object] = []
    monkeypatch.setattr(graph.torch_xla, "sync", lambda **o: syncs.append(o))
    graph.settle()
    assert not syncs
    before = set(graph.metrics.counter_names())
    y = torch.special.expm1(held)
    if set(graph.metrics.counter_names()) == before:
        pytest.skip("another test has used expm1 in this process")
    graph.settle()
    assert len(syncs) == 1
    monkeypatch.undo()
    assert y[0].item() == 0


def test_settle_leaves_to_the_next_what_was_recorded_meanwhile(monkeypatch):
    held, made = on_device(4), []
    graph.settle()
    y = held * 2
    sync = graph.torch_xla.sync
    monkeypatch.setattr(
        graph.torch_xla, "sync", lambda **o: (sync(**o), made.append(held * 3))
    )
    graph.settle()
    assert graph.needs_execution([y, made[0]]) == [False, True]
    monkeypatch.undo()
    graph.settle()
    assert not graph.needs_execution(made)[0]


def test_seeds_wrap_at_two_to_the_64():
    graph.set_seed(2**64 + 3)
    assert graph.seed() == 3
    seeds = []
    for _ in range(4):
        seeds.append(graph.seed())
        graph.advance_seed()
    lazily = []
    graph.set_seed(3)
    for _ in range(4):
        lazily.append(graph.seed())
        sync()
    assert seeds == lazily and max(seeds) > 2**63
    assert graph.seed_tensor().dtype == torch.int64


def test_fallback_ops_are_counted():
    before = graph.fallback_ops()
    torch.histc(on_device(8, dtype=torch.float32), bins=4)
    assert (graph.fallback_ops() - before)["aten::histc"] == 1


def test_tensor_ids_follow_the_data():
    a, b = torch.nn.Parameter(on_device(4)), on_device(4)
    first, second = graph.tensor_ids([a, b])
    a.data = b
    assert graph.tensor_ids([a]) == [second] != [first]


def test_layouts():
    a, b = on_device(8, 4), on_device(8, 4)
    spmd.mark_sharding(a, MESH, ("fsdp", None))
    assert graph.layouts([a, b]) == [
        "{devices=[8,1]0,1,2,3,4,5,6,7}",
        "{replicated}",
    ]


@pytest.mark.parametrize("value", [0.0, 1.0, 0.25])
def test_a_scalar_has_data_of_its_own(value):
    num = graph.num_compiles()
    a, b = graph.scalar(value), graph.scalar(value)
    assert graph.handles([a]) != graph.handles([b])
    assert not any(graph.needs_execution([a, b])) and graph.num_compiles() == num
    assert len(graph.traced_inputs([on_device(2, 3) * a]).handles) == 2
    assert a.item() == value and a.dtype == torch.float32
    assert graph.scalar(3, torch.int64).dtype == torch.int64


def test_numbers_are_uploaded_anew_after_they_are_forgotten():
    def handle() -> int:
        found = graph.traced_inputs([on_device(2, 2) * 0.375])
        (scalar,) = (
            h for v, h in zip(found.values, found.handles, strict=True) if not v.ndim
        )
        return scalar

    held = torch.tensor(0.375).to("xla")
    assert graph.handles([held])[0] == handle() == handle()
    graph.forget_numbers()
    assert graph.handles([held])[0] != handle()
    assert held.item() == 0.375
