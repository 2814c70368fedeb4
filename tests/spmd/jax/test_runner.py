import importlib
import json
import warnings
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch_xla
from jax.sharding import NamedSharding, PartitionSpec

import spmd
from spmd._jax.device_array import clipped
from spmd._jax.feed import by_name
from spmd._jax.runner import Runner
from spmd._jax.same_program import first_difference
from spmd._meshes.mesh import Mesh
from spmd._program.program import Program
from spmd._program.stablehlo import as_artifact, hlo_to_stablehlo
from spmd._program.value import Value

if jax.config.jax_num_cpu_devices != 8:
    jax.config.update("jax_num_cpu_devices", 8)

XLAC = torch_xla._XLAC
NUM_STEPS, ROWS, IN, OUT = 5, 32, 16, 9
RATE = 0.1


def batches():
    """Rows for each step; 9 columns, which 8 devices do not divide."""
    generator = torch.Generator().manual_seed(1)
    return [
        {
            "x": torch.randn(ROWS, IN, generator=generator),
            "y": torch.randn(ROWS, OUT, generator=generator),
        }
        for _ in range(NUM_STEPS)
    ]


def start():
    generator = torch.Generator().manual_seed(0)
    return {"w": torch.randn(IN, OUT, generator=generator), "b": torch.zeros(OUT)}


class Regression:
    """Linear regression with SGD in torch_xla: the losses, and the traced step."""

    def __init__(self, mesh, specs, rows):
        spmd.init()
        self.mesh, self.specs = mesh, {**specs, "x": (rows, None), "y": (rows, None)}
        self.state = {k: self.on_device(k, v) for k, v in start().items()}
        self.rate = torch.tensor(RATE).to("xla")

    def on_device(self, name, tensor):
        tensor = tensor.to("xla")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "tensor .9.: dim 0 .* XLA pads")
            return spmd.mark_sharding(tensor, self.mesh, self.specs[name])

    def lazy(self, batch):
        """One step, not executed yet: loss, new weight, new bias."""
        w, b = self.state["w"], self.state["b"]
        w.requires_grad_()
        b.requires_grad_()
        loss = ((batch["x"] @ w + b - batch["y"]) ** 2).mean()
        gradients = torch.autograd.grad(loss, (w, b))
        with torch.no_grad():
            return loss, w - self.rate * gradients[0], b - self.rate * gradients[1]

    def program(self):
        batch = {k: self.on_device(k, v) for k, v in batches()[0].items()}
        outs = list(self.lazy(batch))
        known = {"lr": self.rate, **self.state, **batch}
        handles = XLAC._get_tensors_handle(list(known.values()))
        names = dict(zip(handles, known, strict=True))
        _, values = XLAC._get_tensors_xla_device_data_node(outs)
        handles = XLAC._get_tensors_handle(values)
        order = [names.get(h, f"constant.{i}") for i, h in enumerate(handles)]
        inputs = [self.input(n, v) for n, v in zip(order, values, strict=True)]
        outputs = [Value("loss", "output", (), "float32")]
        outputs += [
            Value(n, "parameter", tuple(v.shape), "float32", updates=order.index(n))
            for n, v in self.state.items()
        ]
        return Program(
            hlo_to_stablehlo(XLAC._get_xla_tensors_hlo_proto(outs), name="sgd"),
            self.mesh,
            tuple(inputs),
            tuple(outputs),
            constants={
                n: v.cpu().numpy()
                for n, v in zip(order, values, strict=True)
                if n.startswith("constant")
            },
        )

    def input(self, name, value):
        roles = {"w": "parameter", "b": "parameter", "lr": "learning_rate"}
        role = roles.get(name, "constant" if "." in name else "input")
        return Value(
            f"batch.{name}" if role == "input" else name,
            role,
            tuple(value.shape),
            "float32",
            self.specs.get(name),
            donated_to={"w": 1, "b": 2}.get(name),
        )

    def losses(self):
        """Losses of torch_xla itself."""
        found = []
        for batch in batches():
            batch = {k: self.on_device(k, v) for k, v in batch.items()}
            loss, w, b = self.lazy(batch)
            torch_xla.sync()
            self.state = {"w": w.detach(), "b": b.detach()}
            found.append(loss.item())
        return found


