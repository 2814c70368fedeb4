"""Messages made from a table, against what protobuf's encoding says."""

import pytest

from spmd._program.messages import message_classes

TABLE = {
    "Point": {"x": (1, "int64"), "names": (2, "string*"), "inner": (3, "Point*")},
    "Value": {"id": (1, "int64"), "number": (2, "int64"), "text": (3, "string")},
}


@pytest.fixture(scope="module")
def made():
    return message_classes("tests_messages", TABLE, one_of={"Value": "value"})


def test_fields_lists_and_messages(made):
    point = made("Point")(x=3, names=["a", "b"])
    point.inner.add(x=1)
    data = point.SerializeToString()
    assert data == b"\x08\x03\x12\x01a\x12\x01b\x1a\x02\x08\x01"
    assert made("Point").FromString(data) == point


def test_one_of_some_fields(made):
    value = made("Value")(id=7, number=0)
    assert value.WhichOneof("value") == "number"
    value.text = ""
    assert value.WhichOneof("value") == "text"
    assert value.SerializeToString() == b"\x08\x07\x1a\x00"


def test_what_is_not_in_the_table_is_kept(made):
    data = b"\x08\x03\x78\x05"
    assert made("Point").FromString(data).SerializeToString() == data
