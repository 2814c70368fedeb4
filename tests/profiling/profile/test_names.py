"""What operations are, by their instruction and by their name alone."""

import pytest

from profiling._profile.names import OpNames
from profiling._profile.sweep import COMPUTES, HOLDS, MOVES
from tests.profiling.hlo_files import DATA, content, parse

TEXT = """HloModule step, is_scheduled=true, num_partitions=4

fused {
  a = f32[8,8] parameter(0)
  b = f32[8,8] parameter(1)
  ROOT d = f32[8,8] dot(a, b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

ENTRY e {
  p = f32[2,8] parameter(0)
  q = f32[8,8] parameter(1)
  gather-start.1 = (f32[2,8], f32[8,8]) all-gather-start(p), dimensions={0}, GROUPS
  copy.2 = f32[8,8] copy(q), metadata={SOURCE}
  gather-done.1 = f32[8,8] all-gather-done(gather-start.1)
  ROOT out = f32[8,8] fusion(gather-done.1, copy.2), kind=kOutput, calls=fused
}
"""
GROUPS = "replica_groups=[1,4]<=[4], channel_id=1, use_global_device_ids=true"
SOURCE = 'op_name="forward/mlp/copy" source_file="/a/model.py" source_line=7'


GATHER = ("all-gather", MOVES)

OFFLOADED = """HloModule step, is_scheduled=true, num_partitions=4

called {
  b = f32[2,8] parameter(0)
  ROOT all-gather.7 = f32[8,8] all-gather(b), dimensions={0}, GROUPS
}, execution_thread="sparsecore"

wrapped {
  a = f32[2,8] parameter(0)
  ROOT c = f32[8,8] call(a), to_apply=called
}, execution_thread="sparsecore"

ENTRY e {
  p = f32[2,8] parameter(0)
  START
  q = f32[2,8] add(p, p)
  ROOT all-gather.8.cloned.1.call-done = f32[8,8] DONE(all-gather.8.cloned.1.call-start)
}
"""  # as libtpu compiles for a v6e with collectives on sparse cores
START = (
    "all-gather.8.cloned.1.call-start = ((f32[2,8]), f32[8,8], u32[]) OPCODE(p), "
    'async_execution_thread="sparsecore", CALLED, metadata={op_name="jit(f)/a/dot"}'
)


@pytest.fixture(scope="module")
def names() -> OpNames:
    return OpNames(parse(TEXT.replace("GROUPS", GROUPS).replace("SOURCE", SOURCE)))


def test_by_the_instruction(names):
    copy = names("copy.2")
    assert (copy.kind, copy.level) == ("copy", COMPUTES)
    assert (copy.module, copy.phase, copy.source) == ("mlp", "forward", "model.py:7")
    assert names("out").kind == "matmul"  # a fusion's body is looked into
    assert names.has("out")
    assert not names.has("other")
    assert names.once == {"p", "q", "gather-start.1", "copy.2", "gather-done.1", "out"}


def test_start_and_done_are_of_one_collective(names):
    start, done = names("gather-start.1"), names("gather-done.1")
    assert (start.kind, start.level, start.part) == ("all-gather", MOVES, "start")
    assert (done.kind, done.level, done.part) == ("all-gather", MOVES, "done")
    assert start.collective == done.collective == "gather-start.1"


@pytest.mark.parametrize(
    ("name", "category", "kind", "level", "part"),
    [
        ("dot.12", "", "matmul", COMPUTES, ""),
        ("loop_add_fusion.3", "", "fusion", COMPUTES, ""),
        ("fusion.7", "convolution fusion", "matmul", COMPUTES, ""),
        ("convert_reduce_fusion", "loop fusion", "fusion", COMPUTES, ""),
        ("copy.3.clone", "", "copy", COMPUTES, ""),
        ("MemcpyD2D", "", "copy", COMPUTES, ""),
        ("while.2", "", "while", HOLDS, ""),
        ("call.4", "", "call", HOLDS, ""),
        ("reduce.9", "", "reduce", COMPUTES, ""),
        ("all-reduce.1", "", "all-reduce", MOVES, "whole"),
        ("all-gather-start.1", "async-start", "all-gather", MOVES, "start"),
        ("reduce-scatter-done", "", "reduce-scatter", MOVES, "done"),
        ("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", "", "all-reduce", MOVES, "whole"),
        ("ncclKernel_SendRecv", "", "collective-permute", MOVES, "whole"),
        ("all-reduce-scatter-fusion.2", "", "reduce-scatter", MOVES, "whole"),
        ("nvjet_hsh_128x256_64x4_NNT", "", "matmul", COMPUTES, ""),
        ("custom-call.5", "", "custom-call", COMPUTES, ""),
        ("gmm.18", "custom-call", "custom-call", COMPUTES, ""),
        ("fusion.5", "data formatting", "fusion", COMPUTES, ""),
        ("slice-start.3", "async-start", "slice", COMPUTES, ""),
        ("fusion.77", "all-reduce-scatter fusion", "reduce-scatter", MOVES, "whole"),
        ("fusion.78", "all-gather fusion", "all-gather", MOVES, "whole"),
        ("async-collective-start.3", "custom fusion", "collective", MOVES, "start"),
        ("async-collective-done.337", "custom fusion", "collective", MOVES, "done"),
        ("all-gather.382.cloned.1.call-start", "async-start", *GATHER, "start"),
        ("all-gather.382.cloned.1.call-done", "async-done", *GATHER, "done"),
        ("ncclDevKernel_Generic_4(Storage<4096ul>)", "", "collective", MOVES, "whole"),
        ("ncclAllReduceRingLLKernel_sum_f32", "", "all-reduce", MOVES, "whole"),
        ("Cijk_Ailk_Bljk_BBS_BH_MT128x128", "", "matmul", COMPUTES, ""),
        ("Memset 2", "", "memset", COMPUTES, ""),
        ("CudaGraphExec:12", "", "cuda-graph", COMPUTES, ""),
    ],
)
def test_by_the_name_alone(name, category, kind, level, part):
    found = OpNames(None)(name, category)
    assert (found.kind, found.level, found.part) == (kind, level, part)
    assert OpNames(None).once == frozenset()


@pytest.mark.parametrize(
    ("opcode", "called"),
    [("async", "calls=wrapped"), ("call", "to_apply=called")],
    ids=["as bytes", "as text"],
)
def test_a_collective_on_sparse_cores(opcode, called):
    start = START.replace("OPCODE", f"{opcode}-start").replace("CALLED", called)
    text = OFFLOADED.replace("START", start).replace("DONE", f"{opcode}-done")
    text = text.replace("GROUPS", GROUPS)
    names = OpNames(parse(text))
    start, done = (names(f"all-gather.8.cloned.1.call-{p}") for p in ("start", "done"))
    assert (start.kind, start.level, start.part) == ("all-gather", MOVES, "start")
    assert (done.kind, done.level, done.part) == ("all-gather", MOVES, "done")
    assert start.collective == done.collective != ""
    assert start.module == "a"


def test_without_hlo_a_done_names_its_start():
    names = OpNames(None)
    assert names("all-gather-done.3").collective == "all-gather-start.3"


@pytest.mark.parametrize("file", ["gpu_h100", "tpu_v5e_fused", "tpu_v5e_windowed"])
def test_real_modules(file):
    names = OpNames(parse(content(DATA / f"{file}.txt.gz")))
    found = [names(name) for name in sorted(names.once)]
    assert any(info.kind == "matmul" for info in found)
    for info in found:
        assert bool(info.collective) == (info.level == MOVES)
