import pytest

from profiling._collectives.participants import connected, participants
from profiling._hlo.device_groups import DeviceGroups
from tests.profiling.hlo_files import entry


def groups(
    kind: str, said: str, *, replicas: int, partitions: int
) -> tuple[tuple[int, ...], ...]:
    module = entry(
        f"x = f32[8] parameter(0)\nROOT y = f32[8] {kind}(x){said}",
        header=f", replica_count={replicas}, num_partitions={partitions}",
    )
    return participants(kind, module.entry.root.attributes, module).groups


CHANNEL, GLOBAL = ", channel_id=1", ", use_global_device_ids=true"


@pytest.mark.parametrize(
    ("kind", "said", "replicas", "partitions", "expected"),
    [
        # ids of devices
        (
            "all-reduce",
            CHANNEL + GLOBAL + ", replica_groups={{0,3},{1,2}}",
            2,
            2,
            ((0, 3), (1, 2)),
        ),
        ("all-reduce", CHANNEL + GLOBAL, 1, 4, ((0, 1, 2, 3),)),
        # no channel: replicas, side by side for each partition
        ("all-reduce", ", replica_groups={{0,1}}", 2, 1, ((0, 1),)),
        ("all-reduce", ", replica_groups={{0,1}}", 2, 2, ((0, 2), (1, 3))),
        ("all-reduce", "", 2, 2, ((0, 2), (1, 3))),
        ("all-reduce", "", 1, 4, ((0,), (1,), (2,), (3,))),
        # channel alone: replicas with all their partitions
        ("all-reduce", CHANNEL + ", replica_groups={{0},{1}}", 2, 2, ((0, 1), (2, 3))),
        ("all-gather", CHANNEL + ", replica_groups={{0}}", 1, 4, ((0, 1, 2, 3),)),
        ("reduce-scatter", CHANNEL, 2, 2, ((0, 1, 2, 3),)),
        # channel alone, other kinds: partitions, for each replica
        (
            "all-to-all",
            CHANNEL + ", replica_groups={{0,1},{2,3}}",
            1,
            4,
            ((0, 1), (2, 3)),
        ),
        ("all-to-all", CHANNEL + ", replica_groups={{0,1}}", 2, 2, ((0, 1), (2, 3))),
        ("all-to-all", CHANNEL, 1, 2, ((0, 1),)),
        # ids that cannot be replicas, as a proto need not say how many there are
        ("all-reduce", ", replica_groups={{0,1},{2,3}}", 1, 4, ((0, 1), (2, 3))),
        (
            "all-reduce",
            CHANNEL + ", replica_groups={{0,1},{2,3}}",
            1,
            4,
            ((0, 1), (2, 3)),
        ),
        ("all-reduce", "", 1, 1, ((0,),)),
    ],
)
def test_what_the_numbers_mean(kind, said, replicas, partitions, expected) -> None:
    assert groups(kind, said, replicas=replicas, partitions=partitions) == expected


def test_a_permutes_chains() -> None:
    said = CHANNEL + ", source_target_pairs={{0,2},{2,0},{1,3},{3,1}}"
    found = groups("collective-permute", said, replicas=1, partitions=4)
    assert found == ((0, 2), (1, 3))
    assert connected([(5, 5)]) == DeviceGroups()
    assert connected([(i, i + 1) for i in range(4095)]).largest_group == 4096
