"""What the finders know of a step; its errors are in test_explain."""

from profiling._findings.case import Case
from tests.profiling import field_case, finding_pages


def test_axes_by_what_they_split():
    case = Case(*field_case.compiled())
    assert case.data_axes == ("fsdp", "replica")
    assert case.weight_axes == {"fsdp"}
    assert case.fsdp_axes == ("fsdp",)
    assert case.size(case.data_axes) == 16 and case.size(()) == 1
    case = finding_pages.case("tensor-across-hosts")
    assert case.weight_axes == {"tensor", "fsdp"}
    assert case.fsdp_axes == ("fsdp",)


def test_matmuls_of_the_forward_pass_with_their_weights():
    case = Case(*field_case.compiled())
    (up, first), (down, second) = case.forward_dots
    assert (first, second) == ("up.weight", "down.weight")
    assert case.row_dims(up) == ((0,), (1,))
    assert case.activation_of(down) is up
    assert case.activation_of(up) is case.ops.arguments[8]


def test_batches_and_what_moves():
    case = Case(*field_case.compiled())
    assert {v.name for v in case.batch} == {"x", "y"}
    assert len(case.moving) == 5
