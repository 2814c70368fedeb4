import weakref

import pytest
import torch
from torch import nn

import spmd
from spmd import Mesh
from spmd._capture.state import StepState
from spmd._marking.planning import planning
from spmd._torch_xla import graph as torch_xla_graph
from spmd._torch_xla import trace as torch_xla_trace
from spmd._trace.stand_in import exchange, placeholder_like, stand_ins
from tests.spmd.tracing import MESH, adamw, batch_of, loss_of, net, wrapped

# Parameters on meta


class Odd(nn.Module):
    """Makes parameters and buffers in every way there is."""

    def __init__(self) -> None:
        super().__init__()
        self.ones = nn.Parameter(torch.ones(4))
        self.frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
        self.register_parameter("none", None)
        self.register_parameter("again", self.ones)
        filled = torch.empty(3)
        filled.fill_(7)
        self.register_buffer("filled", filled)
        self.register_buffer("table", torch.arange(5) * 0.5, persistent=False)
        self.linear = nn.Linear(4, 4)
        nn.init.normal_(self.linear.weight)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.linear.weight


def test_parameters_go_to_meta_and_buffers_stay():
    with spmd.meta_parameters():
        model = Odd()
    assert {p.device.type for p in model.parameters()} == {"meta"}
    assert model.filled.tolist() == [7, 7, 7]
    assert model.table.tolist() == [0, 0.5, 1, 1.5, 2]
    assert model.none is None
    assert model.ones.requires_grad and not model.frozen.requires_grad


def test_ties_stay():
    with spmd.meta_parameters():
        model = Odd()
    assert model.again is model.ones
    assert model.tied.weight is model.linear.weight
    assert len(list(model.parameters())) == 4


def test_many_short_lived_parameters_stay_apart():
    # Python gives the address of one that is gone to the next.
    with spmd.meta_parameters():
        model = nn.ModuleList(nn.RMSNorm(8) for _ in range(200))
    assert len({id(p) for p in model.parameters()}) == 200


def test_attributes_are_kept():
    parameter = nn.Parameter(torch.ones(3))
    parameter.no_decay = True
    module = nn.Module()
    with spmd.meta_parameters():
        module.weight = parameter
    assert module.weight.no_decay
    assert module.weight.device.type == "meta"
    assert parameter.tolist() == [1, 1, 1]


def test_nothing_large_is_allocated():
    with spmd.meta_parameters():
        model = nn.Linear(2**20, 2**20)  # 4 TiB
        experts = nn.Parameter(torch.empty(2**10, 2**15, 2**15))
        given = torch.empty(2, device="cpu")
    assert model.weight.shape == (2**20, 2**20)
    assert experts.device.type == "meta"
    assert given.device.type == "cpu"


def test_results_of_empty_go_where_the_user_says():
    out = torch.ones(2)
    with spmd.meta_parameters():
        assert torch.empty(2, out=out) is out
        assert torch.empty((2, 3), dtype=torch.float16).dtype == torch.float16
        assert torch.empty(2**13, 2**13, device="meta").device.type == "meta"


def test_everything_works_as_before_afterwards():
    before = nn.Module.register_parameter, torch.empty
    with pytest.raises(ZeroDivisionError), spmd.meta_parameters():
        raise ZeroDivisionError
    assert (nn.Module.register_parameter, torch.empty) == before
    assert nn.Linear(2, 2).weight.device.type == "cpu"
    with spmd.meta_parameters(), spmd.meta_parameters():
        assert nn.Linear(2, 2).weight.device.type == "meta"
    assert (nn.Module.register_parameter, torch.empty) == before


# Placeholders for state


def state_of(model, optimizer=None, **extra):
    return StepState(model, optimizer, extra)


@pytest.mark.parametrize("where", ["xla", "cpu", "meta"])
def test_every_tensor_becomes_a_placeholder(where):
    model = net(where)
    optimizer = adamw(model)
    state = state_of(model, optimizer, more=torch.ones(3))
    parameters = list(model.parameters())
    compiles = torch_xla_graph.num_compiles()
    with stand_ins(state, MESH):
        assert all(p.device.type == "xla" for p in parameters)
        assert model.scale.device.type == "xla"
        assert state.extra["more"].device.type == "xla"
        assert list(model.parameters()) == parameters
        assert all(isinstance(p, nn.Parameter) for p in parameters)
        slots = state.slots()
        assert not any(torch_xla_graph.needs_execution([s.read() for s in slots]))
        known = torch_xla_graph.handles([s.read() for s in slots])
        assert len(set(known)) == len(slots) == 7 + 1 + 3 * 7 + 1
        assert optimizer.param_groups[0]["lr"].device.type == "xla"
        assert optimizer.param_groups[0]["capturable"]
        assert torch_xla_graph.num_compiles() == compiles
    assert {p.device.type for p in parameters} == {where}
    assert optimizer.param_groups[0]["lr"] == 0.01
    assert not optimizer.state


