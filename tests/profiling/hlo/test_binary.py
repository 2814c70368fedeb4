import struct

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from profiling._collectives.ops import collective_ops
from profiling._hlo.binary import read_binary
from spmd._program.hlo_proto import HloModuleProto
from tests.profiling.hlo_files import STEP, TEXTS, TORCH_XLA, content, damaged
from tests.profiling.hlo_protos import SMALL, changed, proto


def wrapped(data: bytes) -> bytes:
    """Put a message into field 1 of another."""
    size, varint = len(data), bytearray()
    while size >= 0x80:
        varint.append(size & 0x7F | 0x80)
        size >>= 7
    return b"\x0a" + bytes(varint) + bytes([size]) + data


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_wrappers_are_unwrapped(depth: int) -> None:
    """`HloProto` (a dump's .hlo.pb) and `HloSnapshot` hold a module in field 1."""
    data = proto(SMALL)
    for _ in range(depth):
        data = wrapped(data)
    module = read_binary(data, source="m")
    assert [i.name for i in module.entry.instructions] == ["a", "b", "c"]
    assert module.instruction("b").constant == 7


def test_a_dump_of_torch_xla() -> None:
    path = next(TORCH_XLA.glob("*cpu_after_optimizations.hlo.pb"))
    module = read_binary(path.read_bytes(), source=path.name)
    assert module.is_scheduled
    assert module.num_partitions == 8
    assert [op.kind for op in collective_ops(module)] == [
        "all-gather",
        "reduce-scatter",
        "all-reduce",
    ]


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "m: at byte 0: no HLO module: there is nothing here"),
        (b"\x0a\x05ab", r"m: at byte 0: field 1 goes on for 3 bytes behind"),
        (b"\xff" * 20, "m: at byte 0: a number does not end"),
        (b"\x0a\x01m", "and none with the id of its entry"),
        (proto(SMALL)[:-30], "m: at byte"),
        (changed(name=""), "without a name"),
        (changed(opcode="all-redoce"), "instruction 'c' of 'e'.*'all-reduce' is meant"),
        (changed(operand_ids=[99]), "it names 99, which does not come before it"),
        (changed(called_computation_ids=[98]), "it names 98, which does not"),
        (changed(control_predecessor_ids=[97]), "it names 97, which does not"),
        (changed(id=0), "an id of its own"),
        (changed(id=12), "no instruction with the id of its root"),
    ],
)
def test_damage_is_said_with_its_byte(data: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        read_binary(data, source="m")


def test_the_byte_is_that_of_the_instruction() -> None:
    data = changed(operand_ids=[99])
    at = data.index(b"\x0a\x01c")
    with pytest.raises(ValueError, match=f"m: at byte {at}: instruction 'c'"):
        read_binary(data, source="m")


def test_a_name_that_is_no_text() -> None:
    data = proto(SMALL).replace(b"\x0a\x01c", b"\x0a\x01\xff")
    with pytest.raises(ValueError, match="a name that is no UTF-8"):
        read_binary(data, source="m")


def test_bad_shapes_and_schedules() -> None:
    module = HloModuleProto.FromString(proto(SMALL))
    last = module.computations[0].instructions[-1]
    last.shape.element_type = 99
    with pytest.raises(ValueError, match="no dtype has the number 99"):
        read_binary(module.SerializeToString(), source="m")
    last.shape.element_type = 4
    last.shape.dimensions.append(-1)
    with pytest.raises(ValueError, match="a shape of \\[-1\\]"):
        read_binary(module.SerializeToString(), source="m")
    scheduled = SMALL.replace("HloModule m", "HloModule m, is_scheduled=true")
    data = proto(scheduled)
    sequence = bytes([0x0A, 3, 0, 1, 2])
    assert data.count(sequence) == 1
    with pytest.raises(ValueError, match="does not list its 3 instructions once each"):
        read_binary(data.replace(sequence, bytes([0x0A, 3, 0, 1, 1])), source="m")


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.data())
def test_fuzzed_protos_are_read_or_refused(data: st.DataObject) -> None:
    text = content(data.draw(st.sampled_from((STEP, *TEXTS[2:5])))).decode()
    try:
        module = read_binary(damaged(data, proto(text)), source="f.pb")
    except ValueError as error:
        assert str(error).startswith("f.pb: at byte ")
    else:
        collective_ops(module)


@given(st.binary(max_size=200))
def test_any_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="at byte"):
        read_binary(data, source="f.pb")


def test_numbers_end_where_the_message_ends() -> None:
    with pytest.raises(ValueError, match="a number does not end"):
        read_binary(struct.pack("<BB", 0x08, 0x80), source="f.pb")
