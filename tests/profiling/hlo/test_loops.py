import pytest

from profiling._hlo.loops import MAX_TRIPS, executions, loops
from profiling._hlo.module import Module
from tests.profiling.hlo_files import DATA, content, parse


def loop(
    *,
    start: str = "constant(0)",
    condition: str = "compare(i, n), direction=LT",
    bound: str = "constant(5)",
    step: str = "add(i, one)",
    config: str = "",
    extra: str = "",
) -> Module:
    """A while that counts, whose state is a counter, a limit and data."""
    return parse(f"""HloModule m
{extra}
cond {{
  p = (s32[], s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  m = s32[] get-tuple-element(p), index=1
  n = s32[] {bound}
  ROOT c = pred[] {condition}
}}
body {{
  q = (s32[], s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(q), index=0
  m = s32[] get-tuple-element(q), index=1
  x = f32[4] get-tuple-element(q), index=2
  one = s32[] constant(1)
  two = s32[] constant(2)
  j = s32[] {step}
  y = f32[4] add(x, x)
  ROOT t = (s32[], s32[], f32[4]) tuple(j, m, y)
}}
ENTRY e {{
  a = f32[4] parameter(0)
  d = s32[] parameter(1)
  zero = s32[] {start}
  seven = s32[] constant(7)
  s = (s32[], s32[], f32[4]) tuple(zero, seven, a)
  ROOT w = (s32[], s32[], f32[4]) while(s), condition=cond, body=body{config}
}}
""")


@pytest.mark.parametrize(
    ("given", "trips"),
    [
        ({}, 5),
        ({"start": "constant(2)"}, 3),
        ({"start": "constant(9)"}, 0),
        ({"condition": "compare(i, n), direction=LE"}, 6),
        ({"condition": "compare(n, i), direction=GT"}, 5),
        ({"condition": "compare(i, n), direction=NE"}, 5),
        ({"condition": "compare(i, m), direction=LT"}, 7),  # the limit is in the state
        ({"step": "add(i, two)"}, 3),  # 0, 2, 4
        (
            {
                "start": "constant(5)",
                "bound": "constant(0)",
                "step": "subtract(i, one)",
                "condition": "compare(i, n), direction=GT",
            },
            5,
        ),
        (
            {
                "start": "constant(1)",
                "bound": "constant(100)",
                "step": "multiply(i, two)",
            },
            7,
        ),  # 1, 2, 4, ... 64
        ({"start": "copy(seven)", "bound": "constant(8)"}, None),  # seven comes later
    ],
)
def test_trip_counts_are_derived(given, trips) -> None:
    if trips is None:
        with pytest.raises(ValueError, match="operand 'seven' is not defined before"):
            loop(**given)
        return
    (found,) = loops(loop(**given))
    assert (found.trip_count, found.is_derived) == (trips, True)
    assert (found.body, found.condition, found.computation) == ("body", "cond", "e")


@pytest.mark.parametrize(
    "given",
    [
        {"start": "copy(d)"},  # starts with data
        {"step": "subtract(i, one)"},  # never ends
        {"step": "copy(i)"},  # stands still
        {"bound": "constant(1000000)"},  # too long to follow
        {"step": 'custom-call(i), custom_call_target="f"'},
        {"condition": 'custom-call(i), custom_call_target="f"'},
    ],
)
def test_some_loops_have_none(given) -> None:
    (found,) = loops(loop(**given))
    assert (found.trip_count, found.is_derived) == (None, False)
    count = executions(loop(**given))["body"]
    assert (count.times, count.is_exact) == (1, False)
    assert "the loop w has no trip count" in count.doubt


def test_what_xla_says_is_believed() -> None:
    config = ', backend_config={"known_trip_count":{"n":"41"},"x":[]}'
    (found,) = loops(loop(config=config))
    assert (found.trip_count, found.is_derived) == (41, False)
    for broken in ('{"m":"41"}', '{"n":"x"}', '{"n":"-1"}', "{n}"):
        config = f', backend_config={{"known_trip_count":{broken}}}'
        (found,) = loops(loop(config=config))
        assert (found.trip_count, found.is_derived) == (5, True)


def test_counters_inside_of_fusions() -> None:
    extra = """
fstep {
  k = s32[] parameter(0)
  u = s32[] constant(3)
  ROOT v = s32[] add(k, u)
}
fcond {
  k = s32[] parameter(0)
  u = s32[] parameter(1)
  ROOT v = pred[] compare(k, u), direction=LT
}
"""
    module = loop(
        extra=extra,
        step="fusion(i), kind=kLoop, calls=fstep",
        condition="fusion(i, n), kind=kLoop, calls=fcond",
        bound="constant(10)",
    )
    (found,) = loops(module)
    assert found.trip_count == 4  # 0, 3, 6, 9
    counts = executions(module)
    assert counts["fstep"].times == 4
    assert counts["fcond"].times == 5  # the condition runs once more


