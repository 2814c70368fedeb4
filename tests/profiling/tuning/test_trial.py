from contextlib import contextmanager

import pytest

from profiling._compiling.compiled import CompileError
from profiling._tuning.trial import Judge, Trial, best_of
from tests.profiling.schedules import GIB
from tests.profiling.tuned import H100, FakeCompiler, failure, made


def trial(step_s=1.0, **fields):
    return Trial("x", {}, step_s=step_s, **fields)


def judge(step, budget=10, **options):
    compiler = FakeCompiler(step)
    made = Judge(None, H100, budget=budget, compile=compiler, num_workers=2, **options)
    return made, compiler


@pytest.mark.parametrize(
    ("one", "other", "better"),
    [
        (trial(1.0), trial(1.1), True),
        (trial(1.1), trial(1.0), False),
        (trial(0.9995), trial(1.0), False),  # as good as the same
        (trial(2.0), trial(1.0, over_bytes=1), True),
        (trial(1.0, over_bytes=1), trial(2.0), False),
        (trial(2.0, over_bytes=1), trial(1.0, over_bytes=2), True),
        (trial(1.0, over_bytes=2), trial(1.0, over_bytes=2), False),
        (trial(1.0, over_bytes=2), trial(None), True),
        (trial(None), trial(1.0, over_bytes=2), False),
        (trial(None), trial(None), False),
        (trial(None), trial(1.0), False),
    ],
)
def test_better(one, other, better):
    assert one.is_better(other) is better


def test_the_first_of_those_that_are_the_same():
    same = [trial(1.0), trial(0.9999), trial(1.0)]
    assert best_of(same) is same[0]
    assert best_of([trial(2.0), *same]) is same[0]


def test_share():
    assert trial(exposed_s=1.0, hidden_s=3.0).overlapped_share == 0.75
    assert trial(exposed_s=0.0, hidden_s=0.0).overlapped_share is None
    assert trial(None).overlapped_share is None


def test_figures():
    judged, _ = judge(lambda flags: made(2.0, memory_bytes=81 * GIB, exposed_s=0.5))
    (found,) = judged.try_all([("a", {"xla_a": 1})])
    assert found == Trial(
        "a",
        {"xla_a": 1},
        step_s=2.0,
        exposed_s=0.5,
        hidden_s=3.0,
        memory_bytes=81 * GIB,
        over_bytes=GIB,
    )
    assert not found.fits
    assert found.as_json()["flags"] == {"xla_a": 1}
    assert judged.versions["jaxlib"] == "0.10.2"


def test_each_set_once():
    judged, compiler = judge(lambda flags: 1.0 + len(flags))
    first = judged.try_all([("a", {"x": 1, "y": 2}), ("b", {}), ("a again", {"x": 1})])
    second = judged.try_all([("c", {"y": 2, "x": 1}), ("d", {})])
    assert second == first[:2]
    assert len(compiler.calls) == 3
    assert [t.label for t in judged.trials] == ["a", "b", "a again"]
    assert judged.known({"x": 1}) is first[2]
    assert judged.known({"x": 2}) is None


def test_the_budget():
    judged, compiler = judge(lambda flags: 1.0, budget=3)
    sets = [(str(i), {"x": i}) for i in range(5)]
    assert [t.label for t in judged.try_all(sets, keep=1)] == ["0", "1"]
    assert judged.left == 1
    assert judged.try_all(sets[2:], keep=1) == []
    assert [t.label for t in judged.try_all(sets)] == ["0", "1", "2"]
    assert judged.try_all(sets[3:]) == []
    assert len(compiler.calls) == 3


def test_what_fails_is_a_trial():
    errors = {
        1: failure("flag", words="first\nNo such option\n"),
        2: failure("memory", over_bytes=7),
    }
    judged, _ = judge(lambda flags: errors.get(flags.get("x"), 1.0))
    sets = [("a", {"x": 1}), ("b", {"x": 2}), ("c", {})]
    refused, big, fine = judged.try_all(sets)
    assert (refused.step_s, refused.error) == (None, "flag: No such option")
    assert (big.over_bytes, big.fits) == (7, False)
    assert big.error == "memory: h100:1x8: memory"
    assert fine.fits


@pytest.mark.parametrize("kind", ["missing extra", "lock"])
def test_what_no_set_helps_against(kind):
    judged, _ = judge(lambda flags: failure(kind))
    with pytest.raises(CompileError, match=f"h100:1x8: {kind}"):
        judged.try_all([("a", {})])


def test_it_says_what_it_compiles():
    said = []

    @contextmanager
    def watch(what):
        said.append(what)
        yield

    judged, _ = judge(lambda flags: 1.0, watch=watch)
    judged.try_all([("a", {})])
    judged.try_all([("a", {}), ("b", {"x": 1})])
    assert said == ["compiling 1 of at most 10: a", "compiling 2 of at most 10: b"]
