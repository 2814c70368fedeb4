import pytest

from flags import _oracle
from flags._library import LIBRARIES

JAXLIB = LIBRARIES["jaxlib"]


def test_an_unknown_flag_ends_the_process():
    code, said = _oracle.start(JAXLIB, "--xla_no_such=1")
    assert code != 0
    assert "Unknown flag in XLA_FLAGS: --xla_no_such=1" in said


def test_a_good_line():
    assert _oracle.start(JAXLIB, "--xla_gpu_autotune_level=2")[0] == 0


@pytest.mark.parametrize(
    ("text", "starts"),
    [
        (" --xla_gpu_autotune_level=2", True),
        ("--xla_gpu_autotune_level=2 stray --xla_no_such", True),
        ("  ", False),
        ("xla_gpu_autotune_level=2", False),
        ("-xla_gpu_autotune_level=2", False),
        ("--xla_gpu_autotune_level=two", False),
    ],
)
def test_what_parse_and_lint_build_on(text, starts):
    assert (_oracle.start(JAXLIB, text)[0] == 0) is starts


def test_too_slow():
    with pytest.raises(TimeoutError, match=r"jaxlib did not start within 0\.01 s"):
        _oracle.start(JAXLIB, None, timeout_s=0.01)


@pytest.mark.slow
def test_options_of_a_plugin(needs):
    needs("cuda")
    names = ["xla_gpu_autotune_level", "xla_no_such", "xla_fuel"]
    found = _oracle.accepted_options(LIBRARIES["cuda"], names)
    assert found == {"xla_gpu_autotune_level"}


def test_a_plugin_that_dies(monkeypatch):
    monkeypatch.setattr(_oracle, "_PLUGIN", "raise SystemExit(3)\n# {topology}")
    with pytest.raises(RuntimeError, match="cuda ended with exit status 3 while"):
        _oracle.accepted_options(LIBRARIES["cuda"], ["xla_a"])
