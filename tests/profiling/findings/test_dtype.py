"""Values that move wider than they are used."""

from profiling._findings.case import Case
from profiling._findings.dtype import wide_dtype
from tests.profiling import field_case, finding_pages


def test_an_annotation_before_a_cast():
    found = finding_pages.finding("wide-dtype")
    assert found.what == "[8192, 512] moves as f32, but is used as bf16"
    assert found.wire_bytes == 8192 * 512 * 4 // 8 * 7 // 8
    assert found.fix is not None
    assert found.fix.code == "turned = turned.to(torch.bfloat16)"


def test_afterwards_half_is_sent():
    found = finding_pages.finding("wide-dtype", after=True)
    assert found.fix is not None and found.fix.proof is not None
    saved = found.fix.proof.before.wire_bytes - found.fix.proof.after.wire_bytes
    assert saved == found.wire_bytes // 2


def test_nothing_where_all_is_of_one_dtype():
    assert wide_dtype(finding_pages.case("synchronous")) == []
    assert wide_dtype(Case(*field_case.compiled())) == []
