import copy
from typing import Any

import pytest
import torch
from torch import nn

import spmd
from spmd._capture.state import KEY_WORDS, StepState
from tests.on_device import on_device, sync
from tests.spmd.training import adamw, batches, mlp, squares, wrapped


def state(**options: Any) -> StepState:
    model = spmd.to_device(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    optimizer = torch.optim.AdamW(model.parameters())
    spmd.prime_optimizer(optimizer)
    return StepState(model, optimizer, options)


def test_names_and_roles_of_every_place():
    extra = on_device(3)
    made = state(extra=extra)
    parameter = made.parameters[0][1]
    parameter.grad = torch.ones_like(parameter)
    found = {s.name: s.role for s in made.slots()}
    assert {n: r for n, r in found.items() if not n.startswith("optimizer")} == {
        "0.weight": "parameter",
        "0.bias": "parameter",
        "1.weight": "parameter",
        "1.bias": "parameter",
        "1.running_mean": "buffer",
        "1.running_var": "buffer",
        "1.num_batches_tracked": "buffer",
        "grad[0.weight]": "gradient",
        "extra": "buffer",
    }
    moments = [n for n, r in found.items() if r == "optimizer"]
    assert len(moments) == 12
    assert "optimizer.exp_avg_sq[1.bias]" in moments


def test_each_place_reads_and_writes_where_the_tensor_is():
    made = state(extra=on_device(3))
    parameter = made.parameters[0][1]
    parameter.grad = torch.ones_like(parameter)
    sync()
    for slot in made.slots():
        before = slot.read()
        slot.write(torch.full_like(before, 7))
        assert (slot.read().cpu() == 7).all()
        kept = slot.role in ("parameter", "buffer")
        assert (slot.read() is before) == kept
        slot.put(before)
        assert slot.read() is before


def test_attributes_of_optimizer_state_move_on_to_what_replaces_it():
    made = state()
    slot = next(s for s in made.slots() if s.name == "optimizer.exp_avg[0.weight]")
    slot.read().mine = "note"
    slot.write(torch.zeros_like(slot.read()))
    assert slot.read().mine == "note"


def test_places_outlive_a_loaded_optimizer():
    made = state()
    slots = [s for s in made.slots() if s.role == "optimizer"]
    assert made.optimizer is not None
    made.optimizer.load_state_dict(copy.deepcopy(made.optimizer.state_dict()))
    tables = made.optimizer.state.values()
    now = {id(t) for table in tables for t in table.values()}
    assert {id(s.read()) for s in slots} == now


def test_bound_places_are_good_as_long_as_the_tables_stay():
    made = state()
    bound, tables = made.slots(bound=True), made.tables()
    names = [s.name for s in made.slots()]
    assert [s.name for s in bound] == names
    for slot, other in zip(bound, made.slots(), strict=True):
        assert slot.read() is other.read()
        slot.write(other.read().detach().clone())
        assert slot.read() is other.read()
        slot.put(other.read())
    assert made.tables() == tables
    assert made.optimizer is not None
    made.optimizer.load_state_dict(copy.deepcopy(made.optimizer.state_dict()))
    assert made.tables() != tables


def test_state_that_is_gone_or_new():
    made = state()
    assert made.optimizer is not None
    slot = next(s for s in made.slots() if s.name == "optimizer.exp_avg[0.weight]")
    value = slot.read()
    made.optimizer.state[made.parameters[0][1]].clear()
    slot.write(value)
    assert slot.read() is value
    assert made.model is not None
    buffer = next(s for s in made.slots() if s.name == "1.running_mean")
    value = buffer.read()
    made.model[1]._buffers["running_mean"] = None  # pyright: ignore
    buffer.write(value)
    assert buffer.read() is value


def test_tied_and_shared_tensors_come_once():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model[1].weight = model[0].weight
    spmd.to_device(model)
    shared = on_device(2)
    made = StepState(model, None, {"a": shared, "b": shared})
    assert [s.name for s in made.slots()] == ["0.weight", "0.bias", "1.bias", "a"]
    names = [s.name for s in made.places()]
    assert names.count("a") == names.count("b") == 1


def test_only_what_is_on_the_device_is_a_slot():
    made = StepState(nn.Linear(2, 2), None, {"x": on_device(2)})
    assert [s.name for s in made.slots()] == ["x"]
    assert [s.name for s in made.places()] == ["weight", "bias", "x"]


def test_parameters_that_only_the_optimizer_has():
    extra = nn.Parameter(on_device(2))
    made = StepState(None, torch.optim.SGD([extra]), {})
    assert made.parameters == [("param_groups.0.0", extra)]


def test_refresh_finds_what_was_added():
    made = state()
    assert made.model is not None
    made.model.append(spmd.to_device(nn.Linear(2, 2)))
    assert len(made.parameters) == 4
    made.refresh()
    assert [n for n, _ in made.parameters][4:] == ["2.weight", "2.bias"]
    assert len(made.modules) == 4


def test_parameters_by_the_names_of_their_gradients():
    made = state()
    assert made.with_gradients([]) == []
    found = made.with_gradients(["grad[1.bias]", "grad[0.weight]"])
    assert [id(p) for p in found] == [
        id(made.parameters[0][1]),
        id(made.parameters[3][1]),
    ]


def differing(before: tuple[Any, ...], after: tuple[Any, ...]) -> list[str]:
    pairs = zip(KEY_WORDS, before, after, strict=False)
    return [words for words, a, b in pairs if a != b]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda m, o: squares(m, batches(1)[0]).backward(), "have a gradient"),
        (lambda m, o: m.module[0].requires_grad_(False), "require a gradient"),
        (lambda m, o: m.module[3].eval(), "evaluation mode"),
        (lambda m, o: o.param_groups[0].update(eps=1e-3), "hyperparameters"),
        (lambda m, o: o.param_groups[0].update(betas=[0.1, 0.2]), "hyperparameters"),
        (lambda m, o: o.param_groups[0]["params"].pop(), "hyperparameters"),
        (lambda m, o: o.state.clear(), "state holds"),
    ],
)
def test_the_key_shows_what_changes_the_graph(change, words):
    model = wrapped(mlp())
    optimizer = adamw(model)
    spmd.prime_optimizer(optimizer)
    made = StepState(model, optimizer, {})
    before = made.key()
    assert made.key() == before and hash(before)
    change(model, optimizer)
    (found,) = differing(before, made.key())
    assert found.endswith(words) or words in found


