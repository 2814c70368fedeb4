import pytest

from profiling._collectives.ops import CollectiveOp, collective_ops
from profiling._targets.target import Target
from profiling._timeline.collective_cost import CollectiveCosts
from tests.profiling.hlo_files import SUM, entry

MB = 1_000_000
ON = "channel_id=1, use_global_device_ids=true, replica_groups"
GPU, PAIR, TPU = (Target.parse(t) for t in ("h100:1x8", "h100:2x8", "v5e:4x4"))
NVLINK = 0.82 * 450e9
IB = 0.82 * 50e9
ICI = 0.86 * 50e9  # of one port


def op(line: str, num_devices: int, size: int = 4 * MB) -> CollectiveOp:
    """The only collective of f32[size/4] x."""
    module = entry(
        f"x = f32[{size // 4}] parameter(0)\nROOT y = {line}",
        header=f", num_partitions={num_devices}",
        before=SUM,
    )
    (found,) = collective_ops(module)
    return found


def seconds(target: Target, found: CollectiveOp) -> float:
    return CollectiveCosts(target).seconds(found)


GATHER = f"f32[8000000] all-gather(x), dimensions={{0}}, {ON}={{{{0,1,2,3,4,5,6,7}}}}"
REDUCE = f"f32[1000000] all-reduce(x), to_apply=sum, {ON}="


def test_a_ring_inside_of_a_host():
    """32 MB gathered by 8: 7 steps of 3.4 us, 28 MB over NVLink."""
    found = op(GATHER, 8)
    assert found.wire_bytes == 28 * MB
    expected = 8.4e-6 + 7 * 3.4e-6 + 28 * MB / NVLINK
    assert seconds(GPU, found) == pytest.approx(expected)


def test_an_all_reduce_goes_around_twice():
    """40 MB by 8: 14 steps, 2 x 7/8 x 40 MB = 70 MB."""
    line = f"f32[10000000] all-reduce(x), to_apply=sum, {ON}=[1,8]<=[8]"
    expected = 8.4e-6 + 14 * 3.4e-6 + 70 * MB / NVLINK
    assert seconds(GPU, op(line, 8, 40 * MB)) == pytest.approx(expected)


def test_small_ones_use_the_protocol_for_small_ones():
    """4 bytes: 6.6 us and 14 steps of 0.18 x 3.4 us."""
    found = op("f32[1] all-reduce(x), to_apply=sum, " + ON + "=[1,8]<=[8]", 8, 4)
    assert seconds(GPU, found) == pytest.approx(6.6e-6 + 14 * 0.18 * 3.4e-6, rel=1e-3)


def test_over_hosts_each_device_sends_its_part():
    """32 MB reduced by 16 on 2 hosts, by rings through every network card.

    Inside 2 x 7/8 x 32 MB = 56 MB over NVLink (152 us); between hosts 2 x 1/2 x 32 MB
    over 8 cards, 4 MB each (98 us). The slower counts; 2 x 7 steps inside, 2 between.
    """
    line = f"f32[8000000] all-reduce(x), to_apply=sum, {ON}=[1,16]<=[16]"
    found = op(line, 16, 32 * MB)
    steps = 14 * 3.4e-6 + 2 * 14e-6
    assert seconds(PAIR, found) == pytest.approx(8.4e-6 + steps + 56 * MB / NVLINK)


def test_over_hosts_alone_the_network_counts():
    """4 MB reduced by pairs, one of each host: 2 x 1/2 x 4 MB over one card."""
    found = op(REDUCE + "[8,2]<=[2,8]T(1,0)", 16)
    costs = CollectiveCosts(PAIR)
    expected = 8.4e-6 + 2 * 14e-6 + 4 * MB / IB
    assert costs.seconds(found) == pytest.approx(expected)
    assert costs.wire(found) == "ib"


def test_all_to_all_sends_to_each():
    """4 MB over 8: 7 sends of 0.5 MB."""
    found = op(f"f32[1000000] all-to-all(x), dimensions={{0}}, {ON}=[1,8]<=[8]", 8)
    expected = 8.4e-6 + 7 * 3.4e-6 + 3.5 * MB / NVLINK
    assert seconds(GPU, found) == pytest.approx(expected)


def test_all_to_all_over_hosts():
    """4 MB over 16 on 2 hosts: 8 of 16 pieces leave, in one round of 8."""
    found = op(f"f32[1000000] all-to-all(x), dimensions={{0}}, {ON}=[1,16]<=[16]", 16)
    expected = 8.4e-6 + 7 * 3.4e-6 + 14e-6 + 2 * MB / IB
    assert seconds(PAIR, found) == pytest.approx(expected)


def test_a_permute_is_one_step():
    pairs = "channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}"
    found = op(f"f32[1000000] collective-permute(x), {pairs}", 8)
    assert seconds(GPU, found) == pytest.approx(8.4e-6 + 3.4e-6 + 4 * MB / NVLINK)
    assert CollectiveCosts(GPU).wire(found) == "nvlink"