@pytest.fixture(scope="module")
def sgd():
    """Program, losses and final state; parameters over fsdp=8."""
    mesh = Mesh({"fsdp": 8})
    step = Regression(mesh, {"w": ("fsdp", None), "b": ("fsdp",)}, "fsdp")
    program = step.program()
    losses = step.losses()
    return program, losses, {k: v.cpu() for k, v in step.state.items()}


@pytest.fixture(scope="module")
def hybrid():
    """Program and losses on replica=2 x fsdp=4."""
    mesh = Mesh({"replica": 2, "fsdp": 4})
    rows = ("replica", "fsdp")
    step = Regression(mesh, {"w": ("fsdp", None), "b": (None,)}, rows)
    return step.program(), step.losses()


def test_losses_equal_those_of_torch_xla(sgd, tmp_path):
    program, losses, end = sgd
    runner = Program.load(program.save(tmp_path / "sgd.spmd")).runner()
    runner.put(start())
    found = [
        float(runner.step(batch, learning_rate=RATE)["loss"]) for batch in batches()
    ]
    np.testing.assert_allclose(found, losses, rtol=1e-5)
    state = runner.state_dict()
    assert list(state) == [v.name for v in program.inputs if v.role == "parameter"]
    for name, tensor in end.items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-5, atol=1e-6)


def test_shardy_gives_the_same_losses(sgd):
    program, losses, _ = sgd
    runner = Runner(program, "cpu", shardy=True)
    runner.put(start())
    found = [
        float(runner.step(batch, learning_rate=RATE)["loss"]) for batch in batches()
    ]
    np.testing.assert_allclose(found, losses, rtol=1e-5)


def test_state_is_donated(sgd):
    runner = sgd[0].runner()
    runner.put(start())
    before = runner.get("w")
    runner.step(batches()[0], learning_rate=RATE)
    assert before.array.is_deleted()
    assert not runner.get("w").array.is_deleted()
    assert "input_output_alias={ {1}" in runner.compile().hlo_text()


def test_numpy_and_callables_do_as_well(sgd):
    program, losses, _ = sgd
    runner = program.runner()
    asked = []

    def bias(index):
        asked.append(index)
        return np.zeros([s.stop - s.start for s in index], np.float32)

    runner.put({"w": start()["w"].numpy(), "b": bias})
    batch = {k: v.numpy() for k, v in batches()[0].items()}
    np.testing.assert_allclose(
        runner.step(batch, learning_rate=RATE)["loss"], losses[0], rtol=1e-5
    )
    # Never the whole: 9 values over 8 devices are pieces of 2.
    assert (slice(0, 2),) in asked
    assert (slice(8, 9),) in asked
    assert all(s.stop - s.start <= 2 for (s,) in asked)


def test_state_can_be_put_again(sgd):
    program, losses, _ = sgd
    runner = program.runner()
    runner.put(start())
    runner.step(batches()[0], learning_rate=RATE)
    runner.put(start())
    loss = runner.step(batches()[0])["loss"]
    assert float(loss) == pytest.approx(losses[0], rel=1e-5)


def test_what_another_runner_holds_fits_or_not(sgd, hybrid):
    runner, other = sgd[0].runner(), hybrid[0].runner()
    runner.put(start(), partial=True)
    held = runner.held()
    assert sgd[0].runner().fits("w", held["w"])
    assert other.fits("w", held["w"])  # 16 rows, over 8 and over 4
    assert not other.fits("b", held["b"])  # padded to 16, and 9
    assert not other.fits("w", held["b"])
    with pytest.raises(ValueError, match="q"):
        other.fits("q", held["b"])


