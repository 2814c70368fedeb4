import pytest

from profiling._hlo_binary import read_binary
from spmd._hlo_proto import HloInstructionProto, HloModuleProto, ModuleParts
from tests.profiling.hlo_protos import SMALL, changed, proto


@pytest.mark.parametrize(
    ("dtype", "text", "values"),
    [
        ("pred", "{true, false}", (1, 0)),
        ("s8", "{-1, 2}", (-1, 2)),
        ("u8", "{255, 2}", (255, 2)),
        ("s16", "{-3, 4}", (-3, 4)),
        ("u32", "{4294967295, 0}", (4294967295, 0)),
        ("s64", "{-9, 9}", (-9, 9)),
        ("f32", "{1, 2}", ()),
    ],
)
def test_literals(dtype: str, text: str, values: tuple[int, ...]) -> None:
    module = f"HloModule m\nENTRY e {{\n  ROOT a = {dtype}[2] constant({text})\n}}\n"
    found = read_binary(proto(module), source="m").entry.root
    assert found.attributes.literal == values


def test_old_iota_groups() -> None:
    """Before jaxlib 0.10 the count-up form was field 2 of the device list."""
    module = HloModuleProto.FromString(proto(SMALL))
    last = module.computations[0].instructions[-1]
    old = last.collective_device_list.iota_replica_group_list
    old.num_replica_groups, old.num_devices_per_group = 2, 4
    old.iota_reshape_dims.extend([4, 2])
    old.iota_transpose_perm.extend([1, 0])
    found = read_binary(module.SerializeToString(), source="m").entry.root
    assert str(found.attributes.groups) == "[2,4]<=[4,2]T(1,0)"


def test_listed_groups_in_either_place() -> None:
    for place in ("replica_groups", "collective_device_list"):
        module = HloModuleProto.FromString(proto(SMALL))
        last = module.computations[0].instructions[-1]
        holder = getattr(last, place)
        listed = getattr(holder, "replica_groups", holder)
        listed.add(replica_ids=[0, 2])
        listed.add(replica_ids=[1, 3])
        found = read_binary(module.SerializeToString(), source="m").entry.root
        assert str(found.attributes.groups) == "{{0,2},{1,3}}"


def test_shared_backend_configs() -> None:
    data = changed()
    message = HloModuleProto.FromString(data)
    payload = message.computations[0].instructions[-1].backend_config_payload
    payload.id = 1
    parts = ModuleParts.FromString(message.SerializeToString())
    parts.payloads.extend([b"zero", b"one"])
    found = read_binary(parts.SerializeToString(), source="m").entry.root
    assert found.attributes.backend_config == "one"


def test_groups_that_do_not_fit() -> None:
    message = HloInstructionProto()
    message.iota_collective_device_list.num_replica_groups = 3
    message.iota_collective_device_list.iota_reshape_dims.append(4)
    module = HloModuleProto.FromString(proto(SMALL))
    module.computations[0].instructions[-1].MergeFrom(message)
    with pytest.raises(ValueError, match="do not make the 4 devices"):
        read_binary(module.SerializeToString(), source="m")
