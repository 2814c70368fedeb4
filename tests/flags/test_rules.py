import pytest

from flags import lint, options
from flags._catalogue import catalogue
from flags._flag import Flag
from flags._library import LIBRARIES
from flags._rules import Harmful, conflicts, harmful, retired

INT = Flag("xla_a", "int64", ())


def test_retired_flags_are_gone_somewhere():
    hosts = [catalogue("torch_xla"), catalogue("jaxlib")]
    for name, entry in retired().items():
        assert not all(c.accepts(name, "XLA_FLAGS") for c in hosts), name
        assert entry.reason
        if entry.instead:
            assert lint(entry.instead, libraries=["torch_xla", "jaxlib"]).ok, name


def test_harmful_and_conflicting_flags_exist(needs):
    needs("cuda", "libtpu")
    known = {name for entry in LIBRARIES for name in catalogue(entry).flags}
    for entry in harmful():
        assert set(entry.flags) <= known
        assert entry.figure
        assert "estimate" in entry.source
    for entry in conflicts():
        assert {entry.first[0], entry.second[0]} <= known
        assert entry.reason


@pytest.mark.parametrize(
    ("bounds", "value", "applies"),
    [
        ({"at_least": 5}, "5", True),
        ({"at_least": 5}, "4", False),
        ({"at_least": 5}, "x", False),
        ({"at_least": 5}, None, False),
        ({"at_most": 5}, "5", True),
        ({"at_least": 1, "at_most": 5}, "6", False),
        ({"equals": "7"}, "7", True),
        ({"equals": "7"}, "8", False),
    ],
)
def test_bounds(bounds, value, applies):
    entry = Harmful(("xla_a",), "gpu", None, "f", "s", **bounds)
    assert entry.applies(INT, value) is applies


@pytest.mark.slow
@pytest.mark.parametrize("entry", conflicts(), ids=lambda entry: entry.second[0])
def test_the_second_of_a_conflict_changes_nothing(entry):
    from tests.flags.decoders import judged

    (first, one), (second, other) = entry.first, entry.second
    target = "v5e:4x4" if first.startswith("xla_tpu_") else "h100:2x8"
    backend = "tpu" if target.startswith("v5e") else "gpu"
    alone = options({first: one}, backend=backend)
    both = options({first: one, second: other or "4"}, backend=backend)
    assert judged(target, both).compiled.hlo == judged(target, alone).compiled.hlo