def test_local_shards_leave_padding_out(sgd):
    runner = sgd[0].runner()
    runner.put({"b": np.arange(9, dtype=np.float32)}, partial=True)
    shards = runner.get("b").local_shards()
    assert [s[0] for s in shards] == list(range(8))
    assert [s[1] for s in shards] == [0] * 8
    assert [s[3].tolist() for s in shards][3:] == [[6, 7], [8], [], [], []]
    assert shards[4][2] == (slice(8, 9),)


def test_learning_rates(sgd):
    runner = sgd[0].runner()
    runner.put(start())
    for rate in (RATE, [RATE], {"lr": RATE}):
        runner.step(batches()[0], learning_rate=rate)
        assert runner.get("lr").numpy() == np.float32(RATE)
    with pytest.raises(ValueError, match=r"2 learning rates were given.* has 1"):
        runner.step(batches()[0], learning_rate=[1.0, 2.0])
    with pytest.raises(
        ValueError, match=r"'x' is no learning rate; there are \['lr'\]"
    ):
        runner.step(batches()[0], learning_rate={"x": 1.0})


def test_what_is_missing_is_named(sgd):
    runner = sgd[0].runner()
    with pytest.raises(ValueError, match=r"'b' of program 'step' got no value"):
        runner.put({"w": start()["w"]})
    runner.put({"w": start()["w"]}, partial=True)
    with pytest.raises(ValueError, match=r"'b'.* has no value yet"):
        runner.get("b")
    with pytest.raises(ValueError, match=r"'b', 'lr'.* got no value"):
        runner.step(batches()[0])
    runner.put(start())
    with pytest.raises(ValueError, match=r"lacks 'batch.y'.* it has 'x'"):
        runner.step({"x": batches()[0]["x"]}, learning_rate=RATE)


@pytest.mark.parametrize(
    ("state", "match"),
    [
        ({"bb": np.zeros(9)}, "has no input 'bb'; did you mean 'b'"),
        ({"zzzzzz": np.zeros(9)}, "has no input 'zzzzzz'; it has "),
        ({"batch.x": np.zeros(9)}, "'batch.x' is no state; give it to step"),
        ({"b": np.zeros(8, np.float32)}, r"b has shape \[8\], the program takes \[9\]"),
        ({"b": np.zeros(9)}, "b is float64, .* takes float32; convert"),
        ({"b": torch.zeros(9, dtype=torch.bfloat16)}, "b is bfloat16"),
        ({"b": "zero"}, "b: str is no array"),
        (
            {"b": lambda index: np.zeros(3, np.float32)},
            r"b, piece \[\(0, 2\)\] has shape \[3\], the program takes \[2\]",
        ),
    ],
    ids=range(8),
)
def test_put_refuses(sgd, state, match):
    runner = sgd[0].runner()
    with pytest.raises((TypeError, ValueError), match=match):
        runner.put(state, partial=True)


def test_batches_of_another_shape_are_refused(sgd):
    runner = sgd[0].runner()
    runner.put(start())
    batch = {k: v[:8] for k, v in batches()[0].items()}
    with pytest.raises(ValueError, match=r"batch.y has shape \[8, 9\]"):
        runner.step(batch, learning_rate=RATE)


def test_a_refused_compile_option_is_told_in_the_compilers_words(sgd):
    runner = sgd[0].runner(options={"xla_no_such_flag": True})
    runner.put(start())
    with pytest.raises(ValueError, match="No such compile option: 'xla_no_such_flag'"):
        runner.step(batches()[0], learning_rate=RATE)


def test_another_number_of_devices(sgd):
    with pytest.raises(ValueError, match="needs 8 devices, 4 were given"):
        sgd[0].runner(jax.devices()[:4])
    with pytest.raises(ValueError, match="no platform 'tpu'"):
        sgd[0].runner("tpu")


