"""What the tests of `flags` share."""

import pytest

from flags._library import LIBRARIES


@pytest.fixture
def needs():
    """`needs("cuda", "libtpu")` skips a test where one of them is not installed."""

    def check(*names: str) -> None:
        for name in names:
            if not LIBRARIES[name].installed:
                pytest.skip(f"{name} is not installed")

    return check


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    """A cache folder of the test's own, empty."""
    from flags import _catalogue

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    _catalogue._catalogue.cache_clear()
    yield tmp_path / "cache" / "xla-spmd" / "flags"
    _catalogue._catalogue.cache_clear()
