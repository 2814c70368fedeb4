import io
import json
import subprocess
import sys
import zipfile
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from spmd._meshes.mesh import Mesh
from spmd._program.file import from_bytes, to_bytes
from spmd._program.program import MLIR_MAGIC, Program
from spmd._program.summary import bytes_text
from spmd._program.value import ModuleAnnotation, Value

MODULE = MLIR_MAGIC + b"a module"
MESH = Mesh({"replica": 2, "fsdp": 4})


def make(**changes):
    """A small step: one parameter that is updated, a batch, a constant, a loss."""
    fields = {
        "module": MODULE,
        "mesh": MESH,
        "inputs": (
            Value("w", "parameter", (9, 3), "bfloat16", ("fsdp", None), donated_to=1),
            Value("batch.x", "input", (16, 9), "float32", (("replica", "fsdp"), None)),
            Value("eps", "constant", (), "float32"),
            Value("rope", "buffer", (2, 2), "bfloat16"),
            Value("rng", "rng", (), "int64"),
        ),
        "outputs": (
            Value("loss", "output", (), "float32"),
            Value("w", "parameter", (9, 3), "bfloat16", ("fsdp", None), updates=0),
        ),
        "constants": {
            "eps": np.float32(1e-8),
            "rope": np.arange(4, dtype=np.uint16).reshape(2, 2),
        },
        "annotations": (ModuleAnnotation("mlp", (16, 9), ("fsdp", None)),),
        "versions": {"torch": "2.9.0"},
        "name": "step",
    }
    return Program(**{**fields, **changes})


def edited(change, program=None):
    """Bytes of a file whose program.json was changed."""
    data = to_bytes(program or make())
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    described = json.loads(members["program.json"])
    change(described)
    members["program.json"] = json.dumps(described).encode()
    return packed(members)


def packed(members):
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return content.getvalue()


def test_round_trip(tmp_path):
    program = make()
    path = program.save(tmp_path / "step.spmd")
    again = Program.load(path)
    assert again == program
    assert again.inputs == program.inputs
    assert again.outputs == program.outputs
    assert again.annotations == program.annotations
    assert again.mesh == program.mesh
    assert again.versions == {"torch": "2.9.0"}
    assert again.module == MODULE
    for name, array in program.constants.items():
        assert again.constants[name].dtype == array.dtype
        np.testing.assert_array_equal(again.constants[name], array)
    assert [p.name for p in tmp_path.iterdir()] == ["step.spmd"]


def test_the_same_program_gives_the_same_bytes():
    assert to_bytes(make()) == to_bytes(make())


def test_a_failed_save_leaves_the_old_file(tmp_path, monkeypatch):
    path = make().save(tmp_path / "step.spmd")
    before = path.read_bytes()

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr("os.fsync", fail)
    with pytest.raises(OSError, match="disk full"):
        make(name="other").save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["step.spmd"]


