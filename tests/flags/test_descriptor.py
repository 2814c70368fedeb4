import pytest
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto

from flags._descriptor import TPU_PROTO, XLA_PROTO, read_flags
from flags._flag import Flag
from flags._library import LIBRARIES


def made(name: str = XLA_PROTO, **fields: int) -> bytes:
    """A descriptor of DebugOptions with fields of these types."""
    file = FileDescriptorProto(name=name, package="xla", syntax="proto3")
    message = file.message_type.add(name="DebugOptions")
    for number, (field, kind) in enumerate(fields.items(), 1):
        message.field.add(
            name=field,
            number=number,
            type=kind,
            label=FieldDescriptorProto.LABEL_OPTIONAL,
        )
    return file.SerializeToString()


@pytest.mark.parametrize("after", [b"", b"\0\0\0", b"\n\x05other", b"\xff" * 40])
@pytest.mark.parametrize("before", [b"\x7fELF", b"x" * 1000 + XLA_PROTO.encode()])
def test_a_descriptor_amid_other_bytes(tmp_path, before, after):
    path = tmp_path / "lib.so"
    path.write_bytes(before + made(xla_b=8, xla_a=3) + after)
    assert read_flags(path) == (
        Flag("xla_a", "int64", ("options",)),
        Flag("xla_b", "bool", ("options",)),
    )


def test_across_a_chunk(tmp_path, monkeypatch):
    monkeypatch.setattr("flags._descriptor._CHUNK", 16)
    path = tmp_path / "lib.so"
    for shift in range(20):
        path.write_bytes(b"-" * shift + made(xla_a=8))
        assert [flag.name for flag in read_flags(path)] == ["xla_a"]


def test_a_longer_name_of_the_file(tmp_path):
    path = tmp_path / "lib.so"
    path.write_bytes(b"--" + made("third_party/tensorflow/compiler/xla/xla.proto", a=8))
    assert [flag.name for flag in read_flags(path)] == ["a"]


def test_types(tmp_path):
    file = FileDescriptorProto.FromString(made(i=5, s=9, f=2, d=1, u=13))
    message = file.message_type[0]
    enum = message.enum_type.add(name="Mode")
    for number, name in enumerate(["OFF", "ON"]):
        enum.value.add(name=name, number=number)
    message.field.add(name="e", type=14, type_name=".xla.DebugOptions.Mode", label=3)
    entry = message.nested_type.add(name="MEntry")
    entry.options.map_entry = True
    message.field.add(name="m", type=11, type_name=".xla.DebugOptions.MEntry", label=3)
    message.field.add(name="o", type=11, type_name=".xla.Other", label=1)
    message.field.add(name="old", type=8, label=1).options.deprecated = True
    path = tmp_path / "lib.so"
    path.write_bytes(file.SerializeToString())
    found = {flag.name: flag for flag in read_flags(path)}
    kinds = {name: flag.type for name, flag in found.items()}
    assert kinds == {
        "i": "int32",
        "s": "string",
        "f": "float",
        "d": "float",
        "u": "uint32",
        "e": "enum",
        "m": "map",
        "o": "message",
        "old": "bool",
    }
    assert (found["e"].choices, found["e"].repeated) == (("OFF", "ON"), True)
    assert not found["m"].repeated
    assert [name for name, flag in found.items() if flag.deprecated] == ["old"]


@pytest.mark.parametrize(
    "content", [b"nothing", b"\n\x0dxla/xla.proto", b"\n\x0dxla/xla.proto\x22\xff\x7f"]
)
def test_no_descriptor(tmp_path, content):
    path = tmp_path / "lib.so"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="holds no description of DebugOptions"):
        read_flags(path)


@pytest.mark.parametrize("name", LIBRARIES)
def test_installed_libraries(name):
    entry = LIBRARIES[name]
    if not entry.installed:
        pytest.skip(f"{name} is not installed")
    found = {flag.name: flag for flag in read_flags(entry.find()[0], entry.protos)}
    assert found["xla_gpu_autotune_level"].type == "int32"
    assert found["xla_disable_hlo_passes"].repeated
    if TPU_PROTO in entry.protos:
        assert found["xla_enable_async_all_gather"].type == "tristate"
        assert len(found) > 1000
