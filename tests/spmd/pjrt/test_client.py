import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec
from jaxlib import _hlo

from spmd._jax.device_array import put
from spmd._meshes.mesh import Mesh
from spmd._meshes.sharding import HloSharding, to_hlo
from spmd._pjrt import client as pjrt
from spmd._program.stablehlo import (
    as_artifact,
    hlo_to_stablehlo,
    module_text,
    signature,
)
from spmd._program.value import Value

if jax.config.jax_num_cpu_devices != 8:
    jax.config.update("jax_num_cpu_devices", 8)

MESH = Mesh({"fsdp": 8})
ROWS = to_hlo(MESH, ("fsdp", None))

# What `_get_xla_tensors_hlo_proto` gives, with the user's lines (XLA_HLO_DEBUG).
TRACE = """
    import sys
    import torch, torch_xla
    import spmd

    spmd.init()
    mesh = spmd.Mesh({"fsdp": 8})
    w = spmd.mark_sharding(torch.ones(16, 8).to("xla"), mesh, ("fsdp", None))
    x = spmd.mark_sharding(torch.ones(32, 16).to("xla"), mesh, ("fsdp", None))
    w.requires_grad_()
    loss = (x @ w).sum()  # the user's line
    (gradient,) = torch.autograd.grad(loss, w)
    spmd.mark_sharding(gradient, mesh, ("fsdp", None), grad=None)
    with torch.no_grad():
        hlo = torch_xla._XLAC._get_xla_tensors_hlo_proto([loss, w - gradient])
    open(sys.argv[1], "wb").write(hlo)
"""


@pytest.fixture
def traced(run_script, tmp_path):
    path = tmp_path / "step.pb"
    env = {"XLA_HLO_DEBUG": "1", "XLA_IR_DEBUG": "1"}
    result = run_script(TRACE, str(path), env=env)
    assert result.rc == 0, result.stderr
    return path.read_bytes()


def hlo(text):
    return _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()


ALIASED = """
HloModule m, input_output_alias={ {1}: (0, {}, may-alias) },
  entry_computation_layout={(f32[16,4]{1,0}, f32[])->(f32[], f32[16,4]{1,0})}
ENTRY main {
  a = f32[16,4] parameter(0), sharding={devices=[8,1]<=[8]}
  b = f32[] parameter(1), sharding={replicated}
  s = f32[16,4] add(a, a), metadata={op_name="m/add" source_file="f.py" source_line=7}
  ROOT t = (f32[], f32[16,4]) tuple(b, s), sharding={{replicated}, {devices=[8,1]<=[8]}}
}
"""


def test_a_traced_step_keeps_shardings_names_and_lines(traced):
    module = hlo_to_stablehlo(traced, name="sgd")
    arguments, results = signature(module)
    assert sorted(arguments, key=str)[-2:] == [
        ((16, 8), "float32"),
        ((32, 16), "float32"),
    ]
    assert results == (((), "float32"), ((16, 8), "float32"))
    text = module_text(module, locations=True)
    assert "module @sgd" in text
    sharded = 'mhlo.sharding = "{devices=[8,1]0,1,2,3,4,5,6,7}"'
    assert text.count(sharded) == 3  # two arguments and the gradient
    assert "@Sharding" in text
    assert 'loc("aten__mm"' in text
    line = 1 + TRACE.splitlines().index("    loss = (x @ w).sum()  # the user's line")
    assert f'script.py":{line}' in text
    compiled = pjrt.compile_module(module, pjrt.devices(MESH)).hlo_text()
    assert 'op_name="aten__mm' in compiled
    assert "script.py" in compiled
    assert f"line={line} " in compiled
    assert "num_partitions=8" in compiled


def test_aliases_and_result_shardings_survive():
    module = hlo_to_stablehlo(hlo(ALIASED))
    compiled = pjrt.compile_module(module, pjrt.devices(MESH))
    text = compiled.hlo_text()
    assert "input_output_alias={ {1}: (0, {}, may-alias) }" in text
    assert "(f32[2,4]{1,0}, f32[])->(f32[], f32[2,4]{1,0})" in text
    assert 'op_name="m/add"' in text
    assert '"f.py"' in text
    assert "line=7 " in text


def test_annotations_replace_what_the_module_says():
    module = hlo_to_stablehlo(
        hlo(ALIASED), inputs=[None, None], outputs=[None, None], donated={}
    )
    text = module_text(module)
    assert "devices=[8,1]" not in text.split("func.func")[1].split("{\n")[0]
    assert "parameter_number" not in text
    again = hlo_to_stablehlo(
        hlo(ALIASED),
        inputs=[ROWS, HloSharding()],
        outputs=[HloSharding(), ROWS],
        donated={0: 1},
    )
    assert "tf.aliasing_output = 1 : i32" in module_text(again)
    assert "parameter_number" not in module_text(again)
    with pytest.raises(ValueError, match="1 shardings for the 2 inputs"):
        hlo_to_stablehlo(hlo(ALIASED), inputs=[None])
    with pytest.raises(ValueError, match="3 shardings for the 2 outputs"):
        hlo_to_stablehlo(hlo(ALIASED), outputs=[None] * 3)


def test_the_same_module_gives_the_same_bytes():
    assert hlo_to_stablehlo(hlo(ALIASED)) == hlo_to_stablehlo(hlo(ALIASED))


DTYPES = {
    "pred": "bool",
    "s8": "int8",
    "u16": "uint16",
    "s64": "int64",
    "bf16": "bfloat16",
    "f8e4m3fn": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "c64": "complex64",
}


