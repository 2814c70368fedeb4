"""What the error of a compile without a result says to change."""

from profiling._compiling.compile import compile
from profiling._compiling.failed import failed
from profiling._targets.target import Target
from tests.profiling.compilers import need
from tests.profiling.one_weight import program

TARGET = Target.parse("h100:2x8")
WORDS = "INTERNAL: Couldn't find output tile sizes that satisfy hlo: %dot.469"
ADVICE = "flags={'xla_gpu_enable_triton_gemm': False}"


def test_products_without_tiles():
    error = failed(program(16), TARGET, 0, "", WORDS)
    assert error.kind == "other"
    assert ADVICE in str(error)
    assert WORDS in str(error)


def test_other_words_get_no_advice():
    error = failed(program(16), TARGET, 0, "", "INTERNAL: something else")
    assert ADVICE not in str(error)


def test_the_compiler_takes_the_flag_that_is_advised():
    flags = {"xla_gpu_enable_triton_gemm": False}
    assert compile(program(16), need(TARGET.text), flags=flags).collectives
