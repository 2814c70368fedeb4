import pytest

from profiling._hlo.binary import read_binary
from spmd._program.hlo_proto import HloInstructionProto, HloModuleProto, ModuleParts
from tests.profiling.hlo_files import parse
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


def test_convolutions_and_ffts_as_in_text() -> None:
    text = (
        "HloModule m\n\nENTRY e {\n"
        "  x = f32[8,9,7,3]{3,2,1,0} parameter(0)\n"
        "  w = f32[3,3,3,16]{3,2,1,0} parameter(1)\n"
        "  y = f32[8,7,7,16]{3,2,1,0} convolution(x, w), window={size=3x3"
        " stride=1x2 pad=0_0x1_1 lhs_dilate=1x2}, dim_labels=b01f_01io->b01f\n"
        "  z = f32[8,7,5,16]{3,2,1,0} convolution(x, w), window={size=3x3},"
        " dim_labels=b01f_01io->b01f\n"
        "  r = f32[8,8]{1,0} parameter(2)\n"
        "  c = c64[8,5]{1,0} fft(r), fft_type=RFFT, fft_length={8}\n"
        "  d = c64[8,5]{1,0} fft(c), fft_type=FFT, fft_length={5}\n"
        "  ROOT i = c64[8,5]{1,0} fft(d), fft_type=IFFT, fft_length={5}\n}\n"
    )
    binary = read_binary(proto(text), source="m")
    for name in "yzcdi":
        written = parse(text).instruction(name).attributes
        found = binary.instruction(name).attributes
        for field in ("window", "window_steps", "spatial", "fft_kind", "fft_length"):
            assert getattr(found, field) == getattr(written, field), (name, field)
    assert binary.instruction("y").attributes.window_steps[1] == (2, 1, 1, 2, 1)
    assert binary.instruction("i").attributes.fft_kind == "IFFT"
