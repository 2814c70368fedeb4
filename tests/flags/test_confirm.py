import pytest

from flags import _confirm, _oracle
from flags._confirm import FOLDER, Confirmed, confirm, shipped
from flags._flag import Flag
from flags._library import LIBRARIES

JAXLIB, LIBTPU = LIBRARIES["jaxlib"], LIBRARIES["libtpu"]


@pytest.mark.slow
@pytest.mark.parametrize("name", LIBRARIES)
def test_what_is_shipped_is_what_the_library_says(name, needs):
    needs(name)
    entry = LIBRARIES[name]
    found = confirm(entry, whole=True)
    known = shipped(entry, found.version)
    if known is None:
        pytest.skip(f"nothing is shipped for {name} {found.version}")
    assert found == known


@pytest.mark.slow
def test_known_exceptions_alone_give_the_same():
    assert confirm(JAXLIB) == shipped(JAXLIB, JAXLIB.find()[1])


def test_the_pinned_versions_are_there():
    names = {file.name.partition("-")[0] for file in FOLDER.glob("*.json")}
    assert names == set(LIBRARIES)
    assert shipped(JAXLIB, "0.0.1") is None


def test_json_and_back():
    found = Confirmed("jaxlib", "1", ("a",), {"b": "bool"}, ignored=("c",))
    assert Confirmed.from_json(found.to_json()) == found


def library_that_says(monkeypatch, knows, refuses=()):
    """A library that knows some flags, and refuses the value of others."""
    lines = []

    def start(entry, text, **_):
        lines.append(text)
        names = [w.removeprefix("--").partition("=")[0] for w in text.split()]
        if set(names) & set(refuses):
            return (
                1,
                "F parse_flags_from_env.cc:220] Check failed: Flag parsing failed.",
            )
        unknown = [n for n in names if n not in knows]
        return (
            1,
            f"F x] Unknown flags in XLA_FLAGS: {' '.join('--' + n for n in unknown)}",
        )

    monkeypatch.setattr(_oracle, "start", start)
    return lines


def test_taken_in_halves(monkeypatch):
    names = [f"xla_{i}" for i in range(20)]
    known = set(names[::2])
    lines = library_that_says(monkeypatch, known, refuses={"xla_4"})
    found = _confirm._taken(JAXLIB, {n: Flag(n, "bool", ()) for n in names})
    assert found == known
    assert 1 < len(lines) < 15


def test_a_library_that_takes_anything(monkeypatch):
    monkeypatch.setattr(_oracle, "start", lambda *_, **__: (0, ""))
    with pytest.raises(RuntimeError, match="did not refuse an unknown flag"):
        _confirm._taken(JAXLIB, {"xla_a": Flag("xla_a", "bool", ())})


def test_libtpu_that_takes_anything(monkeypatch):
    monkeypatch.setattr(_oracle, "start", lambda *_, **__: (0, ""))
    with pytest.raises(RuntimeError, match="unknown flag in LIBTPU_INIT_ARGS"):
        _confirm._init_flags(LIBTPU, {"xla_a"})


def test_what_libtpu_says(monkeypatch):
    said = (
        "ERROR: Illegal value '?' specified for bool flag 'b'\n"
        "ERROR: Illegal value '?' specified for flag 'n'; must be\n"
        "ERROR: Unknown command line flag 'u'. Did you mean: b ?\n"
        f"ERROR: Unknown command line flag '{_confirm._PROBE}'\n"
    )
    monkeypatch.setattr(_oracle, "start", lambda *_, **__: (1, said))
    found = _confirm._init_flags(LIBTPU, {"b", "n", "u", "s"})
    assert found == {"b": "bool", "n": "unknown", "s": "string"}


def test_a_plugin_that_compiles_nothing(monkeypatch, needs):
    needs("cuda")
    monkeypatch.setattr(_oracle, "start", lambda *_, **__: (7, "broken"))
    with pytest.raises(RuntimeError, match="cuda compiled nothing: broken"):
        _confirm._defaults_of(JAXLIB, {})


def test_samples():
    assert _confirm._sample(Flag("xla_fuel", "unknown", ())) == "a=1"
    assert _confirm._sample(Flag("xla_e", "enum", (), choices=("A", "B"))) == "B"
    assert _confirm._sample(Flag("xla_s", "string", ())) == ""


def test_main_writes_files(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(_confirm, "FOLDER", tmp_path / "confirmed")
    monkeypatch.setattr(
        _confirm, "confirm", lambda entry, whole: Confirmed(entry.name, "1")
    )
    _confirm.main(["jaxlib"])
    (file,) = (tmp_path / "confirmed").iterdir()
    assert file.name == "jaxlib-1.json"
    assert "jaxlib-1.json: 0 absent" in capsys.readouterr().out
