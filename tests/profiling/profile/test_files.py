"""Which files are one profile."""

import os
from pathlib import Path

import pytest

from profiling._profile.files import host_of, profile_files


def session(folder: Path, *hosts: str) -> list[Path]:
    folder.mkdir(parents=True)
    files = [folder / f"{host}.xplane.pb" for host in hosts]
    for file in files:
        file.write_bytes(b"x")
    return files


def test_one_file(tmp_path):
    (file,) = session(tmp_path / "s", "node0")
    assert profile_files(file) == ((file,), ())
    assert host_of(file) == "node0"


def test_a_session_has_a_file_for_each_host(tmp_path):
    files = session(tmp_path / "s", "node0", "node1")
    (tmp_path / "s" / "node0.trace.json.gz").write_bytes(b"")
    assert profile_files(tmp_path / "s") == (tuple(files), ())


def test_of_several_sessions_the_newest_by_name(tmp_path):
    root = tmp_path / "plugins" / "profile"
    (new,) = session(root / "2026_11_30_04_53_03", "a")
    (old,) = session(root / "2026_11_29_23_00_00", "a")
    os.utime(new, (1, 1))  # a copy has lost its time
    assert old.stat().st_mtime > new.stat().st_mtime
    files, notes = profile_files(tmp_path)
    assert files == (new,)
    assert "has 2 sessions; this is the newest, 2026_11_30_04_53_03" in notes[0]


def test_sessions_of_other_names_by_time(tmp_path):
    (one,) = session(tmp_path / "b", "x")
    (two,) = session(tmp_path / "a", "x")
    os.utime(one, (10, 10))
    os.utime(two, (20, 20))
    assert profile_files(tmp_path)[0] == (two,)


def test_what_is_not_there(tmp_path):
    with pytest.raises(FileNotFoundError, match="No such file"):
        profile_files(tmp_path / "none")


def test_a_folder_without_a_profile(tmp_path):
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(ValueError, match=r"no profile among 1 entries; a profile is"):
        profile_files(tmp_path)
