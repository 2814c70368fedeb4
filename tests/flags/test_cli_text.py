import io

from rich.console import Console

from flags import Preset, PresetFlag, plan
from flags._catalogue import Catalogue
from flags._cli_text import flag_table, preset_text
from flags._flag import Flag

LEVEL = "xla_backend_optimization_level"


def test_table():
    both = ("XLA_FLAGS", "options")
    one = Catalogue("one", "1.0", {"xla_a": Flag("xla_a", "bool", both, "true")})
    two = Catalogue(
        "two", "2.0", {"xla_b": Flag("xla_b", "string", ("XLA_FLAGS",), "")}
    )
    console = Console(width=100, record=True, file=io.StringIO())
    console.print(flag_table([one, two], wide=True))
    lines = [line.split() for line in console.export_text().splitlines()]
    assert lines[0] == ["flag", "type", "O", "T", "default"]
    assert lines[1] == ["xla_a", "bool", "Xo", "-", "true"]
    assert lines[2] == ["xla_b", "string", "-", "X", "''"]
    assert " ".join(lines[3]) == "O one 1.0, T two 2.0"


def test_preset():
    entry = Preset(
        "mine",
        "About it.",
        "cpu",
        "2026-01-02",
        {"jaxlib": "1.0"},
        "Some figures.",
        (
            PresetFlag(LEVEL, 0, reason="a reason", source="a source"),
            PresetFlag("zzz", 0, reason="left out"),
        ),
    )
    found = plan(entry, libraries=["jaxlib"], environ={})
    assert preset_text(entry, found).splitlines() == [
        "# mine (cpu): About it. Judged 2026-01-02 with jaxlib 1.0.",
        "# Some figures.",
        f"#   {LEVEL}: a reason (a source)",
    ]
