from __future__ import annotations

import pytest

from spmd._names.pattern import compile_pattern, matching, nearest, split_index

NAMES = (
    "",
    "embed.weight",
    "layers",
    "layers.0",
    "layers.0.attn.q_proj.weight",
    "layers.1",
    "layers.1.attn.q_proj.weight",
    "layers.10.attn.k_proj.weight",
    "norm.weight",
)


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("embed.weight", ("embed.weight",)),
        ("layers.*", ("layers.0", "layers.1")),
        ("layers.1", ("layers.1",)),
        ("layers.1.*.*.weight", ("layers.1.attn.q_proj.weight",)),
        ("layers.1*.**.weight", NAMES[6:8]),
        ("layers.*.attn.*_proj.weight", (NAMES[4], *NAMES[6:8])),
        ("layers.*.attn.q*.weight", (NAMES[4], NAMES[6])),
        ("*.weight", ("embed.weight", "norm.weight")),
        ("**.weight", (NAMES[1], NAMES[4], *NAMES[6:])),
        ("**.0.**", ("layers.0", "layers.0.attn.q_proj.weight")),
        ("layers.**", NAMES[2:8]),
        ("**", NAMES),
        ("", ("",)),
        ("*", ("layers",)),
        ("embedXweight", ()),
        ("embed*weight", ()),
        ("layers.*.q_proj.weight", ()),
    ],
)
def test_matching(pattern: str, expected: tuple[str, ...]) -> None:
    assert matching(pattern, NAMES) == expected


def test_characters_of_regular_expressions_mean_themselves() -> None:
    assert matching("a+b.(c)", ["a+b.(c)", "aab.c"]) == ("a+b.(c)",)
    assert matching("a+*.(c)", ["a+b.(c)", "aab.c"]) == ("a+b.(c)",)


def test_split_index() -> None:
    assert split_index("layers.*[12]") == ("layers.*", 12)
    assert split_index("layers.*") == ("layers.*", None)
    assert split_index("[0]") == ("", 0)


@pytest.mark.parametrize("pattern", ["layers.*[x]", "layers.*[-1]", "layers[]"])
def test_an_index_is_a_number(pattern: str) -> None:
    with pytest.raises(
        ValueError, match=r"picks an output of a module; a number from 0"
    ):
        split_index(pattern)


@pytest.mark.parametrize("pattern", ["layers..weight", ".weight", "layers."])
def test_empty_components(pattern: str) -> None:
    with pytest.raises(ValueError, match="has an empty component; write single dots"):
        compile_pattern(pattern)
    with pytest.raises(ValueError, match="has an empty component"):
        matching(pattern, NAMES)


@pytest.mark.parametrize("pattern", ["layers.**x", "***"])
def test_two_stars_stand_alone(pattern: str) -> None:
    with pytest.raises(ValueError, match="it has to stand alone between dots"):
        compile_pattern(pattern)


def test_nearest_suggests_one_line_for_all_layers() -> None:
    names = [f"model.layers.{i}.mlp.up_proj.weight" for i in range(80)]
    assert nearest("layers.*.mlp.up_proj.weight", names) == (
        "model.layers.*.mlp.up_proj.weight",
    )
    assert nearest("model.layers.3.mlp.up.weight", names) == (
        "model.layers.*.mlp.up_proj.weight",
    )
    assert nearest("zzz", names) == ()
    assert len(nearest("a.w1", [f"a.w{c}" for c in "abcdef"], limit=2)) == 2