def test_loading_imports_neither_torch_nor_jax(tmp_path):
    path = make().save(tmp_path / "step.spmd")
    code = (
        "import sys\n"
        "from spmd._program.program import Program\n"
        "print(Program.load(sys.argv[1]).summary())\n"
        "heavy = {'torch', 'torch_xla', 'jax', 'jaxlib'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "input parameter" in done.stdout


# The fingerprint


def test_fingerprint_is_the_same_in_another_process():
    # A change here makes every file that was saved unreadable: raise FORMAT_VERSION.
    known = "7eeeb72c09cca4b42a2dec506001a867"
    assert make().fingerprint.startswith(known)


@pytest.mark.parametrize(
    "changes",
    [
        {"module": MODULE + b"!"},
        {"mesh": Mesh({"replica": 2, "fsdp": 4}, dcn_axes="replica")},
        {"annotations": ()},
        {"constants": {"eps": np.float32(0), "rope": np.zeros((2, 2), np.uint16)}},
        {"outputs": (replace(make().outputs[0], name="l"), make().outputs[1])},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_fingerprint_depends_on_what_has_a_meaning(changes):
    assert make(**changes).fingerprint != make().fingerprint
    assert make(**changes) != make()


def test_fingerprint_leaves_out_versions_and_name():
    other = make(versions={"torch": "3"}, name="other")
    assert other.fingerprint == make().fingerprint
    assert other != make()
    assert hash(other) == hash(make())
    assert make() != "a program"


def test_a_digest_stands_for_the_module(tmp_path):
    one = make(module_digest="f" * 64)
    moved = make(module=MODULE + b"!", module_digest="f" * 64)
    assert moved.fingerprint == one.fingerprint != make().fingerprint
    loaded = Program.load(moved.save(tmp_path / "moved.spmd"))
    assert loaded == moved
    assert loaded.module == MODULE + b"!"


# What it says about itself


def test_repr_is_one_line():
    program = make()
    assert repr(program) == (
        "Program('step', Mesh(replica=2, fsdp=4), 5 inputs, 2 outputs, fingerprint "
        f"{program.fingerprint[:8]})"
    )
    w = program.inputs[0]
    assert repr(w) == "Value(w, parameter, bfloat16[9, 3], spec=('fsdp', None))"
    assert "one device" in repr(Program(MODULE, None, (), ()))


def test_summary_counts_bytes_with_padding():
    # w: 9 rows over 4 are pieces of 3 rows, 3 * 3 * 2 bytes.
    rows = {
        line[:22].strip(): line[22:].split() for line in make().summary().splitlines()
    }
    assert rows["input parameter"] == ["1", "54", "B", "18", "B"]
    assert rows["input input"] == ["1", "576", "B", "72", "B"]
    assert rows["output all"] == ["2", "58", "B", "22", "B"]
    assert "torch 2.9.0" in make().summary()
    assert "one device" in Program(MODULE, None, (), ()).summary()


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "0.977 KiB"), (2**50, "1 PiB")],
)
def test_bytes_text(count, text):
    assert bytes_text(count) == text


def test_shardings_and_donations():
    program = make()
    assert [str(s) for s in program.input_shardings] == [
        "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}",
        "{devices=[8,1]<=[8]}",
        "{replicated}",
        "{replicated}",
        "{replicated}",
    ]
    assert program.output_shardings == (None, program.input_shardings[0])
    assert program.donations == {0: 1}
    assert program.num_devices == 8
    assert Program(MODULE, None, (), ()).num_devices == 1


def test_a_next_value_is_split_as_its_input():
    outputs = (make().outputs[0], replace(make().outputs[1], spec=None))
    assert make(outputs=outputs).output_shardings[1] == make().input_shardings[0]


def test_constants_are_copied_and_frozen():
    mine = np.float32([1, 2])
    value = Value("c", "constant", (2,), "float32")
    program = Program(MODULE, None, (value,), (), constants={"c": mine})
    mine[0] = 9
    assert program.constants["c"].tolist() == [1, 2]
    with pytest.raises(ValueError, match="read-only"):
        program.constants["c"][0] = 3


def test_specs_are_normalised():
    value = Value("w", "parameter", (8,), "float32", (("fsdp",),))
    assert Program(MODULE, MESH, (value,), ()).inputs[0].spec == ("fsdp",)


# What it refuses


@pytest.mark.parametrize(
    ("fields", "match"),
    [
        ({"name": ""}, "non-empty string"),
        ({"role": "weight"}, "unknown role 'weight'"),
        ({"dtype": "torch.float32"}, "unknown dtype"),
        ({"shape": (2, -1)}, "below zero"),
        ({"shape": (2.0,)}, "must be ints"),
        ({"spec": ("fsdp",)}, "1 entries for 2 dims"),
        ({"donated_to": -1}, "donated_to=-1"),
        ({"updates": "0"}, "updates='0'"),
    ],
    ids=str,
)
def test_value_refuses(fields, match):
    good = {"name": "w", "role": "parameter", "shape": (2, 3), "dtype": "float32"}
    with pytest.raises((TypeError, ValueError), match=match):
        Value(**{**good, **fields})


def test_annotation_refuses_a_spec_of_another_length():
    with pytest.raises(ValueError, match="annotation of 'mlp'"):
        ModuleAnnotation("mlp", (2, 3), ("fsdp",))


A = Value("a", "parameter", (8,), "float32")
B = Value("b", "output", (8,), "float32")


