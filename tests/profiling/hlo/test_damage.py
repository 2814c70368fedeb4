from profiling._hlo.damage import in_bytes, in_text


def test_long_lines_are_cut_around_the_place() -> None:
    error = in_text("f", "here", line=2, column=150, text="a" * 150 + "b" + "c" * 200)
    first, shown, caret = str(error).splitlines()
    assert first == "f:2:151: here"
    assert shown[caret.index("^")] == "b"
    assert len(shown) <= 90


def test_a_place_behind_the_end() -> None:
    shown = str(in_text("f", "here", line=1, column=99, text="ab\n")).splitlines()
    assert shown == ["f:1:3: here", "  ab", "    ^"]


def test_what_cannot_be_printed() -> None:
    assert "\x00" not in str(in_text("f", "x", line=1, column=0, text="\x00b"))


def test_bytes() -> None:
    assert str(in_bytes("f", "here", offset=7)) == "f: at byte 7: here"
