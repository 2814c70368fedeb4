import pytest
import torch

import spmd
from spmd import Mesh
from spmd._marking.planning import GRADIENT, is_planning, noted, planning
from tests.on_device import on_device

POD = Mesh({"fsdp": 4096})


def test_only_inside_the_context():
    assert not is_planning()
    with planning(lambda *_: None):
        assert is_planning()
        with planning(lambda *_: None):
            assert is_planning()
        assert is_planning()
    assert not is_planning()
    with pytest.raises(ZeroDivisionError), planning(lambda *_: None):
        raise ZeroDivisionError
    assert not is_planning()


def test_notes_say_what_is_marked_and_are_held_meanwhile():
    class Held:
        alive = 0

        def __init__(self):
            Held.alive += 1

        def __del__(self):
            Held.alive -= 1

    notes = []

    def on_mark(*note):
        notes.append(note)
        return Held()

    with planning(on_mark):
        with noted("x", torch.ones(2, 3), POD, ("fsdp", None)):
            assert Held.alive == 1
        assert Held.alive == 0
        with (
            pytest.raises(ZeroDivisionError),
            noted("y", torch.ones(2), POD, (None,)),
        ):
            raise ZeroDivisionError
        assert Held.alive == 0
    assert notes == [("x", (2, 3), POD, ("fsdp", None)), ("y", (2,), POD, (None,))]


def test_without_a_trace_nothing_is_noted():
    with noted("x", torch.ones(2), POD, (None,)):
        pass


def test_meshes_of_any_size_are_accepted():
    tensor = on_device(4096, 2)
    with pytest.raises(ValueError, match="4096 devices"):
        spmd.mark_sharding(tensor * 2, POD, ("fsdp", None))
    notes = []
    with planning(lambda *note: notes.append(note)):
        spmd.mark_sharding(tensor * 2, POD, ("fsdp", None), name="double")
        spmd.mark_sharding(tensor, POD, ("fsdp", None))  # data: nothing to move
    assert notes == [("double", (4096, 2), POD, ("fsdp", None))]


def test_gradients_are_noted():
    mesh, notes = Mesh({"fsdp": 8}), []
    with planning(lambda *note: notes.append(note)):
        x = on_device(8, 2).requires_grad_()
        y = spmd.mark_sharding(x * 2, mesh, ("fsdp", None), name="y")
        y.sum().backward()
    assert notes == [
        ("y", (8, 2), mesh, ("fsdp", None)),
        (GRADIENT, (8, 2), mesh, ("fsdp", None)),
    ]
