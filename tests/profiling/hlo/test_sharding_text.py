import pytest
from jaxlib import _hlo

from profiling._hlo.binary import read_binary
from profiling._hlo.sharding_text import sharding_text
from spmd._meshes.sharding import HloSharding
from spmd._program.hlo_proto import HloInstructionProto


@pytest.mark.parametrize(
    "text",
    [
        "{replicated}",
        "{manual}",
        "{maximal device=3}",
        "{devices=[4,2]<=[8]}",
        "{devices=[2,1,4]<=[4,2]T(1,0) last_tile_dim_replicate}",
        "{devices=[2,2]0,2,1,3}",
        "{devices=[2,4]<=[8] last_tile_dims={manual}}",
        "{{replicated}, {devices=[8]<=[8]}}",
    ],
)
def test_as_xla_writes_it(text: str) -> None:
    """jaxlib reads the text of a parameter; what we make of its proto is the same."""
    shape = "(f32[], f32[8])" if text.startswith("{{") else "f32[8,8]"
    if "=[8] last_tile_dims" in text:
        shape = "f32[8]"
    module = _hlo.hlo_module_from_text(
        f"HloModule m\nENTRY e {{\n  ROOT p = {shape} parameter(0), sharding={text}\n}}"
    )
    found = read_binary(module.as_serialized_hlo_module_proto(), source="m").entry.root
    assert found.attributes.sharding == text
    if text.startswith("{devices") and "manual" not in text:
        assert HloSharding.parse(text).num_devices in (4, 8)


def test_named_shardings() -> None:
    message = HloInstructionProto()
    named = message.sharding.named_sharding
    named.mesh.axes.add(name="fsdp", size=4)
    named.mesh.axes.add(name="tensor", size=2)
    named.mesh.device_ids.extend(range(8))
    first = named.dim_shardings.add(is_closed=True).axes.add(mesh_axis_index=1)
    first.sub_axis_info.pre_size, first.sub_axis_info.size = 1, 2
    named.dim_shardings.add(is_closed=False)
    named.replicated_axes.add(mesh_axis_index=0)
    assert sharding_text(message.sharding) == (
        "{mesh['fsdp'=4,'tensor'=2], device_ids=(0,1,2,3,4,5,6,7), "
        "[{'tensor':(1)2}, {?}], replicated={'fsdp'}}"
    )


def test_a_tuple_of_itself_ends() -> None:
    message = HloInstructionProto()
    at = message.sharding
    for _ in range(40):
        at.type = 2
        at = at.tuple_shardings.add()
    assert sharding_text(message.sharding).count("{") == 17