def test_a_permute_that_crosses_hosts_waits_for_the_network():
    pairs = "channel_id=1, source_target_pairs={{0,1},{7,8}}"
    found = op(f"f32[1000000] collective-permute(x), {pairs}", 16)
    # 0 and 1 are one group, 7 and 8 another, which is the slower
    assert seconds(PAIR, found) == pytest.approx(8.4e-6 + 14e-6 + 4 * MB / IB)


def test_rows_and_planes_of_a_torus():
    """v5e:4x4 has no rings: a row has one port of 50 GB/s, the plane two.

    Devices 0, 1, 4 and 5 are a row (a host has 2 x 2 chips): 3 hops and 3 of 4 MB. The
    16 of the plane: 6 hops.
    """
    costs = CollectiveCosts(TPU)
    row = op(f"f32[4000000] all-gather(x), dimensions={{0}}, {ON}={{{{0,1,4,5}}}}", 16)
    assert [TPU.place(d)[1] for d in (0, 1, 4, 5)] == [0, 0, 0, 0]
    expected = 2e-6 + 3 * 1e-6 + 12 * MB / ICI
    assert costs.seconds(row) == pytest.approx(expected)
    plane = op(f"f32[16000000] all-gather(x), dimensions={{0}}, {ON}=[1,16]<=[16]", 16)
    expected = 2e-6 + 6 * 1e-6 + 60 * MB / (2 * ICI)
    assert costs.seconds(plane) == pytest.approx(expected)


def test_all_to_all_on_a_torus_crosses_its_middle():
    """4 MB of each of a row's 4: its 2 left ones send half of theirs, 4 MB, one way."""
    line = f"f32[1000000] all-to-all(x), dimensions={{0}}, {ON}={{{{0,1,4,5}}}}"
    expected = 2e-6 + 3 * 1e-6 + 4 * MB / ICI
    assert seconds(TPU, op(line, 16)) == pytest.approx(expected)
    # 16 in a ring of v5e:16x16: 8 x 2 MB over 2 ports, each way
    ring = Target.parse("v5e:16x16")
    row = ",".join(str(d) for d in range(256) if ring.place(d)[1] == 0)
    line = f"f32[1000000] all-to-all(x), dimensions={{0}}, {ON}={{{{{row}}}}}"
    expected = 2e-6 + 8 * 1e-6 + 8 * MB / ICI
    assert seconds(ring, op(line, 256)) == pytest.approx(expected)


def test_permutes_of_a_torus_leave_by_their_own_ports():
    costs = CollectiveCosts(TPU)
    forth = op(
        "f32[1000000] collective-permute(x), channel_id=1,"
        " source_target_pairs={{0,1},{1,2},{2,3},{3,0}}",
        16,
    )
    back = op(
        "f32[1000000] collective-permute(x), channel_id=1,"
        " source_target_pairs={{1,0},{2,1},{3,2},{0,3}}",
        16,
    )
    assert costs.seconds(forth) == pytest.approx(2e-6 + 1e-6 + 4 * MB / ICI)
    assert (costs.wire(forth), costs.wire(back)) == ("ici +1", "ici -1")
    gather = op(f"f32[16000000] all-gather(x), dimensions={{0}}, {ON}=[1,16]<=[16]", 16)
    assert costs.wire(gather) == "ici"


def test_nothing_moves_in_a_group_of_one():
    found = op(REDUCE + "{{0},{1},{2},{3},{4},{5},{6},{7}}", 8)
    assert seconds(GPU, found) == 0


def test_no_groups_are_all_devices():
    line = "f32[1000000] all-reduce(x), to_apply=sum, channel_id=1"
    found = op(line + ", use_global_device_ids=true", 8)
    whole = op(REDUCE + "{{0,1,2,3,4,5,6,7}}", 8)
    assert seconds(GPU, found) == seconds(GPU, whole)


def test_groups_of_a_pod_are_looked_at_once(monkeypatch):
    target = Target.parse("v5e:16x16")
    costs = CollectiveCosts(target)
    found = op(REDUCE + "[16,16]<=[256]", 256)
    first = costs.seconds(found)
    monkeypatch.setattr(CollectiveCosts, "_widest", None)
    assert costs.seconds(found) == first
    assert costs.wire(found) == "ici"


def test_an_all_reduce_that_is_sliced_costs_as_one():
    module = entry(
        "x = f32[1000000] parameter(0)\n"
        f"r = f32[1000000] all-reduce(x), to_apply=sum, {ON}=[1,8]<=[8]\n"
        "p = u32[] partition-id()\nn = u32[] constant(125000)\n"
        "m = u32[] multiply(p, n)\ni = s32[] convert(m)\n"
        "ROOT s = f32[125000] dynamic-slice(r, i), dynamic_slice_sizes={125000}",
        header=", num_partitions=8",
        before=SUM,
    )
    (found,) = collective_ops(module)
    plain = op(REDUCE + "[1,8]<=[8]", 8)
    assert found.form == "all-reduce + slice"
    assert seconds(GPU, found) == pytest.approx(seconds(GPU, plain))
