import pytest

from flags._flag import Flag


@pytest.mark.parametrize(
    "flag",
    [
        Flag("xla_a", "bool", ("XLA_FLAGS", "options"), default="false"),
        Flag("xla_b", "enum", (), choices=("A", "B"), repeated=True, deprecated=True),
    ],
)
def test_json_and_back(flag):
    assert Flag.from_json(flag.as_json()) == flag


def test_json_is_short():
    assert set(Flag("xla_a", "bool", ()).as_json()) == {
        "name",
        "type",
        "channels",
        "default",
    }
