import pytest

from profiling._memory.in_place import InPlace
from profiling._memory.lives import Life, Lives, lives
from tests.profiling.hlo_files import SUM, entry, parse


def follow(body: str, *, header: str = "", before: str = "") -> Lives:
    module = entry(body, header=header, before=before)
    return lives(module, InPlace(module, reduces_in_place=True))


def span(found: Lives, name: str, *index: int) -> tuple[int, int]:
    life = found.by_value[name, index]
    return life.start, life.end


def same(*found: Life) -> bool:
    return len({id(life.buffer) for life in found}) == 1


def test_from_its_making_to_its_last_use():
    # Times: a 0, b 1, c 2, d 3, e 4; the end is 5.
    found = follow(
        "a = f32[8] parameter(0)\nb = f32[8] negate(a)\nc = f32[8] negate(b)\n"
        "d = f32[8] add(b, c)\nROOT e = f32[8] negate(d)"
    )
    assert span(found, "a") == (0, 5)  # the caller's memory
    assert span(found, "b") == (1, 3)
    assert span(found, "c") == (2, 3)
    assert span(found, "e") == (4, 5)
    assert found.end == 5
    outputs = [b.lives[0].instruction.name for b in found.buffers if b.is_output]
    arguments = [b.lives[0].instruction.name for b in found.buffers if b.is_argument]
    assert (outputs, arguments) == (["e"], ["a"])


def test_a_donated_input_is_free_between_its_last_use_and_the_output():
    found = follow(
        "a = f32[8] parameter(0)\nb = f32[8] negate(a)\nc = f32[8] sine(b)\n"
        "d = f32[8] negate(c)\nROOT t = (f32[8], f32[8]) tuple(c, d)",
        header=", input_output_alias={ {1}: (0, {}, may-alias) }",
    )
    assert span(found, "a") == (0, 1)
    assert span(found, "d") == (3, 5)
    assert same(found.by_value["a", ()], found.by_value["d", ()])
    assert found.by_value["a", ()].buffer.is_output


def test_what_passes_a_value_on():
    # b through a bitcast, a tuple and back: read at time 5 for the last time.
    found = follow(
        "a = f32[8] parameter(0)\nb = f32[8] negate(a)\nc = f32[2,4] bitcast(b)\n"
        "t = (f32[2,4], f32[8]) tuple(c, a)\n"
        "g = f32[2,4] get-tuple-element(t), index=0\nROOT d = f32[2,4] negate(g)"
    )
    assert span(found, "b") == (1, 5)
    assert span(found, "t") == (3, 4)  # the table itself
    assert found.by_value["t", ()].num_bytes == 16
    assert ("c", ()) not in found.by_value


LOOP = """
body {
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = f32[8] get-tuple-element(s), index=1
  w = f32[8] sine(v)
  x = f32[8] add(w, v)
  ROOT r = (s32[], f32[8]) tuple(i, x)
}
cond {
  s.1 = (s32[], f32[8]) parameter(0)
  i.1 = s32[] get-tuple-element(s.1), index=0
  n = s32[] constant(4)
  ROOT p = pred[] compare(i.1, n), direction=LT
}
"""


def test_a_loop_keeps_its_state_in_place():
    # Times: z 0, a 1, b 2, t 3; the condition 4 to 7; the body 8 to 13; loop 14.
    found = follow(
        "z = s32[] parameter(0)\na = f32[8] parameter(1)\nb = f32[8] negate(a)\n"
        "t = (s32[], f32[8]) tuple(z, b)\n"
        "l = (s32[], f32[8]) while(t), condition=cond, body=body\n"
        "ROOT g = f32[8] get-tuple-element(l), index=1",
        before=LOOP,
    )
    made, following = found.by_value["b", ()], found.by_value["x", ()]
    assert same(made, following)
    assert (made.start, made.end) == (2, 16)  # it is the output
    assert span(found, "w") == (11, 12)
    # The loop's result and its body's parameter are known by their own names too.
    assert found.by_value["l", (1,)] is made
    assert found.by_value["s", (1,)] is made


