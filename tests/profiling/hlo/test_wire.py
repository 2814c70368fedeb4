import pytest

from profiling._hlo.wire import WireFault, apart, fields, first_fault


def test_fields_of_every_kind() -> None:
    data = (
        bytes([0x08, 0x96, 1]) + b"\x12\x01x" + b"\x19" + bytes(8) + b"\x25" + bytes(4)
    )
    assert list(fields(data)) == [
        (1, 0, 1, 3),
        (2, 2, 5, 6),
        (3, 1, 7, 15),
        (4, 5, 16, 20),
    ]


@pytest.mark.parametrize(
    ("data", "problem", "at"),
    [
        (b"\x08\x01\x0b", "no field has the tag 11", 2),
        (b"\x00", "no field has the tag 0", 0),
        (b"\x12\x05ab", "goes on for 3 bytes behind", 0),
        (b"\x08\xff", "a number does not end", 1),
        (b"\x08" + b"\xff" * 12, "a number does not end", 1),
    ],
)
def test_faults(data: bytes, problem: str, at: int) -> None:
    with pytest.raises(WireFault, match=problem) as error:
        list(fields(data))
    assert error.value.at == at


def test_the_first_fault_inside() -> None:
    inner = b"\x08\x01\x12\x09x"
    data = b"\x08\x01\x1a" + bytes([len(inner)]) + inner
    assert first_fault(data, {}) is None
    fault = first_fault(data, {3: {}})
    assert fault is not None
    assert fault.at == 6


def test_a_list_is_taken_out() -> None:
    data = b"\x08\x01\x1a\x02ab\x10\x05\x1a\x00"
    small, items = apart(data, 0, len(data), 3)
    assert small == b"\x08\x01\x10\x05"
    assert [data[start:end] for start, end in items] == [b"ab", b""]


def test_a_field_of_that_number_that_is_no_list_stays() -> None:
    assert apart(b"\x18\x07", 0, 2, 3) == (b"\x18\x07", [])
