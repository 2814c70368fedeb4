import gzip
import re

import pytest

from profiling._memory.buffers import Allocation, Placed
from profiling._memory.buffers_text import from_text, load_assignment
from tests.profiling.hlo_files import JAX, TORCH_XLA
from tests.profiling.memory.test_buffers import SMALL

NAME = "module_0008.jit_step.cpu_after_optimizations-buffer-assignment.txt"
HEAD = "BufferAssignment:\n"


def test_read_jax():
    found = load_assignment(JAX / NAME)
    assert len(found.allocations) == 15
    assert found.num_bytes("parameter") == 4096 + 4096 + 2048
    assert found.num_bytes("output") == 4096 + 4096 + 16
    assert found.alias_bytes == 8192
    assert found.num_bytes("temporary") == 32772
    assert found.num_bytes("constant") == 32
    assert found.num_bytes("thread local") == 36
    temporaries = found.allocations[14]
    assert temporaries.values[1] == Placed("wrapped_tanh", (), 2048, 20480, 66)
    assert found.allocations[4].values == (Placed("tuple.3", (), 16, 0, 84),)
    assert found.peak == ()


def test_read_torch_xla_with_its_peak():
    (path,) = TORCH_XLA.glob("*buffer-assignment.txt")
    found = load_assignment(path)
    assert found.num_bytes("temporary") == 32772
    assert [name for name, _ in found.peak[:3]] == ["all-reduce.1", "dot.1", "copy.2"]
    assert len(found.peak) == 9


def test_the_sum_is_the_one_that_the_file_says():
    (path,) = TORCH_XLA.glob("*buffer-assignment.txt")
    said = re.search(r"Total bytes used: (\d+)", path.read_text())
    assert said
    allocations = load_assignment(path).allocations
    assert sum(a.num_bytes for a in allocations) == int(said[1])


def test_colors_addresses_and_indices():
    found = from_text(
        HEAD + "allocation 3: 0x55ab, size 64, color 1, maybe-live-out:\n"
        " value: <9 fusion{1,0} @1> (size=32,offset=8): bf16[16]{0}\n",
        source="x",
    )
    values = (Placed("fusion", (1, 0), 32, 8, 9),)
    assert found.allocations == (Allocation(3, 64, "output", True, 1, values),)
    assert from_text(HEAD, source="x").allocations == ()


def test_a_cut_file():
    with pytest.raises(
        ValueError, match=r"^x:3: an allocation or a value .* 'allocat'"
    ):
        from_text(HEAD + "allocation 0: size 4, constant:\nallocat", source="x")
    with pytest.raises(ValueError, match=r"^x:2: an allocation or a value"):
        from_text(HEAD + " value: <1 a @0> (size=4,offset=0): f32[]\n", source="x")


def test_a_proto_file(tmp_path):
    path = tmp_path / "m.after_optimizations.hlo.pb"
    path.write_bytes(SMALL)
    assert load_assignment(path).num_bytes("temporary") == 4096


def test_packed(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress((JAX / NAME).read_bytes()))
    assert load_assignment(path) == load_assignment(JAX / NAME)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ValueError, match="gzip data is damaged or cut short"):
        load_assignment(path)


def test_something_else(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"hello")
    with pytest.raises(ValueError, match="no buffer assignment, neither text nor"):
        load_assignment(path)
    with pytest.raises(FileNotFoundError):
        load_assignment(tmp_path / "b.txt")
