"""The verdict, at and around where it changes."""

import pytest

from profiling._profile.profile import HostTime, Spent
from profiling._profile.verdict import IDLE_SHARE, shares_of, verdict


def spent(
    compute: float, exposed: float, gap: float, data: float, host: float
) -> Spent:
    return Spent(
        compute + exposed + gap + data + host, compute, exposed, gap, data, host
    )


@pytest.mark.parametrize(
    ("parts", "kind"),
    [
        ((100, 0, 0, 0, 0), "compute-bound"),
        ((50, 50, 0, 0, 0), "compute-bound"),
        ((49, 51, 0, 0, 0), "communication-bound"),
        ((40, 50, 10, 0, 0), "compute-bound"),  # gaps are of the program
        ((81, 0, 0, 0, 19), "compute-bound"),
        ((80, 0, 0, 0, 20), "host-bound"),
        ((80, 0, 0, 20, 0), "input-bound"),
        ((80, 0, 0, 10, 10), "input-bound"),
        ((80, 0, 0, 9, 11), "host-bound"),
        ((0, 70, 0, 0, 30), "host-bound"),
    ],
    ids=str,
)
def test_kinds(parts, kind):
    found = verdict(spent(*parts), ())
    assert found.kind == kind
    assert sum(found.shares.values()) == pytest.approx(1)
    assert "%" in found.why


def test_what_the_host_did_most_while_devices_were_idle():
    times = (
        HostTime("data", 9, 9),  # judged by itself
        HostTime("compile", 1, 1),
        HostTime("dispatch", 8, 2),
        HostTime("wait", 9, 0),
    )
    found = verdict(spent(5, 0, 0, 0, 5), times)
    assert found.why.endswith("for 2 s of it the host handed programs to the devices")


def test_shares_of_nothing():
    assert set(shares_of(spent(0, 0, 0, 0, 0)).values()) == {0}
    assert 0 < IDLE_SHARE < 1
