"""Schedules with times worked out by hand, on the nominal CPU of `targets.yaml`.

It has 1e11 FLOP/s, 2e10 bytes/s of memory and 1e10 bytes/s between devices, with 10 us
a step; a kernel and a collective take 1 us besides. So in milliseconds:

    MATMUL   [100, 1000] x [1000, 1000]: 2e8 FLOPs                      2 + 0.001
    GATHER   of 10 MB by 4 devices: 3 steps, 3 x 10 MB of 40 are sent   3 + 0.03 + 0.001
"""

import pytest

from profiling._collectives.ops import collective_ops
from profiling._hlo.module import Module
from profiling._targets.target import Target
from profiling._timeline.simulate import timeline
from profiling._timeline.timeline import Timeline
from tests.profiling.hlo_files import entry

MATMUL, GATHER = 2.001, 3.031
CPU = Target.parse("cpu:4")
HEADER = ", is_scheduled=true, num_partitions=4"
GROUPS = "use_global_device_ids=true, replica_groups=[1,4]<=[4], dimensions={0}"
FOUND = "(f32[2500000], f32[10000000])"
INPUTS = (
    "a = f32[100,1000] parameter(0)\nb = f32[1000,1000] parameter(1)\n"
    "x = f32[2500000] parameter(2)\n"
)


def start(name: str, channel: int = 1) -> str:
    return f"{name} = {FOUND} all-gather-start(x), channel_id={channel}, {GROUPS}\n"


def done(name: str) -> str:
    return f"{name}_done = f32[10000000] all-gather-done({name})\n"


def matmul(name: str) -> str:
    return (
        f"{name} = f32[100,1000] dot(a, b), lhs_contracting_dims={{1}},"
        f" rhs_contracting_dims={{0}}\n"
    )


LAST = "ROOT r = (f32[100,1000]) tuple(a)"


def replayed(module: Module, target: Target = CPU) -> Timeline:
    found = timeline(module, target, collective_ops(module))
    total = found.compute_s + found.exposed_s
    assert found.step_s == pytest.approx(total)
    for overlap in found.overlaps.values():
        assert overlap.hidden_s + overlap.exposed_s == pytest.approx(overlap.total_s)
    return found


def lines(*body: str, before: str = "") -> Timeline:
    """Replay an entry of these lines."""
    return replayed(entry(INPUTS + "".join(body) + LAST, header=HEADER, before=before))


def ms(found: Timeline, name: str) -> list[float]:
    """Milliseconds of a collective, hidden and exposed."""
    overlap = found.overlaps[name]
    return [1e3 * overlap.hidden_s, 1e3 * overlap.exposed_s]


def about(hidden: float, exposed: float) -> object:
    return pytest.approx([hidden, exposed])


def test_behind_two_matmuls():
    """The gather ends at 3.031, the matmuls at 4.002."""
    found = lines(start("g"), matmul("m"), matmul("n"), done("g"))
    assert found.step_s == pytest.approx(2 * MATMUL * 1e-3)
    assert ms(found, "g") == about(GATHER, 0)
    assert found.overlaps["g"].overlaps_matmul


def test_behind_one_matmul():
    """The matmul ends at 2.001; compute waits until 3.031."""
    found = lines(start("g"), matmul("m"), done("g"), matmul("n"))
    assert found.step_s == pytest.approx((GATHER + MATMUL) * 1e-3)
    assert found.compute_s == pytest.approx(2 * MATMUL * 1e-3)
    assert ms(found, "g") == about(MATMUL, 1.03)


@pytest.mark.parametrize(
    "collective",
    [
        f"g = f32[10000000] all-gather(x), channel_id=1, {GROUPS}\n",
        start("g") + done("g"),
        start("g").rstrip()
        + ', backend_config={"collective_backend_config":{"is_sync":true}}\n'
        + matmul("m")
        + done("g"),
    ],
)
def test_a_synchronous_one_is_exposed_as_a_whole(collective):
    found = lines(collective, matmul("n"))
    assert ms(found, "g") == about(0, GATHER)
    assert not found.overlaps["g"].overlaps_matmul
    kinds = [e.kind for e in found.events]
    assert kinds[0] == "all-gather"
    assert found.events[1].start_s == pytest.approx(GATHER * 1e-3)


