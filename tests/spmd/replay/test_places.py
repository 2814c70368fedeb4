import torch
from torch import nn

import spmd
from spmd._capture.state import StepState
from spmd._replay.layout import View
from spmd._replay.places import Held, Places
from tests.on_device import on_device, sync


def state() -> StepState:
    model = spmd.to_device(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)))
    optimizer = torch.optim.AdamW(model.parameters())
    spmd.prime_optimizer(optimizer)
    for parameter in list(model.parameters())[:2]:
        parameter.grad = torch.ones_like(parameter)
    sync()
    return StepState(model, optimizer, {"extra": on_device(3)})


def test_what_is_read_is_there_now():
    made = state()
    slots = made.slots(bound=True)
    places = Places(slots)
    assert {s.role for s in slots} == {"parameter", "buffer", "gradient", "optimizer"}
    for _ in range(2):
        found = places.read()
        assert len(found) == len(slots)
        assert all(t is s.read() for t, s in zip(found, slots, strict=True))
        for slot in slots:
            if not slot.keeps:
                slot.put(slot.read().detach().clone())
        made.extra["extra"] = on_device(3) * 2


def test_nothing_is_read_from_no_places():
    assert Places([]).read() == []


def test_what_is_renewed_is_put_there_with_what_was_hung_on_it():
    made = state()
    slots = made.slots(bound=True)
    places = Places(slots)
    changes = [(i, i) for i, slot in enumerate(slots) if not slot.keeps]
    before = places.read()
    first = changes[-1][0]
    assert slots[first].role == "optimizer"
    setattr(before[first], "mine", ["note"])  # noqa: B010 # an attribute of the user's
    results = [torch.full_like(t, 7) for t in before]
    places.renew(changes, before, results)
    now = places.read()
    for i, slot in enumerate(slots):
        assert slot.read() is now[i]
        assert now[i] is (before[i] if slot.keeps else results[dict(changes)[i]])
    assert vars(now[first]) == {"mine": ["note"]}
    setattr(now[first], "mine", "other")  # noqa: B010
    assert vars(before[first]) == {"mine": ["note"]}  # each has attributes of its own


def test_one_result_may_come_to_two_places():
    made = state()
    slots = made.slots(bound=True)
    places = Places(slots)
    first, second = [i for i, slot in enumerate(slots) if slot.role == "optimizer"][:2]
    before = places.read()
    setattr(before[first], "mine", "note")  # noqa: B010
    result = torch.full_like(before[first], 7)
    places.renew([(first, 0), (second, 0)], before, [result])
    now = places.read()
    assert now[first] is result and now[second] is result
    assert vars(result) == {"mine": "note"}
    other = [torch.full_like(result, 8) for _ in range(2)]
    places.renew([(second, 0), (first, 1)], now, other)  # other changes than before
    assert places.read()[second] is other[0] and places.read()[first] is other[1]


def test_held_is_what_is_there_with_a_view_of_it():
    made = state()
    places = Places(made.slots(bound=True))
    held = Held.of(places)
    assert held.places is places and held.view.layouts == ()
    assert held.view.is_of_same(View.of(held.tensors))
    held.tensors[0].data = on_device(2, 4)
    assert not Held.of(places).view.is_of_same(held.view)
