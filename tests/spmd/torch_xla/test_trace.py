import pytest
import torch

from spmd._program.hlo_proto import HloModuleProto
from spmd._torch_xla import trace
from tests.on_device import on_device


def test_placeholders_hold_no_data():
    empty = trace.placeholder((2, 3), torch.bfloat16)
    assert empty.shape == (2, 3) and empty.dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="Trying to access XLA data"):
        empty.cpu()


def test_the_module_of_a_graph():
    a = on_device(8, 2)
    assert HloModuleProto.FromString(trace.hlo_proto([a + 1])).computations
    assert trace.hlo_text([a + 1]).startswith("HloModule")


def test_operation_names_are_recorded_inside_only():
    a = on_device(4)
    with trace.operation_names():
        held = trace.scope("my-scope")
        named = trace.hlo_proto([a * 2])
        del held
    assert b"my-scope" in named
    other = on_device(4)  # the data of `a` was first touched in the scope
    assert b"my-scope" not in trace.hlo_proto([other * 2])
