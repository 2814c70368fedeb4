import json

from flags._finding import Finding, LintResult


def result(text, *findings):
    return LintResult(text, "XLA_FLAGS", None, ("one 1.0",), (), findings, text, {})


def test_a_caret_under_the_flag():
    text = "--xla_a=1 --xla_b=2"
    found = result(text, Finding("error", "value", "xla_b", "bad", 10, 19))
    message, line, caret = found.show().splitlines()[:3]
    assert message == "error: bad"
    assert line[caret.index("^") : caret.rindex("~") + 1] == "--xla_b=2"


def test_a_long_line_is_cut():
    text = " ".join(f"--xla_{i}=1" for i in range(100))
    start = text.index("--xla_50=")
    found = result(
        text, Finding("note", "default", "x", "m", start, start + 10, source="s")
    )
    _, line, caret, source = found.show().splitlines()[:4]
    assert line.startswith("  ...")
    assert line.endswith("...")
    assert len(line) < 90
    assert line[caret.index("^") : caret.rindex("~") + 1] == "--xla_50=1"
    assert source == "  source: s"


def test_line_breaks_keep_the_caret_in_place():
    text = "--xla_a=1\n\t--xla_b=2"
    shown = result(text, Finding("error", "value", "b", "m", 11, 20)).show()
    _, line, caret = shown.splitlines()[:3]
    assert line[caret.index("^") :] == "--xla_b=2"


def test_counts():
    note = Finding("note", "default", "x", "m", 0, 1)
    shown = result("--x", note, note, Finding("error", "value", "x", "m", 0, 1)).show()
    assert shown.endswith("XLA_FLAGS: 0 flags, read by one 1.0: 1 error, 2 notes")


def test_json():
    found = result("--x", Finding("error", "value", "x", "m", 0, 1))
    content = json.loads(json.dumps(found.as_json()))
    assert content["ok"] is False
    assert content["findings"][0]["kind"] == "value"
    assert result("--x").ok