def test_repr(sgd):
    assert repr(sgd[0].runner()).endswith("8 cpu devices)")
    runner = sgd[0].runner()
    runner.put(start())
    loss = runner.step(batches()[0], learning_rate=RATE)["loss"]
    assert repr(loss) == "DeviceArray(float32[])"


# A program of jax's own: dtypes, the seed, outputs that stay


def counted(mesh):
    """A jax function with a seed, bfloat16 state and an uneven output."""

    def step(seed, moment, x):
        new = moment * 2 + x.sum(axis=0)
        return new, x * 2, seed

    jax_mesh = jax.sharding.Mesh(np.array(jax.devices()), ("fsdp",))
    whole = NamedSharding(jax_mesh, PartitionSpec())
    with jax.enable_x64(True):
        lowered = jax.jit(step, in_shardings=(whole,) * 3).lower(
            jax.ShapeDtypeStruct((), jnp.int64),
            jax.ShapeDtypeStruct((10,), jnp.bfloat16),
            jax.ShapeDtypeStruct((3, 10), jnp.bfloat16),
        )
    inputs = (
        Value("rng", "rng", (), "int64"),
        Value("moment", "optimizer", (10,), "bfloat16", ("fsdp",), donated_to=0),
        Value("x", "input", (3, 10), "bfloat16", ("fsdp", None)),
    )
    outputs = (
        Value("moment", "optimizer", (10,), "bfloat16", updates=1),
        Value("output.x", "output", (3, 10), "bfloat16", ("fsdp", None)),
        Value("output.seed", "output", (), "int64"),
    )
    return Program(as_artifact(lowered.as_text()), mesh, inputs, outputs)


@pytest.mark.parametrize(
    "order", [range(8), [3, 1, 7, 5, 0, 2, 6, 4]], ids=["0-7", "mixed"]
)
def test_bfloat16_and_uneven_dims_in_any_device_order(order):
    mesh = Mesh(list(order), (8,), ("fsdp",))
    runner = counted(mesh).runner()
    moment = torch.arange(10).to(torch.bfloat16)
    x = torch.arange(30).reshape(3, 10).to(torch.bfloat16)
    runner.put({"moment": moment})
    result = runner.step(x)
    assert list(result) == ["output.x", "output.seed"]
    torch.testing.assert_close(result["output.x"].torch(), x * 2)
    torch.testing.assert_close(runner.get("moment").torch(), moment * 2 + x.sum(0))
    assert np.asarray(result["output.x"]).dtype.name == "bfloat16"
    assert np.asarray(result["output.x"], np.float32).sum() == 2 * x.float().sum()
    # The first piece lies on the device that the mesh names first.
    first = {s[0]: s[2] for s in runner.get("moment").local_shards()}[order[0]]
    assert first == (slice(0, 2),)
    assert runner.state_dict(roles=["optimizer"]).keys() == {"moment"}


def test_the_seed_advances_as_torch_xlas():
    runner = counted(Mesh({"fsdp": 8})).runner()
    runner.put({"moment": np.zeros(10, jnp.bfloat16), "rng": 2**63 - 5})
    seen, expected = [], 2**63 - 5
    for _ in range(4):
        assert runner.seed == expected
        seen.append(runner.step(np.zeros((3, 10), jnp.bfloat16))["output.seed"].item())
        expected = (1012031 + expected * 7012063) % 2**64
    assert [s % 2**64 for s in seen[:2]] == [
        2**63 - 5,
        (1012031 + (2**63 - 5) * 7012063) % 2**64,
    ]
    assert len(set(seen)) == 4


def test_the_default_seed_is_torch_xlas():
    torch_xla_seam = importlib.import_module("spmd._torch_xla.seam")
    runner = counted(Mesh({"fsdp": 8})).runner()
    assert runner.seed == torch_xla_seam.DEFAULT_SEED


def test_a_fixed_learning_rate_cannot_be_set():
    runner = counted(Mesh({"fsdp": 8})).runner()
    with pytest.raises(ValueError, match="no learning rate among its inputs"):
        runner.step(np.zeros((3, 10), jnp.bfloat16), learning_rate=1.0)


