import pytest

from profiling._hlo.call_order import check_calls
from profiling._hlo.load import load_module
from tests.profiling.hlo_files import SUM, TEXTS, parse

CALL = "  p = f32[] parameter(0)\n  ROOT c = f32[] call(p), to_apply={name}\n"


@pytest.mark.parametrize("path", TEXTS, ids=lambda p: p.name)
def test_what_xla_writes(path):
    check_calls(load_module(path))


def test_a_circle():
    body = CALL.replace("{name}", "f")
    circle = f"HloModule m\nf {{\n{body}}}\n{SUM}ENTRY e {{\n{body}}}\n"
    with pytest.raises(
        ValueError, match="test: c in f calls 'f', which does not stand"
    ):
        check_calls(parse(circle))


def test_a_callee_that_comes_later():
    body = CALL.replace("{name}", "g")
    later = f"HloModule m\nf {{\n{body}}}\ng {{\n  ROOT q = f32[] parameter(0)\n}}\n"
    entry = CALL.replace("{name}", "f")
    with pytest.raises(ValueError, match="c in f calls 'g'"):
        check_calls(parse(later + f"ENTRY e {{\n{entry}}}\n"))
