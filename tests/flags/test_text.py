import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flags._flag import CHANNELS
from flags._text import parse, without, written


def pairs(text, where="XLA_FLAGS"):
    return [(use.name, use.value) for use in parse(text, where).uses]


# What jaxlib 0.10.2 and torch_xla 2.9.0 make of these was seen by starting them.
@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", []),
        ("--a", [("a", None)]),
        ("--a=1 \t\n --b=", [("a", "1"), ("b", "")]),
        ("--a='x y' --b=2", [("a", "x y"), ("b", "2")]),
        ('--a="x \\"y" --b', [("a", 'x "y'), ("b", None)]),
        ('--a="x y",z', [("a", "x y")]),
        ("--a='open", [("a", "open")]),
        ("--a=b=c", [("a", "b=c")]),
    ],
)
def test_xla_flags(text, found):
    assert pairs(text) == found


def test_words_that_are_no_flags():
    line = parse("--a stray --b", "XLA_FLAGS")
    assert [use.name for use in line.uses] == ["a", "b"]
    (word,) = line.stray
    assert (word.text, word.start, word.end) == ("stray", 4, 9)


def test_options_need_no_dashes():
    assert pairs("a=1 --b=2", "options") == [("a", "1"), ("b", "2")]
    assert pairs("--a='x y'", "LIBTPU_INIT_ARGS") == [("a", "'x")]


def test_places():
    text = "  --a=1  --b='2 3'"
    assert [text[u.start : u.end] for u in parse(text, "XLA_FLAGS").uses] == [
        "--a=1",
        "--b='2 3'",
    ]


@given(st.text(alphabet="ab-_= '\"\\\t\n", max_size=40), st.sampled_from(CHANNELS))
def test_every_word_is_kept_once(text, where):
    line = parse(text, where)
    spans = sorted((w.start, w.end) for w in [*line.uses, *line.stray])
    assert all(start < end for start, end in spans)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
    covered = sum(end - start for start, end in spans)
    assert covered >= len("".join(text.split()))


@given(st.one_of(st.booleans(), st.integers(), st.text(max_size=20)))
def test_written_is_read_back(value):
    said = str(value).lower() if isinstance(value, bool) else str(value)
    if any(ord(c) < 32 and c not in "\t\n\r" for c in said):
        return
    assert pairs(written("xla_a", value)) == [("xla_a", said)]


def test_written_bare():
    assert written("xla_a", None) == "--xla_a"


def test_without():
    text = "--a=1 --b=2  --a=3"
    assert without(text, frozenset({"a"}), "XLA_FLAGS") == "--b=2"
