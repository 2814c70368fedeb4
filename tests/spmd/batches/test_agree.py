"""Hosts that disagree are found and named."""

import dataclasses

import pytest
import torch

from spmd import Mesh
from spmd._batches import hosts
from spmd._batches.agree import COLUMNS, check_hosts, compare, fingerprint
from spmd._batches.batch import plan_batch

ONE_PART = ((0, 1), (0, 1))
TWO_PARTS = ((0,), (1,))
HOSTS = ((0, 1, 2, 3), (4, 5, 6, 7))
NAMES = ["batch['x']", "batch['y']"]


def plan(mesh=None, **tensors):
    made = plan_batch(tensors, mesh or Mesh({"fsdp": 8}))
    return dataclasses.replace(made, hosts=HOSTS)


def test_hosts_that_agree():
    assert compare(NAMES, [[9, 1, 2], [9, 1, 2]], [ONE_PART, ONE_PART]) is None
    assert compare(NAMES, [[9, 1, 2], [9, 3, 4]], [TWO_PARTS, TWO_PARTS]) is None


@pytest.mark.parametrize(
    ("sums", "parts", "text"),
    [
        (
            [[9, 1, 2], [9, 1, 3]],
            [ONE_PART, ONE_PART],
            r"0 and 1 .* rows of batch\['y'\]",
        ),
        (
            [[9, 1, 2], [8, 1, 2]],
            [ONE_PART, ONE_PART],
            "0 and 1 differ in names, shapes",
        ),
        (
            [[9, 1, 5], [9, 2, 5], [9, 1, 5], [9, 3, 5]],
            [((0,), (1,), (0,), (1,)), ((),) * 4],
            r"processes 1 and 3 must pass the same rows of batch\['x'\].* 2 parts",
        ),
        (
            [[9, 1, 5], [9, 2, 5], [9, 1, 5], [9, 2, 6]],
            [((0,), (1,), (0,), (1,)), ((),) * 4],
            r"processes 0 and 3 must pass the same rows of batch\['y'\]",
        ),
    ],
)
def test_hosts_that_disagree(sums, parts, text):
    with pytest.raises(ValueError, match=text):
        compare(NAMES, sums, parts)


def test_hosts_that_all_pass_the_same_rows():
    text = compare(NAMES, [[9, 1, 2], [9, 1, 2]], [TWO_PARTS, ONE_PART])
    assert text is not None
    assert "all processes pass the same rows of batch['x']" in text
    assert "each row 2 times" in text


def test_many_tensors_share_the_last_column():
    names = [f"batch[{i}]" for i in range(100)]
    base = list(range(COLUMNS))
    other = [*base[:-1], -1]
    with pytest.raises(ValueError, match=r"rows of batch\[62\]"):
        compare(names, [base, other], [ONE_PART] * 100)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.bfloat16, torch.int64, torch.cfloat]
)
def test_fingerprints_see_values_shapes_and_dtypes(dtype):
    x = torch.tensor([0, 1] * 4).to(dtype)
    one = fingerprint(plan(x=x, n=torch.tensor(3)))
    assert len(one) == COLUMNS
    assert all(0 <= n < 2**63 for n in one)
    assert one == fingerprint(plan(x=x.clone(), n=torch.tensor(3)))
    flipped = fingerprint(plan(x=x.flip(0), n=torch.tensor(3)))
    assert [i for i in range(COLUMNS) if one[i] != flipped[i]] == [1]
    scalar = fingerprint(plan(x=x, n=torch.tensor(4)))
    assert [i for i in range(COLUMNS) if one[i] != scalar[i]] == [2]
    reshaped = fingerprint(plan(x=x[:, None], n=torch.tensor(3)))
    assert [i for i in range(COLUMNS) if one[i] != reshaped[i]] == [0]


def test_tensors_beyond_the_columns_count_too():
    tensors = {f"t{i}": torch.tensor(i) for i in range(70)}
    one = fingerprint(plan(**tensors))
    two = fingerprint(plan(**{**tensors, "t69": torch.tensor(0)}))
    assert [i for i in range(COLUMNS) if one[i] != two[i]] == [COLUMNS - 1]


def test_meta_tensors_have_no_values():
    assert fingerprint(plan(x=torch.ones(8, device="meta")))[1] != 0


def exchange_with(other):
    """What `exchange` gives where host 1 is faked to have the numbers `other`."""
    return lambda mine: [list(mine)] * 4 + [list(other)] * 4


def test_check_over_faked_hosts(monkeypatch):
    mesh = Mesh({"tensor": 2, "fsdp": 4})
    mine = plan(mesh, x=torch.arange(8))
    same = fingerprint(plan(mesh, x=torch.arange(8)))
    monkeypatch.setattr(hosts, "exchange", exchange_with(same))
    check_hosts(mine)
    monkeypatch.setattr(hosts, "exchange", exchange_with([same[0], 5, *same[2:]]))
    with pytest.raises(ValueError, match=r"must pass the same rows of batch\['x'\]"):
        check_hosts(mine)


def test_check_warns_of_repeated_rows(monkeypatch):
    mine = plan(x=torch.arange(8))
    monkeypatch.setattr(hosts, "exchange", exchange_with(fingerprint(mine)))
    with pytest.warns(UserWarning, match="all processes pass the same rows"):
        check_hosts(mine)


def test_check_on_the_devices():
    """The real exchange: one process answers for all devices, so both agree."""
    check_hosts(plan(Mesh({"tensor": 2, "fsdp": 4}), x=torch.arange(8)))


def test_one_process_is_not_checked(monkeypatch):
    monkeypatch.setattr(hosts, "exchange", None)
    check_hosts(plan_batch(torch.ones(8), Mesh({"fsdp": 8})))