@pytest.mark.parametrize(
    ("changes", "match"),
    [
        ({"module": b"PK"}, "no MLIR bytecode"),
        ({"inputs": (A, A)}, "two inputs are called 'a'"),
        ({"outputs": (B, B)}, "two outputs are called 'b'"),
        ({"inputs": (replace(A, spec=("nope",)),)}, "a .* mesh axis 'nope'"),
        ({"mesh": None, "inputs": (replace(A, spec=("fsdp",)),)}, "no mesh"),
        ({"mesh": None, "annotations": (make().annotations)}, "'mlp': .* no mesh"),
        ({"inputs": (replace(A, updates=0),)}, "updates is for outputs"),
        ({"outputs": (replace(B, donated_to=0),)}, "donated_to is for inputs"),
        ({"inputs": (replace(A, donated_to=7),)}, "a: donated_to=7.* only 1"),
        ({"outputs": (replace(B, updates=1),)}, "b: updates=1.* only 1"),
        (
            {"outputs": (replace(B, updates=0, shape=(4,)),)},
            "updates pairs Value.b.* with Value.a",
        ),
        (
            {"outputs": (replace(B, updates=0), replace(B, name="c", updates=0))},
            "'b' and 'c' both have updates=0",
        ),
        ({"inputs": (replace(A, donated_to=0),)}, "gone after one step"),
        ({"constants": {"z": np.zeros(8, np.float32)}}, "'z' is no input"),
        ({"constants": {"a": np.zeros(8, np.float64)}}, r"'a' is float64\[8\]"),
        ({"constants": {"a": np.zeros(7, np.float32)}}, r"'a' is float32\[7\]"),
        ({"inputs": (replace(A, role="constant"),)}, "constant without a value"),
    ],
    ids=str,
)
def test_program_refuses(changes, match):
    good = {"module": MODULE, "mesh": MESH, "inputs": (A,), "outputs": (B,)}
    with pytest.raises(ValueError, match=match):
        Program(**{**good, **changes})


# Files


def test_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        Program.load(tmp_path / "none.spmd")


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "not a program"),
        (b"HloModule m", "not a program: it starts with b'HloModul'"),
        (to_bytes(make())[:-30], "damaged or cut short"),
        (to_bytes(make())[:60], "damaged or cut short"),
        (packed({"readme.txt": b""}), r"no 'program.json' in it.*readme.txt"),
        (packed({"program.json": b"[1]"}), "an object is needed, got list"),
        (
            packed({"program.json": b'{"a": 1,\n "b" 2}'}),
            r"line 2, column 6 .*:\n   \"b\" 2\}\n       \^",
        ),
        (packed({"program.json": b"\xff"}), "can't decode byte 0xff"),
        (packed({"program.json": b""}), "line 1, column 1"),
        (packed({"program.json": b"[" * 100_000}), "program.json: "),
        (packed({"program.json": b'{"a": ' + b"9" * 5000 + b"}"}), "program.json: "),
    ],
    ids=range(11),
)
def test_files_that_are_none(tmp_path, data, match):
    path = tmp_path / "step.spmd"
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"(?s)step.spmd: .*{match}"):
        Program.load(path)


def setter(*keys, value):
    def change(described):
        for key in keys[:-1]:
            described = described[key]
        described[keys[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (
            setter("format_version", value=2),
            "written by a newer spmd: format 2.*upgrade",
        ),
        (setter("format_version", value=0), "1 is the first"),
        (setter("format_version", value="1"), "format_version is str '1'; int"),
        (lambda d: d.pop("inputs"), "inputs is missing"),
        (lambda d: d.pop("fingerprint"), "fingerprint is missing"),
        (setter("inputs", value={}), "inputs is dict"),
        (setter("inputs", 0, value=3), r"inputs\[0\] is int '3'; dict"),
        (setter("inputs", 1, "name", value=None), r"inputs\[1\].name is NoneType"),
        (setter("inputs", 0, "role", value="weight"), "unknown role 'weight'"),
        (setter("inputs", 0, "dtype", value="f4"), "unknown dtype 'f4'"),
        (setter("inputs", 0, "shape", 1, value=True), r"shape\[1\] is bool"),
        (setter("inputs", 0, "spec", 0, value=3), r"spec\[0\] is int"),
        (setter("inputs", 1, "spec", 0, 0, value=[]), r"spec\[0\] is list"),
        (setter("inputs", 0, "spec", 0, value="nope"), "inconsistent.*axis 'nope'"),
        (setter("inputs", 0, "donated_to", value=9), "inconsistent.*donated_to=9"),
        (setter("outputs", 1, "updates", value=None), "gone after one step"),
        (setter("constants", 0, value="zzz"), "constants.0. is 'zzz'"),
        (setter("constants", value=["eps", "rope", "w"]), "no 'constants/2.bin' in it"),
        (setter("constants", value=["rope", "eps"]), "constant 'rope' has 4 bytes"),
        (setter("annotations", 0, "spec", value=None), "annotation of 'mlp'"),
        (setter("mesh", value=7), "mesh is int"),
        (setter("mesh", "shape", value=[]), "mesh: "),
        (setter("mesh", "shape", value=[2**40, 2**40]), "mesh.shape is"),
        (setter("mesh", "shape", value=[4, 4]), "damaged or edited"),
        (setter("mesh", "device_ids", value=[0, 0, 1, 2, 3, 4, 5, 6]), "mesh: .*once"),
        (setter("mesh", "device_ids", value=[2**70] * 8), "mesh: "),
        (setter("mesh", "dcn_axes", value=["x"]), "mesh: .*dcn axis 'x'"),
        (setter("mesh", "axis_names", value=["a", "b"]), "inconsistent.*'fsdp'"),
        (setter("versions", value={"torch": 2}), "versions.torch is int"),
        (setter("name", value=1), "name is int"),
        (setter("fingerprint", value="0" * 64), "damaged or edited.*fingerprint '000"),
        (setter("outputs", 0, "name", value="loss2"), "damaged or edited"),
        (setter("module_sha256", value="0" * 64), "module.mlirbc is not the one"),
        (setter("module_digest", value="0" * 64), "damaged or edited.*fingerprint"),
    ],
    ids=range(34),
)
def test_damaged_descriptions(change, match):
    with pytest.raises(ValueError, match=match):
        from_bytes(edited(change))


