import jax
import jax.numpy as jnp
import pytest
from google.protobuf.message import DecodeError

from spmd._program.hlo_proto import HloModuleProto, entry_computation
from spmd._program.stablehlo import hlo_to_stablehlo


def lowered(function, *args):
    return jax.jit(function).lower(*args)


def module_of(function, *args):
    """The HLO that jax writes for a function, serialised."""
    computation = lowered(function, *args).compiler_ir("hlo")
    return computation.as_serialized_hlo_module_proto()


def model(x, w):
    table = jnp.arange(12, dtype=jnp.float32).reshape(4, 3)
    hidden = jnp.tanh(x @ w) + table
    return jax.lax.fori_loop(0, 3, lambda i, y: y * 2 + i, hidden).sum(), hidden


ARGS = (jnp.ones((4, 8)), jnp.ones((8, 3)))


def test_fields_have_the_public_numbers():
    module = HloModuleProto.FromString(module_of(model, *ARGS))
    assert module.name == "jit_model"
    entry = entry_computation(module)
    assert entry.id == module.entry_computation_id
    parameters = [i for i in entry.instructions if i.opcode == "parameter"]
    assert [p.parameter_number for p in parameters] == [0, 1]
    assert [list(p.shape.dimensions) for p in parameters] == [[4, 8], [8, 3]]
    (dot,) = [i for i in entry.instructions if i.opcode == "dot"]
    assert list(dot.operand_ids) == [p.id for p in parameters]
    assert dot.metadata.op_name.endswith("dot_general")
    assert dot.metadata.stack_frame_id or dot.metadata.source_line
    ids = {i.id for i in entry.instructions}
    assert entry.root_id in ids


def test_what_has_no_name_is_kept():
    data = module_of(model, *ARGS)
    again = HloModuleProto.FromString(data).SerializeToString(deterministic=True)
    # A literal, a loop and shapes are in it; all of them must come through.
    assert hlo_to_stablehlo(again) == hlo_to_stablehlo(data)
    assert HloModuleProto.FromString(again) == HloModuleProto.FromString(data)
    assert abs(len(again) - len(data)) < 16


def test_changes_are_written():
    module = HloModuleProto.FromString(module_of(model, *ARGS))
    for computation in module.computations:
        for instruction in computation.instructions:
            instruction.metadata.Clear()
    module.name = "renamed"
    module.ClearField("stack_frame_index")
    again = HloModuleProto.FromString(module.SerializeToString())
    assert again.name == "renamed"
    assert not again.stack_frame_index
    text = str(again)
    assert "op_name" not in text and "source_line" not in text


def test_shardings():
    module = HloModuleProto()
    instruction = module.computations.add().instructions.add()
    instruction.sharding.tile_assignment_dimensions.extend([4, 1])
    instruction.sharding.iota_reshape_dims.append(4)
    again = HloModuleProto.FromString(module.SerializeToString())
    (read,) = again.computations[0].instructions
    assert list(read.sharding.tile_assignment_dimensions) == [4, 1]
    assert read.HasField("sharding") and not read.HasField("metadata")


def test_other_bytes_are_refused():
    with pytest.raises(DecodeError):
        HloModuleProto.FromString(b"\xff\xff\xff\xff no module")


def test_a_module_without_its_entry():
    with pytest.raises(StopIteration):
        entry_computation(HloModuleProto(entry_computation_id=3))
