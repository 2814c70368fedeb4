import pytest

from profiling._timeline.efficiency import EFFICIENCY, LOW_LATENCY


@pytest.mark.parametrize("kind", ["gpu", "tpu", "cpu"])
def test_shares_are_shares(kind):
    found = EFFICIENCY[kind]
    for name in ("matmul", "memory", "link", "vector"):
        assert 0 < getattr(found, name) <= 1, name
    assert found.vector_memory >= 1
    assert 0 < found.launch_s < 1e-4
    assert 0 < found.collective_s < 1e-4


def test_small_messages_trade_bandwidth_for_latency():
    assert LOW_LATENCY.base_s < EFFICIENCY["gpu"].collective_s
    assert LOW_LATENCY.latency < 1
    assert LOW_LATENCY.bandwidth < 1
