import json
import sys
from types import SimpleNamespace

import pytest

from profiling._capture import child
from spmd._torch_xla import profile as torch_xla_profile


def said(capfd) -> object:
    return json.loads(capfd.readouterr().out.splitlines()[-1])["error"]


def test_the_client_of_xprof_is_asked(monkeypatch, capfd):
    asked = []
    client = SimpleNamespace(trace=lambda *arguments: asked.append(arguments))
    package = SimpleNamespace(_pywrap_profiler_plugin=client)
    monkeypatch.setitem(sys.modules, "xprof", SimpleNamespace(convert=package))
    monkeypatch.setitem(sys.modules, "xprof.convert", package)
    child.main("here:1,there:1", "run", "250")
    ((addresses, folder, _, _, milliseconds, attempts, levels),) = asked
    assert (addresses, folder, milliseconds) == ("here:1,there:1", "run", 250)
    assert attempts == 1 and levels["python_tracer_level"] == 0
    assert said(capfd) is None


@pytest.mark.parametrize("error", [None, "no answer"])
def test_without_xprof_that_of_torch_xla_is(error, monkeypatch, capfd):
    def collect(addresses, folder, *, milliseconds, options):
        assert (addresses, folder, milliseconds) == ("here:1", "run", 250)
        assert options["host_tracer_level"] == 2
        if error:
            raise RuntimeError(error)

    monkeypatch.setattr(torch_xla_profile, "collect", collect)
    monkeypatch.setitem(sys.modules, "xprof.convert", None)
    child.main("here:1", "run", "250")
    assert said(capfd) == error
