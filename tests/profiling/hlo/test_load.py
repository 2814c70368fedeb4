import gzip
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jaxlib import _hlo

from profiling._hlo.load import load_module
from tests.profiling.hlo_files import STEP, content, damaged

TEXT = content(STEP)
PROTO = _hlo.hlo_module_from_text(TEXT.decode()).as_serialized_hlo_module_proto()


@pytest.mark.parametrize("data", [TEXT, PROTO], ids=["text", "proto"])
@pytest.mark.parametrize("packed", [False, True])
def test_the_content_decides(data: bytes, packed: bool, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(gzip.compress(data) if packed else data)
    module = load_module(str(path))
    assert module.name == "jit_step"
    assert module.source.startswith(str(path))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b"", "f: at byte 0: no HLO: the file is empty"),
        (gzip.compress(b""), "f: at byte 0: no HLO: the file is empty"),
        (b"hello\n", r"f:1:1: no HLO text"),
        (b"\x89PNG\r\n\x1a\n" + bytes(40), "f: at byte "),
        (gzip.compress(TEXT)[:200], "f: at byte .*gzip data is damaged or cut short"),
        (gzip.compress(PROTO)[:200], "f: at byte .*gzip data is damaged or cut short"),
        (b"\x1f\x8bnonsense", "f: at byte .*gzip data is damaged or cut short"),
        (gzip.compress(PROTO[:90]), r"f \(unpacked\): at byte "),
        (TEXT[: len(TEXT) // 2], r"f:\d+:\d+: "),
        (PROTO[: len(PROTO) // 2], "f: at byte "),
    ],
    # Not the bytes: gzip writes the time into them, and the workers must collect the
    # same names.
    ids=[
        "empty",
        "empty-packed",
        "words",
        "picture",
        "packed-text-cut",
        "packed-proto-cut",
        "packed-nonsense",
        "proto-cut-packed",
        "text-cut",
        "proto-cut",
    ],
)
def test_damage(data: bytes, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "f"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=problem):
        load_module(path)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        load_module(tmp_path / "f")
    with pytest.raises(IsADirectoryError):
        load_module(tmp_path)


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.data())
def test_fuzzed_archives_are_read_or_refused(tmp_path: Path, data) -> None:
    path = tmp_path / "f"
    path.write_bytes(damaged(data, gzip.compress(TEXT)))
    try:
        load_module(path)
    except ValueError as error:
        assert str(path) in str(error)