def test_two_share_a_wire():
    """g from 0 to 3.031, h from there to 6.062; the matmul until 2.001."""
    found = lines(start("g"), start("h", 2), matmul("m"), done("g"), done("h"))
    assert found.step_s == pytest.approx(2 * GATHER * 1e-3)
    assert ms(found, "g") == about(MATMUL, 1.03)
    assert ms(found, "h") == about(0, GATHER)
    begins = {e.name: e.start_s for e in found.events}
    assert begins["h"] == pytest.approx(GATHER * 1e-3)


def test_waiting_for_the_second_is_waiting_for_the_first_too():
    found = lines(start("g"), start("h", 2), matmul("m"), done("h"), done("g"))
    assert ms(found, "g") == about(MATMUL, 1.03)
    assert ms(found, "h") == about(0, GATHER)


def test_two_on_different_links_run_at_the_same_time():
    """Pairs in a host, and pairs of hosts, of 2 x 8 GPUs."""
    at = (
        "channel_id={}, use_global_device_ids=true, replica_groups={}, dimensions={{0}}"
    )
    found = "(f32[2500000], f32[5000000])"
    body = INPUTS + "".join(
        f"{name} = {found} all-gather-start(x), {at.format(i, groups)}\n"
        for i, (name, groups) in enumerate(
            (("g", "[8,2]<=[16]"), ("h", "[8,2]<=[2,8]T(1,0)")), start=1
        )
    )
    body += "".join(
        f"{n}_done = f32[5000000] all-gather-done({n})\n" for n in ("g", "h")
    )
    module = entry(body + LAST, header=HEADER.replace("4", "16"))
    line = replayed(module, Target.parse("h100:2x8"))
    assert [e.start_s for e in line.events] == [0, 0]
    assert line.step_s == pytest.approx(max(e.duration_s for e in line.events))


STATE = "(s32[], f32[100,1000], f32[1000,1000], f32[2500000])"


def loop(name: str, *body: str) -> str:
    """The computations of a loop."""
    return f"""
{name} {{
  p = {STATE} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  a = f32[100,1000] get-tuple-element(p), index=1
  b = f32[1000,1000] get-tuple-element(p), index=2
  x = f32[2500000] get-tuple-element(p), index=3
  {"".join(body)}
  ROOT t = {STATE} tuple(i, a, b, x)
}}
{name}_condition {{
  q = {STATE} parameter(0)
  ROOT c = pred[] constant(true)
}}
"""


def run_loop(name: str, trips: int | None = 5) -> str:
    """The instructions that run it."""
    count = f', backend_config={{"known_trip_count":{{"n":"{trips}"}}}}'
    return (
        f"z = s32[] constant(0)\ns = {STATE} tuple(z, a, b, x)\n"
        f"w = {STATE} while(s), condition={name}_condition, body={name}"
        f"{count if trips else ''}\n"
    )


def test_a_loop_is_run_once_and_stretched():
    """A trip takes 3.031: the matmul, and 1.03 more for the gather; 5 trips."""
    body = loop("body", start("g"), matmul("m"), done("g"))
    found = lines(matmul("n"), run_loop("body"), before=body)
    assert found.step_s == pytest.approx((MATMUL + 5 * GATHER) * 1e-3)
    assert ms(found, "g") == about(5 * MATMUL, 5 * 1.03)
    drawn = {e.name: e for e in found.events}
    assert len(found.events) == 3
    assert (drawn["m"].num_runs, drawn["g"].num_runs, drawn["n"].num_runs) == (5, 5, 1)
    assert drawn["m"].start_s == pytest.approx(MATMUL * 1e-3)
    assert drawn["m"].duration_s == pytest.approx(5 * MATMUL * 1e-3)
    assert found.flops == 6 * 2e8


def test_a_loop_that_begins_while_a_wire_is_busy():
    """g holds the wire until 3.031, so the first trip's h ends at 6.062, not 3.031.

    It waits 1.03 for g, after its matmul, and 3.031 for h; the other four trips wait
    1.03 for h each.
    """
    body = loop("body", start("h", 2), matmul("m"), done("h"))
    found = lines(start("g"), run_loop("body"), done("g"), before=body)
    assert found.step_s == pytest.approx((2 * GATHER + 4 * GATHER) * 1e-3)
    assert ms(found, "g") == about(MATMUL, 1.03)
    assert ms(found, "h") == about(4 * MATMUL, GATHER + 4 * 1.03)
    runs = [e.num_runs for e in found.events if e.name == "m"]
    assert runs == [1, 4]


def test_loops_in_loops():
    bodies = loop("inner", matmul("m")) + loop("outer", run_loop("inner", 4))
    found = lines(run_loop("outer"), before=bodies)
    assert found.step_s == pytest.approx(20 * MATMUL * 1e-3)
    (event,) = found.events
    assert event.num_runs == 20
    assert event.duration_s == pytest.approx(found.step_s)


