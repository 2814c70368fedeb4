import copy
import io

import torch

import spmd
from spmd._marking.annotation import Annotation, hook_of, mark_of, remember

MESH = spmd.Mesh({"fsdp": 8})


def test_what_is_remembered_goes_with_the_tensor():
    tensor = remember(torch.ones(8, 4), MESH, ("fsdp", None))
    assert spmd.get_sharding(tensor) == Annotation(MESH, ("fsdp", None))
    assert hook_of(tensor) is None and mark_of(torch.ones(2)) is None
    remember(tensor, MESH, (None, "fsdp"))
    assert spmd.get_sharding(tensor).spec == (None, "fsdp")


def test_the_hook_stays_when_another_spec_is_remembered():
    with spmd.meta_parameters():
        weight = torch.nn.Linear(4, 8).weight
    spmd.mark_sharding(weight, MESH, ("fsdp", None), grad=("fsdp", None))
    hook = hook_of(weight)
    assert hook is not None
    assert hook_of(remember(weight, MESH, (None, None))) is hook


def test_a_file_holds_no_annotation():
    buffer = io.BytesIO()
    torch.save({"w": remember(torch.ones(8), MESH, ("fsdp",))}, buffer)
    buffer.seek(0)
    found = torch.load(buffer, weights_only=True)["w"]
    assert mark_of(found) is None and spmd.get_sharding(found) is None
    assert mark_of(copy.deepcopy(found)) is None
