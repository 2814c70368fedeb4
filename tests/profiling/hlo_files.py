"""Fixtures of the HLO tests: where they are, and short ways to read text."""

import gzip
from pathlib import Path

from hypothesis import strategies as st

from profiling._hlo.module import Module
from profiling._hlo.text import read_text

DATA = Path(__file__).with_name("data")
JAX = DATA / "jax_cpu"
TORCH_XLA = DATA / "torch_xla_cpu"
STEP = JAX / "module_0008.jit_step.cpu_after_optimizations.txt"
TEXTS = (
    STEP,
    JAX / "module_0008.jit_step.before_optimizations.txt",
    TORCH_XLA / "module_0000.SyncTensorsGraph.47.cpu_after_optimizations.txt",
    DATA / "gpu_h100.txt.gz",
    DATA / "tpu_v5e_fused.txt.gz",
    DATA / "tpu_v5e_windowed.txt.gz",
    DATA / "a100_8_jaxfft_1024_2_4_NCCL_float64_FFT.hlo.gz",
)
SUM = (
    "sum {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
    "  ROOT s = f32[] add(a, b)\n}\n"
)


def content(path: Path) -> bytes:
    """A fixture, unpacked."""
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def parse(text: str | bytes, source: str = "test") -> Module:
    """Read HLO text."""
    data = text.encode() if isinstance(text, str) else text
    return read_text(data.splitlines(keepends=True), source=source)


def entry(body: str, *, header: str = "", before: str = "") -> Module:
    """Read a module from the lines of its entry."""
    return parse(f"HloModule m{header}\n{before}\nENTRY e {{\n{body}\n}}\n")


def damaged(data: st.DataObject, good: bytes) -> bytes:
    """Flip, cut, drop or repeat a few bytes."""
    found = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(0, len(found) - 1)))
        match data.draw(st.sampled_from("fcdr")):
            case "f" if found:
                found[at] = data.draw(st.integers(0, 255))
            case "c":
                del found[at:]
            case "d":
                del found[at : at + data.draw(st.integers(1, 30))]
            case "r":
                found[at:at] = found[at : at + data.draw(st.integers(1, 30))]
    return bytes(found)
