import pytest

from profiling._hlo.damage import TextFault
from profiling._hlo.lines import (
    call,
    closing,
    depth_of,
    operand_names,
    without_comments,
)


def test_comments_keep_columns() -> None:
    assert without_comments('a /*b*/ "/*c*/" // d') == 'a       "/*c*/"     '


def test_deep_brackets() -> None:
    line = "tuple((f32[], (s32[])) %a, f32[] %b), x={1}"
    opcode, inside, start, end = call(line, 0)
    assert opcode == "tuple"
    assert line[start : end - 1] == inside
    assert line[end:] == ", x={1}"
    assert operand_names(inside) == ["a", "b"]


def test_operands_that_people_wrote() -> None:
    assert operand_names("a.1, f32[2,3]{1,0} b-2") == ["a.1", "b-2"]
    assert operand_names(" ") == []


def test_brackets_in_strings_do_not_count() -> None:
    assert closing('("(" x)', 0) == 7
    assert depth_of('({ "}}" (') == 3


@pytest.mark.parametrize(
    ("line", "problem"),
    [("add", "an opcode such as"), ("add((a)", "this bracket is not closed")],
)
def test_faults(line: str, problem: str) -> None:
    with pytest.raises(TextFault, match=problem):
        call(line, 0)