@pytest.mark.parametrize(("theirs", "ours"), DTYPES.items())
def test_dtypes(theirs, ours):
    module = hlo_to_stablehlo(
        hlo(f"HloModule m\nENTRY e {{ ROOT a = {theirs}[3] parameter(0) }}")
    )
    assert signature(module) == ((((3,), ours),), (((3,), ours),))


def test_dtypes_that_torch_lacks():
    module = hlo_to_stablehlo(
        hlo("HloModule m\nENTRY e { ROOT a = u4[3] parameter(0) }")
    )
    with pytest.raises(ValueError, match="torch has no ui4"):
        signature(module)


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda: hlo_to_stablehlo(b"nonsense"), "no HLO module .8 bytes"),
        (lambda: signature(b"ML\xefRnonsense"), "no StableHLO module .*12 bytes"),
        (lambda: signature(b"nonsense"), "no StableHLO module"),
        (lambda: signature(b"\xff\xfe"), "no StableHLO module"),
        (lambda: as_artifact("module {}"), None),
        (lambda: signature(b"module {}"), "no function 'main'"),
    ],
    ids=range(6),
)
def test_modules_that_are_none(call, match):
    if match is None:
        assert call().startswith(b"ML\xefR")
        return
    with pytest.raises(ValueError, match=match):
        call()


# Devices


def test_devices_come_in_partition_order():
    assert pjrt.devices(MESH) == tuple(jax.devices())
    assert pjrt.devices(None, "cpu") == tuple(jax.devices())[:1]
    mixed = Mesh([3, 1, 0, 2], (4,), ("fsdp",))
    assert pjrt.devices(mixed) == tuple(jax.devices())[:4]


def test_too_few_devices():
    with pytest.raises(
        ValueError, match=r"needs 16 devices, jax sees 8 .*NUM_CPU_DEVICES=16"
    ):
        pjrt.devices(Mesh({"fsdp": 16}))
    with pytest.raises(ValueError, match="no platform 'tpu' here"):
        pjrt.devices(MESH, "tpu")


def test_several_processes_must_all_take_part(monkeypatch):
    monkeypatch.setattr(jax, "process_count", lambda: 2)
    with pytest.raises(
        ValueError, match="needs 4 devices, the 2 processes together have 8"
    ):
        pjrt.devices(Mesh({"fsdp": 4}))


def test_another_jax_is_refused(monkeypatch):
    monkeypatch.setattr(jax, "__version__", "0.11.0")
    with pytest.raises(RuntimeError, match=r"written against jax 0.10.*this is 0.11.0"):
        pjrt.devices(MESH)


@pytest.mark.parametrize(
    ("spec", "expected"),
    [(("fsdp", None), (16, 3)), ((None, "fsdp"), (9, 8)), ((None, None), (9, 3))],
)
def test_padded(spec, expected):
    sharding = pjrt.placement(pjrt.devices(MESH), to_hlo(MESH, spec))
    assert pjrt.padded((9, 3), sharding) == expected


# Compiling and running


def doubled(donated=None, **options):
    """A jax function whose result is the next value of its argument."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()), ("fsdp",))
    rows = NamedSharding(mesh, PartitionSpec("fsdp"))
    lowered = jax.jit(lambda x: x * 2, in_shardings=rows).lower(
        jax.ShapeDtypeStruct((16, 4), jnp.float32)
    )
    return pjrt.compile_module(
        as_artifact(lowered.as_text()),
        pjrt.devices(MESH),
        inputs=[ROWS],
        outputs=[ROWS] if donated else None,
        donated=donated,
        **options,
    )


@pytest.mark.parametrize("shardy", [False, True])
@pytest.mark.parametrize("donated", [None, {0: 0}])
def test_a_jax_function_runs(donated, shardy):
    executable = doubled(donated, shardy=shardy)
    assert repr(executable) == "Executable(8 cpu devices, 1 inputs, 1 outputs)"
    x = np.arange(64, dtype=np.float32).reshape(16, 4)
    array = put(x, Value("x", "input", (16, 4), "float32"), executable.inputs[0])
    (result,) = executable([array])
    np.testing.assert_array_equal(np.asarray(result), 2 * x)
    assert array.is_deleted() == bool(donated)
    if donated or not shardy:  # else the compiler chooses, and Shardy not always so
        assert result.sharding.shard_shape((16, 4)) == (2, 4)


@pytest.mark.parametrize("value", ["true", "false", True, "False"])
def test_compile_options_take_command_line_words(value):
    flag = "--xla_cpu_enable_fast_math"
    assert doubled(options={flag: value}).devices == pjrt.devices(MESH)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"xla_nonsense": 1}, "refused by the cpu compiler .*No such compile option"),
        ({"xla_backend_optimization_level": "high"}, "'high' is not a valid int32"),
    ],
    ids=["name", "value"],
)
def test_compile_options_that_are_refused(options, match):
    with pytest.raises(ValueError, match=match):
        doubled(options=options)


def test_a_compiler_error_is_told_in_its_words():
    module = as_artifact(
        """
        func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
          %y = stablehlo.custom_call @no_such_target(%x) :
            (tensor<3xf32>) -> tensor<3xf32>
          return %y : tensor<3xf32>
        }"""
    )
    with pytest.raises(RuntimeError, match=r"compiler failed: .*no_such_target"):
        pjrt.compile_module(module, pjrt.devices(None))