def test_the_key_does_not_show_what_is_an_input_or_a_schedulers_note():
    made = state()
    before = made.key()
    assert made.optimizer is not None
    made.optimizer.param_groups[0].update(lr=3.0, initial_lr=1.0, max_lr=2.0)
    assert made.key() == before


def test_a_setting_that_changes_in_place_is_seen():
    made = state()
    assert made.optimizer is not None
    (group,) = made.optimizer.param_groups
    group["betas"] = [0.9, 0.99]
    before = made.key()
    assert made.key() == before
    group["betas"][1] = 0.5
    assert differing(before, made.key()) == ["optimizer hyperparameters"]


def test_settings_of_other_groups_names_and_values_are_seen():
    made = state()
    assert made.optimizer is not None
    (group,) = made.optimizer.param_groups
    before = made.key()
    group["eps"] = float(repr(group["eps"]))  # another object, the same number
    assert made.key() == before
    group["note"] = "new"
    with_note = made.key()
    assert differing(before, with_note) == ["optimizer hyperparameters"]
    del group["note"]
    assert made.key() == before
    made.optimizer.add_param_group({"params": [nn.Parameter(on_device(2))]})
    assert len(made.key()[3]) == 2
    made.optimizer.param_groups.reverse()
    assert made.key()[3] == made.key()[3] != before[3]


def test_entries_of_tables_say_where_they_are():
    made = state(extra=on_device(3))
    for slot in made.slots(bound=True):
        if slot.role in ("buffer", "optimizer"):
            assert slot.table is not None and slot.table[slot.key] is slot.read()
        else:
            assert slot.table is None
    assert made.optimizer is not None
    unbound = [s for s in made.slots() if s.role == "optimizer"]
    assert all(s.table is None for s in unbound)  # which loading replaces


def test_groups_of_no_optimizer():
    assert StepState(None, None, {}).groups == []
    assert StepState(None, None, {}).tables() == ()