def test_a_loop_without_a_trip_count_has_one_trip():
    found = lines(run_loop("body", None), before=loop("body", matmul("m")))
    assert found.step_s == pytest.approx(MATMUL * 1e-3)


BRANCHES = f"""
short {{
  a = f32[100,1000] parameter(0)
  ROOT n = f32[100,1000] negate(a)
}}
long {{
  x = f32[2500000] parameter(0)
  {start("h", 2)}
  ROOT {done("h")}
}}
"""


def test_the_branch_that_takes_longest():
    """A gather of 3.031 against a kernel of 0.8 MB: 0.041."""
    condition = "k = pred[] parameter(3)\n"
    either = (
        "v = f32[100,1000] conditional(k, x, a), true_computation=long,"
        " false_computation=short\n"
    )
    found = lines(condition, matmul("m"), either, matmul("n"), before=BRANCHES)
    assert found.step_s == pytest.approx((2 * MATMUL + GATHER) * 1e-3)
    assert [e.name for e in found.events] == ["m", "h", "n"]


def test_a_collective_of_the_other_branch_has_no_time():
    slow = BRANCHES.replace(
        "ROOT n = f32[100,1000] negate(a)",
        "b = f32[1000,1000] constant({...})\n  "
        + matmul("m")
        + "  "
        + matmul("m2")
        + "  ROOT n = f32[100,1000] add(m, m2)",
    )
    found = lines(
        "k = pred[] parameter(3)\n",
        "v = f32[100,1000] conditional(k, x, a), true_computation=long,"
        " false_computation=short\n",
        before=slow,
    )
    assert found.overlaps["h"].total_s == 0
    assert found.step_s == pytest.approx((2 * MATMUL + 0.061) * 1e-3)


def test_calls_run_in_line():
    called = f"f {{\n{INPUTS}{start('g')}{matmul('m')}{done('g')}{LAST}\n}}\n"
    found = lines("c = (f32[100,1000]) call(a, b, x), to_apply=f\n", before=called)
    assert ms(found, "g") == about(MATMUL, 1.03)


def test_copies_run_beside_compute():
    """10 MB at 2e10 bytes/s are 0.5: behind the matmul; five need 2.5.

    Waiting for a copy is no communication.
    """
    copies = "".join(
        f"c{i} = (f32[2500000], f32[2500000], u32[]) copy-start(x)\n" for i in range(5)
    )
    ends = "".join(f"d{i} = f32[2500000] copy-done(c{i})\n" for i in range(5))
    one = lines(copies.splitlines()[0] + "\n", matmul("m"), ends.splitlines()[0] + "\n")
    assert one.step_s == pytest.approx(MATMUL * 1e-3)
    five = lines(copies, matmul("m"), ends)
    assert five.step_s == five.compute_s == pytest.approx(2.5e-3)


def test_other_work_runs_beside_compute():
    """A wrapped matmul takes 2.001 beside another; its FLOPs count."""
    wrapped = f"f {{\n{INPUTS}ROOT {matmul('m')}}}\n"
    found = lines(
        "s = ((f32[100,1000], f32[1000,1000], f32[2500000]), f32[100,1000], s32[])"
        " async-start(a, b, x), calls=f\n",
        matmul("n"),
        "u = ((f32[100,1000], f32[1000,1000], f32[2500000]), f32[100,1000], s32[])"
        " async-update(s)\n",
        "d = f32[100,1000] async-done(u)\n",
        before=wrapped,
    )
    assert found.step_s == pytest.approx(MATMUL * 1e-3)
    assert found.flops == 2 * 2e8


def test_what_ends_in_another_computation_is_waited_for_at_the_end():
    """The start is in a called computation, and nothing there ends it."""
    called = (
        f"f {{\n{INPUTS}{start('g')}{matmul('m')}ROOT r = {FOUND} tuple(x, x)\n}}\n"
    )
    found = lines(f"c = {FOUND} call(a, b, x), to_apply=f\n", before=called)
    assert ms(found, "g") == about(MATMUL, 1.03)


def test_events_say_where_they_are_from():
    named = matmul("m").rstrip() + ', metadata={op_name="backward/layers.0.up/mm"}\n'
    (event,) = lines(named).events
    assert (event.phase, event.module) == ("backward", "layers.0.up")
    assert (event.stream, event.kind, event.num_runs) == ("compute", "matmul", 1)
