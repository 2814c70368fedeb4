"""Examples as modules, for what can be tested without a process of their own."""

import importlib.util
from collections.abc import Callable
from types import ModuleType

import pytest

from tests.examples.test_examples import EXAMPLES


@pytest.fixture
def load(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Import an example by its file's name."""
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "2")  # which examples set on import

    def import_it(name: str) -> ModuleType:
        spec = importlib.util.spec_from_file_location("example", EXAMPLES / name)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return import_it
