from flags._defaults import tpu_defaults, usage_defaults, xla_defaults
from flags._flag import Flag


def test_usage():
    text = (
        '\t--xla_fuel=""     \tstring\tSets\n'
        '\t--xla_c="A, B"\tstring\tThe types\n'
        "\t--xla_n=3  \tint32\tN\n"
    )
    assert usage_defaults(text) == (
        {"xla_fuel": "", "xla_c": "A,B", "xla_n": "3"},
        {"xla_fuel": "string", "xla_c": "string", "xla_n": "int32"},
    )


def test_configuration(tmp_path):
    (tmp_path / "m.config.pbtxt").write_text(
        "debug_options {\n  xla_n: 3\n  xla_e: A\n  xla_e: B\n  xla_set: true\n}\n",
        encoding="utf-8",
    )
    (tmp_path / "m.debug_options").write_text("xla_set: true\n", encoding="utf-8")
    kinds = {
        "xla_n": Flag("xla_n", "int32", ()),
        "xla_e": Flag("xla_e", "enum", (), choices=("A", "B"), repeated=True),
        "xla_set": Flag("xla_set", "bool", ()),
        "xla_off": Flag("xla_off", "bool", ()),
        "xla_first": Flag("xla_first", "enum", (), choices=("Z", "Y")),
        "xla_none": Flag("xla_none", "string", (), repeated=True),
        "xla_map": Flag("xla_map", "map", ()),
    }
    assert xla_defaults(tmp_path, kinds) == {
        "xla_n": "3",
        "xla_e": "A,B",
        "xla_off": "false",
        "xla_first": "Z",
        "xla_none": "",
    }


def test_flagfile(tmp_path):
    text = "--xla_a=true\n--xla_b='false'\n--xla_c=\n"
    (tmp_path / "m.flagfile").write_text(text, encoding="utf-8")
    assert tpu_defaults(tmp_path) == {"xla_a": "true", "xla_b": "false", "xla_c": ""}
