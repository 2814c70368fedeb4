"""How matmuls were split, against what is known of the field case."""

import dataclasses

from profiling._case import Case
from profiling._splits import Splits
from tests.profiling import field_case, finding_pages


def test_pieces_ways_and_sums():
    case = Case(*field_case.compiled())
    up, down = (case.splits.of(op) for op, _ in case.forward_dots)
    assert up is not None and down is not None
    assert (up.piece, up.ways, up.sums) == ((1600, 1200), (1, 8), 1)
    assert (down.piece, down.ways, down.sums) == ((100, 1280), (16, 1), 1)


def test_sums_over_a_split_dim():
    case = finding_pages.case("tensor-across-hosts")
    splits = {name: case.splits.of(op) for op, name in case.forward_dots}
    up, down = splits["up.weight"], splits["down.weight"]
    assert up is not None and up.ways == (8, 2) and up.sums == 1
    assert down is not None and down.ways == (8, 1) and down.sums == 2


def test_nothing_is_known_without_the_partitioned_module():
    program, schedule = field_case.compiled()
    case = Case(program, schedule)
    bare = dataclasses.replace(schedule, compiled=None)
    splits = Splits(case.ops, bare)
    assert not splits and case.splits
    assert splits.of(case.forward_dots[0][0]) is None
