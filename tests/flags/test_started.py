import sys
import types

import pytest

from flags._started import started


@pytest.fixture
def modules(monkeypatch):
    """Stand-ins for the modules that are looked at."""

    def put(name, **functions):
        module = types.SimpleNamespace(**functions)
        monkeypatch.setitem(sys.modules, name, module)

    for name in ("_XLAC", "jax._src.xla_bridge"):
        monkeypatch.setitem(sys.modules, name, None)
    return put


@pytest.mark.parametrize("up", [False, True])
def test_torch_xla(modules, up):
    modules("_XLAC", _xla_runtime_is_initialized=lambda: up)
    assert started("XLA_FLAGS") == (("torch_xla has devices",) if up else ())


@pytest.mark.parametrize("up", [False, True])
def test_jax(modules, up):
    modules("jax._src.xla_bridge", backends_are_initialized=lambda: up)
    assert started("XLA_FLAGS") == (("jax has devices",) if up else ())


def test_nothing_is_imported(modules):
    assert started("XLA_FLAGS") == ()


def test_another_form_of_the_modules(modules):
    modules("_XLAC")
    modules("jax._src.xla_bridge")
    assert started("XLA_FLAGS") == ()


def test_libtpu(monkeypatch, tmp_path):
    maps = tmp_path / "maps"
    monkeypatch.setattr("flags._started._MAPS", maps)
    assert started("LIBTPU_INIT_ARGS") == ()
    maps.write_text("7f00-7f01 r-xp 00 08:01 9 /lib/libtpu/libtpu.so\n")
    assert started("LIBTPU_INIT_ARGS") == ("libtpu is loaded",)


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import jax", ()),
        ("import jax; jax.devices()", ("jax has devices",)),
        ("import torch_xla", ()),
        (
            "import torch, torch_xla; torch.ones(1, device='xla')",
            ("torch_xla has devices",),
        ),
    ],
)
def test_the_real_ones(run_script, source, found):
    result = run_script(
        f"""
        from flags._started import started
        {source}
        print(started("XLA_FLAGS"))
        """,
        env={"CPU_NUM_DEVICES": "1"},
    )
    assert result.rc == 0, result.stderr
    assert result.stdout.strip() == str(found)
