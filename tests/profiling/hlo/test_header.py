import pytest

from profiling._hlo.module import Frame
from tests.profiling.hlo_files import entry, parse

BODY = "ENTRY e {\n  ROOT a = f32[] parameter(0), metadata={stack_frame_id=2}\n}\n"
TABLES = """FileNames
1 "a \\"b\\".py"

FunctionNames
1 "f"
2 "g"

FileLocations
1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=0 end_column=0}
2 {file_name_id=1 function_name_id=2 line=7}

StackFrames
1 {file_location_id=1%s}
2 {file_location_id=2 parent_frame_id=%d}
"""


@pytest.mark.parametrize(
    ("first", "second"),
    [(" parent_frame_id=1", 2), ("", 1), (" parent_frame_id=0", 1)],
    ids=["counted one higher", "without", "zero for none"],
)
def test_call_stacks_however_parents_are_counted(first: str, second: int) -> None:
    module = parse("HloModule m\n\n" + TABLES % (first, second) + "\n\n" + BODY)
    outer = Frame('a "b".py', "f", 3, -1)
    assert module.frames == (outer, Frame('a "b".py', "g", 7, 0))
    metadata = module.entry.root.metadata
    assert (metadata.source_file, metadata.source_line) == ('a "b".py', 7)
    assert module.stack(metadata) == (module.frames[1], outer)


def test_frames_that_point_nowhere() -> None:
    tables = "StackFrames\n1 {file_location_id=9 parent_frame_id=0}\n"
    module = parse(f"HloModule m\n{tables}{BODY}")
    assert module.frames == (Frame("", "", 0, -1),)
    assert module.entry.root.metadata.frame == -1


def test_frontend_attributes() -> None:
    header = ', frontend_attributes={b="1;{2}",a="x"}'
    module = entry("ROOT a = f32[] parameter(0)", header=header)
    assert module.frontend_attributes == (("a", "x"), ("b", "1;{2}"))


def test_donors() -> None:
    module = entry(
        "ROOT a = f32[] parameter(0)",
        header=", buffer_donor={ (0, {}), (2, {1}) }, "
        "input_output_alias={ {}: (1, {0}, must-alias) }",
    )
    assert module.donors == ((0, ()), (2, (1,)))
    assert (module.aliases[0].index, module.aliases[0].must) == ((0,), True)