axes = st.sampled_from([None, "replica", "fsdp", ("replica", "fsdp"), ("fsdp",)])
dtypes = st.sampled_from(["float32", "bfloat16", "int64", "bool", "float8_e5m2"])


@st.composite
def programs(draw):
    mesh = draw(
        st.sampled_from(
            [
                None,
                MESH,
                Mesh({"fsdp": 8, "replica": 1}, dcn_axes="replica"),
                Mesh([1, 0, 3, 2], (2, 2), ("replica", "fsdp")),
            ]
        )
    )
    names = draw(st.lists(st.text(min_size=1), unique=True, max_size=5))
    inputs, outputs, constants = [], [], {}
    for i, name in enumerate(names):
        shape = draw(st.lists(st.integers(0, 9), max_size=3).map(tuple))
        entry = None if mesh is None or not shape else draw(axes)
        spec = draw(st.sampled_from([None, (entry,) + (None,) * (len(shape) - 1)]))
        spec = None if mesh is None or not shape else spec
        value = Value(name, "buffer", shape, draw(dtypes), spec)
        if draw(st.booleans()):
            bits = np.zeros(shape, {2: "u2", 1: "u1"}.get(_width(value), value.dtype))
            constants[name] = bits.astype(bool) if value.dtype == "bool" else bits
        if draw(st.booleans()):
            outputs.append(replace(value, updates=i))
            value = replace(value, donated_to=len(outputs) - 1)
        inputs.append(value)
    return Program(MODULE, mesh, tuple(inputs), tuple(outputs), constants=constants)


def _width(value):
    return {"bfloat16": 2, "float8_e5m2": 1, "bool": 1}.get(value.dtype)


@given(programs())
@settings(max_examples=60, deadline=None)
def test_any_program_round_trips(program):
    data = to_bytes(program)
    again = from_bytes(data)
    assert again == program
    assert to_bytes(again) == data


@st.composite
def damaged(draw):
    data = bytearray(to_bytes(make()))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data) - 1))
        data[at] ^= draw(st.integers(1, 255))
    if draw(st.booleans()):
        del data[draw(st.integers(0, len(data))) :]
    return bytes(data)


def loads_equal_or_says_so(data):
    try:
        program = from_bytes(data)
    except ValueError as error:
        assert str(error)
    else:
        assert program == make()


@given(damaged())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_damaged_file_loads_equal_or_says_so(data):
    loads_equal_or_says_so(data)


@pytest.mark.parametrize("mask", [1, 255])
def test_every_damaged_byte(mask):
    data = bytearray(to_bytes(make()))
    for at in range(len(data)):
        data[at] ^= mask
        loads_equal_or_says_so(bytes(data))
        data[at] ^= mask


def test_every_truncation_says_so():
    data = to_bytes(make())
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"damaged|not a program"):
            from_bytes(data[:length])