def test_a_tpus_windowed_einsums() -> None:
    """Counters 0, 2 below 4: the loop is unrolled twice."""
    found = loops(parse(content(DATA / "tpu_v5e_windowed.txt.gz")))
    assert [(x.instruction.name, x.trip_count, x.is_derived) for x in found] == [
        ("while.6", 2, True),
        ("while.8", 2, True),
        ("while.7", 2, True),
    ]


def test_nested_loops_multiply() -> None:
    config = 'backend_config={"known_trip_count":{"n":"%d"}}'
    module = parse(f"""HloModule m
f {{
  p = f32[] parameter(0)
  ROOT r = f32[] add(p, p)
}}
unused {{
  ROOT p = f32[] parameter(0)
}}
always {{
  p = f32[] parameter(0)
  ROOT r = pred[] constant(true)
}}
inner {{
  p = f32[] parameter(0)
  ROOT r = f32[] fusion(p), kind=kLoop, calls=f
}}
outer {{
  p = f32[] parameter(0)
  q = f32[] call(p), to_apply=f
  ROOT r = f32[] while(q), condition=always, body=inner, {config % 3}
}}
wrapped {{
  p = f32[] parameter(0)
  ROOT r = f32[] negate(p)
}}
left {{
  p = f32[] parameter(0)
  ROOT r = f32[] fusion(p), kind=kLoop, calls=f
}}
right {{
  ROOT p = f32[] parameter(0)
}}
ENTRY e {{
  p = f32[] parameter(0)
  b = pred[] parameter(1)
  w = f32[] while(p), condition=always, body=outer, {config % 4}
  s = ((f32[]), f32[], s32[]) async-start(w), calls=wrapped
  u = ((f32[]), f32[], s32[]) async-update(s), calls=wrapped
  d = f32[] async-done(u), calls=wrapped
  ROOT c = f32[] conditional(b, d, d), true_computation=left, false_computation=right
}}
""")
    counts = executions(module)
    assert {name: c.times for name, c in counts.items()} == {
        "e": 1,
        "outer": 4,
        "inner": 12,
        "f": 4 + 12 + 1,
        "always": 4 * 4 + 5,
        "wrapped": 1,
        "left": 1,
        "right": 1,
        "unused": 0,
    }
    assert counts["inner"].is_exact
    assert counts["left"].doubt == "the conditional c may not take this branch"
    assert not counts["f"].is_exact


def test_the_limit_is_what_it_says() -> None:
    (found,) = loops(loop(bound=f"constant({MAX_TRIPS - 1})"))
    assert found.trip_count == MAX_TRIPS - 1


def test_a_counter_that_begins_outside_of_the_loops_function() -> None:
    """As a scan is before it is compiled: the while lies in a function of its own."""
    text = """HloModule m
cond {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(7)
  ROOT c = pred[] compare(i, n), direction=LT
}
body {
  p = (s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = f32[4] get-tuple-element(p), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  ROOT t = (s32[], f32[4]) tuple(j, x)
}
inner {
  first = s32[] parameter(1)
  x = f32[4] parameter(0)
  s = (s32[], f32[4]) tuple(first, x)
  ROOT w = (s32[], f32[4]) while(s), condition=cond, body=body
}
outer {
  x = f32[4] parameter(0)
  two = s32[] constant(2)
  ROOT w = (s32[], f32[4]) call(x, two), to_apply=inner
}
ENTRY e {
  x = f32[4] parameter(0)
  ROOT w = (s32[], f32[4]) call(x), to_apply=outer
}
"""
    (found,) = loops(parse(text))
    assert (found.trip_count, found.is_derived) == (5, True)
    assert executions(parse(text))["body"].times == 5
    twice = text.replace(
        "ROOT w = (s32[], f32[4]) call(x), to_apply=outer",
        "v = (s32[], f32[4]) call(x), to_apply=outer\n"
        "  ROOT w = (s32[], f32[4]) call(x), to_apply=outer",
    )
    (found,) = loops(parse(twice))
    assert found.trip_count == 5  # the function itself is called in one place
    again = text.replace(
        "ROOT w = (s32[], f32[4]) call(x, two), to_apply=inner",
        "v = (s32[], f32[4]) call(x, two), to_apply=inner\n"
        "  ROOT w = (s32[], f32[4]) call(x, two), to_apply=inner",
    )
    (found,) = loops(parse(again))
    assert found.trip_count is None  # other calls may begin elsewhere
