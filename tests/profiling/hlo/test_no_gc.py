import gc

import pytest

from profiling._hlo.no_gc import no_gc


def test_the_collector_is_as_before() -> None:
    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="inside"), no_gc():
        assert not gc.isenabled()
        raise RuntimeError("inside")
    assert gc.isenabled()
    gc.disable()
    try:
        with no_gc():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
