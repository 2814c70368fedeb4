import pytest

from profiling._hlo.wire import WireFault
from profiling._memory.buffers import Allocation, BufferAssignment, Placed, from_proto


def varint(value: int) -> bytes:
    found = b""
    while True:
        value, low = value >> 7, value & 0x7F
        found += bytes([low | (0x80 if value else 0)])
        if not value:
            return found


def number(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value)


def message(field: int, *parts: bytes) -> bytes:
    inner = b"".join(parts)
    return varint(field << 3 | 2) + varint(len(inner)) + inner


def hlo_proto(names: dict[int, str], *assignment: bytes) -> bytes:
    """An HloProto: a module with these instructions, and an assignment."""
    made = [message(2, message(1, n.encode()), number(35, i)) for i, n in names.items()]
    return message(1, message(3, *made)) + message(3, *assignment)


def value(identity: int, instruction: int, *index: int) -> bytes:
    packed = message(3, *map(varint, index)) if index else b""
    return message(1, number(1, identity), message(3, number(4, instruction), packed))


def allocation(index: int, size: int, *flags: bytes) -> bytes:
    return message(3, number(1, index), number(2, size), *flags)


def assigned(identity: int, size: int, offset: int = 0) -> bytes:
    return message(9, number(1, identity), number(2, offset), number(3, size))


def event(kind: int, identity: int) -> bytes:
    return message(1, number(1, kind), number(2, identity), message(4, b"name"))


SMALL = hlo_proto(
    {7: "p", 300: "add"},
    value(0, 7),
    value(1, 300, 2, 200),
    allocation(0, 64, number(5, 1), number(7, 1), assigned(0, 64)),
    allocation(1, 4, number(3, 1)),
    allocation(2, 8, number(12, 1)),
    allocation(3, 16, number(7, 1)),
    allocation(4, 4096, assigned(1, 1024, 2048)),
    allocation(5, 512, number(8, 1)),
    message(4, event(0, 1), event(1, 1), number(3, 9)),
)


def test_read_a_proto():
    found = from_proto(SMALL)
    assert found.allocations == (
        Allocation(0, 64, "parameter", True, 0, (Placed("p", (), 64, 0, 0),)),
        Allocation(1, 4, "thread local"),
        Allocation(2, 8, "constant"),
        Allocation(3, 16, "output", True),
        Allocation(
            4, 4096, "temporary", values=(Placed("add", (2, 200), 1024, 2048, 1),)
        ),
        Allocation(5, 512, "temporary", space=1),
    )
    assert found.traces == (((1, True), (1, False)),)


def test_sums_leave_other_memory_out():
    found = from_proto(SMALL)
    assert found.num_bytes("parameter") == 64
    assert found.num_bytes("output") == 80  # 16, and the parameter's 64
    assert found.alias_bytes == 64
    assert found.num_bytes("temporary") == 4096
    assert [a.index for a in found.temporaries] == [4]


def test_values_that_nobody_defines_have_a_number():
    data = hlo_proto({}, value(5, 9), allocation(0, 8, assigned(5, 4), assigned(6, 4)))
    (only,) = from_proto(data).allocations
    assert [v.name for v in only.values] == ["instruction 9", "value 6"]


def test_nothing_to_read():
    assert from_proto(b"") == BufferAssignment()
    assert from_proto(hlo_proto({1: "a"})) == BufferAssignment()


def test_no_proto():
    with pytest.raises(WireFault, match="no field has the tag"):
        from_proto(b"\x07\x07")