def test_a_module_that_is_not_what_the_program_says():
    program = counted(Mesh({"fsdp": 8}))
    module, mesh, inputs = program.module, program.mesh, program.inputs
    with pytest.raises(ValueError, match="has 3 results, the program names 0"):
        Program(
            module,
            mesh,
            (inputs[0], replace(inputs[1], donated_to=None), inputs[2]),
            (),
        ).runner()
    other = (*inputs[:2], replace(inputs[2], shape=(4, 10)))
    with pytest.raises(
        ValueError, match=r"argument 2 .* is bfloat16\[3, 10\].*\[4, 10\]"
    ):
        Program(module, mesh, other, (program.outputs[0],)).runner()


def test_a_program_for_one_device():
    text = """
        func.func @main(%x: tensor<3xf32>) -> tensor<3xf32> {
          %y = stablehlo.add %x, %x : tensor<3xf32>
          return %y : tensor<3xf32>
        }"""
    x, y = Value("x", "input", (3,), "float32"), Value("y", "output", (3,), "float32")
    runner = Program(as_artifact(text), None, (x,), (y,)).runner()
    y = runner.step({"x": [torch.ones(3)]}["x"][0])["y"]
    assert y.wait().numpy().tolist() == [2, 2, 2]
    assert len(runner.devices) == 1


# Names in the batch, pieces, notes


@pytest.mark.parametrize(
    ("batch", "names", "found"),
    [
        (1, ["batch"], {"batch": 1}),
        ({"x": 1, "y": 2}, ["batch.x"], {"batch.x": 1}),
        ({"x": 1}, ["batch['x']"], {"batch['x']": 1}),
        ([{"x": (1, 2)}], ["b.0.x.1"], {"b.0.x.1": 2}),
        ({"batch": {"x": 1}}, ["batch.x"], {"batch.x": 1}),
        ({"batch.x": 1}, ["batch.x"], {"batch.x": 1}),
        ({"ids": 1, "mask": {"a": 2}}, ["ids", "mask.a"], {"ids": 1, "mask.a": 2}),
        ({"ids": 1}, ["ids", "mask.a"], {"ids": 1}),
    ],
    ids=range(8),
)
def test_batch_names(batch, names, found):
    assert by_name(batch, names) == found


@pytest.mark.parametrize(
    ("index", "shape", "part"),
    [
        ((), (), ()),
        ((slice(None),), (5,), (slice(0, 5),)),
        ((slice(4, 6),), (5,), (slice(4, 5),)),
        ((slice(6, 8),), (5,), (slice(5, 5),)),
    ],
)
def test_clipped(index, shape, part):
    assert clipped(index, shape) == part


def test_a_number_needs_one_element(sgd):
    runner = sgd[0].runner()
    runner.put(start())
    with pytest.raises(ValueError, match="size 1"):
        float(runner.get("b"))


@pytest.mark.parametrize(
    ("ours", "theirs", "text"),
    [
        ([("a", "1")], [("a", "1")], None),
        ([("a", "1")], [("a", "2")], "a is 2 there and 1 on process 0"),
        ([("a", "1")], [], "it has nothing more where process 0 has a: 1"),
        ([], [("a", "1")], "it has a: 1 where process 0 has nothing more"),
        ([("a", "1")], [("b", "1")], "it has b: 1 where process 0 has a: 1"),
    ],
)
def test_first_difference(ours, theirs, text):
    assert first_difference(ours, theirs) == text


# Two processes of four devices