def test_optimizers_without_a_rate():
    class Plain(torch.optim.Optimizer):
        def __init__(self, params):
            super().__init__(params, {})

        def step(self, closure=None):
            return None

    model = net("meta")
    optimizer = Plain(model.parameters())
    with stand_ins(state_of(model, optimizer), MESH):
        assert "lr" not in optimizer.param_groups[0]


def test_gradient_hooks_are_called_and_restored():
    model = net("cpu")
    weight, calls = model.layers[0].up.weight, []
    handle = weight.register_hook(lambda g: calls.append(g.device.type))
    weight.register_post_accumulate_grad_hook(lambda p: calls.append("after"))
    with stand_ins(state_of(model), MESH):
        batch = {
            name: torch_xla_trace.placeholder(t.shape, t.dtype)
            for name, t in batch_of().items()
        }
        loss_of(model, batch).backward()
        assert calls == ["xla", "after"]
        assert weight.grad is not None
    torch_xla_graph.forget_traced()
    assert weight.grad is None
    loss_of(model, batch_of()).backward()
    assert calls == ["xla", "after", "cpu", "after"]
    handle.remove()
    loss_of(model, batch_of()).backward()
    assert calls == ["xla", "after", "cpu", "after", "after"]


def test_hooks_of_the_trace_go_with_it():
    model = net("cpu")
    weight, calls = model.layers[0].up.weight, []
    with stand_ins(state_of(model), MESH):
        weight.register_hook(calls.append)
    loss_of(model, batch_of()).backward()
    assert not calls


def test_attributes_of_the_trace_go_with_it():
    model = net("meta")
    weight = model.layers[0].up.weight
    weight.mine = 1
    with planning(lambda *_: None), stand_ins(state_of(model), MESH):
        spmd.mark_sharding(weight, Mesh({"fsdp": 8}), ("fsdp", None))
        weight.mine, weight.other = 2, 3
    assert vars(weight) == {"mine": 1}


def test_weak_references_and_graphs_do_not_matter():
    model = net("cpu")
    weight = model.layers[0].up.weight
    reference = weakref.ref(weight)
    loss = loss_of(model, batch_of())
    with stand_ins(state_of(model), MESH):
        assert reference() is weight
    loss.backward()
    assert weight.grad.abs().sum() > 0


def test_gradients_are_placeholders_split_as_their_parameters():
    model = wrapped("meta")
    weight = model.layers[0].up.weight
    gradient = weight.grad = torch.empty_like(weight)
    with stand_ins(state_of(model), MESH):
        assert weight.grad.device.type == "xla"
        assert spmd.get_sharding(weight.grad).spec == ("fsdp", None)
        weight.grad = None
    assert weight.grad is gradient
    assert spmd.get_sharding(gradient) is None


def test_shared_buffers_stay_shared():
    model = net("cpu")
    model.again = nn.Module()
    model.again.register_buffer("scale", model.scale)
    scale = model.scale
    with stand_ins(state_of(model), MESH):
        assert model.scale is model.again.scale is scale
        model.again.scale = torch.ones(1)
    assert model.again.scale is scale


def test_after_an_error():
    model = net("cpu")
    optimizer = adamw(model)
    values = [p.clone() for p in model.parameters()]
    with pytest.raises(ZeroDivisionError), stand_ins(state_of(model, optimizer), MESH):
        raise ZeroDivisionError
    assert all(map(torch.equal, model.parameters(), values))
    assert not optimizer.state


def test_an_optimizer_that_cannot_be_prepared():
    class Broken(torch.optim.AdamW):
        def _init_group(self, *args):
            raise ZeroDivisionError

    model = net("cpu")
    optimizer = Broken(model.parameters())
    with pytest.raises(ZeroDivisionError), stand_ins(state_of(model, optimizer), MESH):
        pass
    assert {p.device.type for p in model.parameters()} == {"cpu"}


def test_one_placeholder():
    tensor = torch.ones(2, 3, dtype=torch.bfloat16)
    spmd.mark_sharding(meta := tensor.to("meta"), MESH, (None, None))
    twin = placeholder_like(meta)
    assert (twin.shape, twin.dtype, twin.device.type) == ((2, 3), torch.bfloat16, "xla")
    assert spmd.get_sharding(twin) == spmd.get_sharding(meta)


def test_exchange():
    one, two = nn.Parameter(torch.ones(2)), nn.Parameter(torch.zeros(3, device="meta"))
    before = one.data_ptr()
    exchange(one, two)
    assert one.shape == (3,) and one.device.type == "meta"
    assert two.data_ptr() == before
    exchange(one, two)
    assert one.data_ptr() == before
