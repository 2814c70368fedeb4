from flags import _cache


def test_round_trip(own_cache):
    assert _cache.load("a.json") is None
    _cache.save("a.json", "text")
    assert _cache.load("a.json") == "text"
    assert _cache.folder() == own_cache
    assert [path.name for path in own_cache.iterdir()] == ["a.json"]


def test_home_where_nothing_else_is_said(monkeypatch, tmp_path):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert _cache.folder() == tmp_path / ".cache" / "xla-spmd" / "flags"


def test_a_folder_that_cannot_be_written(own_cache):
    own_cache.parent.mkdir(parents=True)
    own_cache.write_text("a file", encoding="utf-8")
    _cache.save("a.json", "text")
    assert _cache.load("a.json") is None


def test_no_text(own_cache):
    own_cache.mkdir(parents=True)
    (own_cache / "a.json").write_bytes(b"\xff\xfe\xff")
    assert _cache.load("a.json") is None