RUN = """
    import json, os, socket, subprocess, sys
    from pathlib import Path

    def spawn(files, seconds):
        with socket.socket() as free:
            free.bind(("localhost", 0))
            port = free.getsockname()[1]
        children = [
            subprocess.Popen(
                [sys.executable, __file__, "child", str(port), str(i), *f],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for i, f in enumerate(files)
        ]
        for child in children:
            out, _ = child.communicate(timeout=seconds)
            print("PROCESS", child.returncode, out)

    def child(port, index, program, batches, start, num_rows, timeout_s):
        import jax
        jax.config.update("jax_num_cpu_devices", 4)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"localhost:{port}", 2, int(index))
        import numpy as np
        from spmd._program.program import Program
        from spmd._jax.runner import Runner

        runner = Runner(Program.load(program), timeout_s=float(timeout_s))
        runner.put(dict(np.load(start)))
        if num_rows == "0":
            sys.exit("no rows")
        data = np.load(batches)
        rows = slice(16 * int(index), 16 * int(index) + int(num_rows))
        losses = []
        for i in range(5):
            batch = {k: data[f"{k}{i}"][rows] for k in "xy"}
            losses.append(float(runner.step(batch, learning_rate=0.1)["loss"]))
        state = runner.state_dict()
        print(json.dumps([losses, {k: v.sum().item() for k, v in state.items()}]))

    if sys.argv[1] == "child":
        child(*sys.argv[2:])
    else:
        spawn(json.loads(sys.argv[1]), float(sys.argv[2]))
"""


@pytest.fixture
def two_processes(run_script, tmp_path):
    """Run two programs, 0 rows: until the first step; gives what each printed."""
    np.savez(
        tmp_path / "batches.npz",
        **{f"{k}{i}": v.numpy() for i, b in enumerate(batches()) for k, v in b.items()},
    )
    np.savez(tmp_path / "start.npz", **{k: v.numpy() for k, v in start().items()})

    def run(programs, *, num_rows=(16, 16), timeout_s=60):
        files = []
        for i, program in enumerate(programs):
            path = tmp_path / f"{i}.spmd"
            program.save(path)
            inputs = (str(tmp_path / f"{n}.npz") for n in ("batches", "start"))
            files.append([str(path), *inputs, str(num_rows[i]), str(timeout_s)])
        result = run_script(
            RUN, json.dumps(files), "60", env={"JAX_NUM_CPU_DEVICES": None}
        )
        assert result.rc == 0, result.stderr
        return result.stdout.split("PROCESS ")[1:]

    return run


def test_two_processes_give_the_losses_of_one(hybrid, two_processes):
    program, losses = hybrid
    for out in two_processes([program, program]):
        assert out.startswith("0 "), out
        found, state = json.loads(out.strip().splitlines()[-1])
        np.testing.assert_allclose(found, losses, rtol=1e-5)
        assert state.keys() == {"w", "b"}


def test_a_process_with_another_program_is_named(hybrid, two_processes):
    program, _ = hybrid
    inputs = tuple(
        replace(v, spec=("fsdp", None)) if v.name == "batch.y" else v
        for v in program.inputs
    )
    other = Program(
        program.module, program.mesh, inputs, program.outputs, program.constants
    )
    for out in two_processes([program, other], timeout_s=20):
        assert not out.startswith("0 ")
        assert "ValueError: process 1 is about to run another program" in out
        assert "input 'batch.y' is float32[32, 9], spec ('fsdp', None)" in out


def test_a_process_whose_batch_is_refused_is_named(hybrid, two_processes):
    program, _ = hybrid
    zero, one = two_processes([program, program], num_rows=(16, 12), timeout_s=20)
    for out in (zero, one):
        assert not out.startswith("0 ")
        assert "process 1 is about to run" in out
        assert (
            "the first batch is refused (batch.y: process 1 passes [12, 9], so" in out
        )


@pytest.mark.slow  # waits for a timeout
def test_a_process_that_does_not_come_is_named(hybrid, two_processes):
    zero, one = two_processes([hybrid[0]] * 2, num_rows=(16, 0), timeout_s=3)
    assert one.startswith("1 no rows")
    assert "TimeoutError: process 1 did not come to its first step within 3 s" in zero