def test_branches_and_calls():
    found = follow(
        "p = pred[] parameter(0)\na = f32[8] parameter(1)\nb = f32[8] negate(a)\n"
        "c = f32[8] conditional(p, b, b), true_computation=one, "
        "false_computation=two\nROOT d = f32[8] call(c), to_apply=one",
        before="one {\nx = f32[8] parameter(0)\nROOT y = f32[8] sine(x)\n}\n"
        "two {\nx.2 = f32[8] parameter(0)\nROOT y.2 = f32[8] cosine(x.2)\n}\n",
    )
    assert same(found.by_value["c", ()], found.by_value["y.2", ()])
    assert span(found, "b") == (2, 7)  # times 3 and 4, 5 and 6 are the branches'
    assert found.by_value["d", ()].buffer.is_output


@pytest.mark.parametrize(
    ("start", "shape", "result"),
    [
        ("all-gather-start", "(f32[8], f32[16])", "f32[16]"),
        ("all-to-all-start", "((f32[8]), f32[8])", "f32[8]"),
        ("collective-permute-start", "(f32[8], f32[8], u32[], u32[])", "f32[8]"),
        ("copy-start", "(f32[8], f32[8], u32[])", "f32[8]"),
    ],
)
def test_an_operand_is_held_until_the_end(start, shape, result):
    # Times: a 0, b 1, the start 2, c 3, the done 4.
    done = start.replace("-start", "-done")
    found = follow(
        f"a = f32[8] parameter(0)\nb = f32[8] negate(a)\ns = {shape} {start}(b)\n"
        f"c = f32[8] sine(a)\nd = {result} {done}(s)\nROOT e = {result} negate(d)"
    )
    assert span(found, "b") == (1, 4)
    index = 0 if start == "copy-start" else 1
    assert span(found, "s", index) == (2, 5)  # what is read is made at the start
    assert ("d", ()) not in found.by_value


def test_a_reduction_has_its_result_alone():
    found = follow(
        "a = f32[8] parameter(0)\nb = f32[8] negate(a)\n"
        "s = f32[8] all-reduce-start(b), to_apply=sum\nc = f32[8] sine(a)\n"
        "d = f32[8] all-reduce-done(s)\nROOT e = f32[8] negate(d)",
        before=SUM,
    )
    assert span(found, "s") == (2, 5)


def test_wrapped_computations():
    found = lives(
        module := parse(
            "HloModule m\nw {\np = f32[8] parameter(0)\n"
            "ROOT r = f32[8] reverse(p), dimensions={0}\n}\n"
            "ENTRY e {\na = f32[8] parameter(0)\nb = f32[8] negate(a)\n"
            "s = ((f32[8]), f32[8], s32[]) async-start(b), calls=w\n"
            "c = f32[8] sine(a)\nROOT d = f32[8] async-done(s)\n}\n"
        ),
        InPlace(module, reduces_in_place=True),
    )
    # Times: a 0, b 1, in the wrapped p 2 and r 3, s 4, c 5, d 6, the end 7.
    assert span(found, "r") == (3, 7)
    assert span(found, "b") == (1, 6)


def test_updates_stay_where_they_are():
    found = follow(
        "a = f32[8] parameter(0)\nu = f32[2] parameter(1)\ni = s32[] parameter(2)\n"
        "b = f32[8] negate(a)\nc = f32[8] dynamic-update-slice(b, u, i)\n"
        "ROOT d = f32[8] negate(c)"
    )
    assert same(found.by_value["b", ()], found.by_value["c", ()])


def test_other_memory_takes_nothing():
    found = follow("a = f32[8]{0:S(5)} parameter(0)\nROOT b = f32[8] copy(a)")
    assert found.by_value["a", ()].num_bytes == 0


@pytest.mark.parametrize(
    "line",
    ["bitcast()", "get-tuple-element(), index=0", "get-tuple-element(a), index=3"],
)
def test_operands_that_are_not_there(line):
    found = follow(f"a = f32[8] parameter(0)\nROOT b = f32[8] {line}")
    assert span(found, "b") == (1, 2)
