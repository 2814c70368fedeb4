import inspect

import pytest
import torch
import torch_xla.utils.checkpoint
from torch import nn

import spmd
from fsdpv2 import FSDPv2
from spmd._trace import scopes
from spmd._trace.scopes import Site, Sites, user_frame
from tests.spmd import tracing
from tests.spmd.tracing import (
    DIM,
    MESH,
    Mlp,
    Net,
    adamw,
    described,
    locations,
    loss_of,
    net,
    step_of,
    traced,
    wrapped,
)


def line_of(function, text):
    """Number of the one line of a function that has this text."""
    lines, start = inspect.getsourcelines(function)
    (found,) = [i for i, line in enumerate(lines) if text in line]
    return start + found


def where(program, kind="dot(?:_general)?"):
    """Phase, module and line of each operation of a kind."""
    found = []
    for name, file, line in locations(program, kind):
        phase, _, rest = name.partition("/")
        module, _, _ = rest.rpartition("/")
        assert not file or file in (tracing.__file__, __file__), file
        found.append((phase, module, line))
    return found


UP = line_of(Mlp.forward, "self.up(")
DOWN = line_of(Mlp.forward, "self.down(")
HEAD = line_of(Net.forward, "self.head(")
LOSS = line_of(loss_of, "cross_entropy")


@pytest.fixture(scope="module")
def program():
    return traced(wrapped())


def test_products_of_forward_and_backward(program):
    def wanted(phase):
        return [
            *((phase, f"layers.{i}.up", UP) for i in range(2)),
            *((phase, f"layers.{i}.down", DOWN) for i in range(2)),
            (phase, "head", HEAD),
        ]

    assert sorted(where(program)) == sorted(
        [*wanted("forward"), *wanted("backward"), *wanted("backward")]
    )


def test_operations_of_the_loss(program):
    found = where(program, "log") + where(program, "exponential")
    assert ("forward", "", LOSS) in found


def test_the_update_has_the_line_of_the_step(program):
    roots = where(program, "sqrt")
    line = line_of(step_of, "optimizer.step()")
    assert set(roots) == {("update", "", line)}
    assert len(roots) >= 7


def test_annotations_have_a_place_too(program):
    found = where(program, "custom_call")
    modules = {(phase, module) for phase, module, line in found if line}
    assert ("backward", "layers.0.up") in modules
    assert ("forward", "") in modules  # the output of the model
    assert all(line for _, _, line in found)


def test_nearly_everything_has_a_place(program):
    kinds = (
        "multiply",
        "add",
        "reduce",
        "transpose",
        "dot_general",
        "divide",
        "select",
    )
    found = [one for kind in kinds for one in where(program, kind)]
    named = [one for one in found if one[0] and one[2]]
    assert len(named) >= 0.95 * len(found)


def test_clipping_is_part_of_the_update():
    model = wrapped()
    optimizer = adamw(model)

    def step(batch):
        loss_of(model, batch).backward()
        model.clip_grad_norm_(1.0)
        nn.utils.clip_grad_value_(model.parameters(), 0.5, foreach=False)
        optimizer.step()
        optimizer.zero_grad()

    program = spmd.trace(step, described(), model=model, optimizer=optimizer)
    _, start = inspect.getsourcelines(step)
    clamps = where(program, "clamp") + where(program, "maximum")
    assert ("update", "", start + 3) in clamps
    norms = [
        name for name, _, line in locations(program, "reduce") if line == start + 2
    ]
    assert len(norms) >= 7
    assert {name.partition("/")[0] for name in norms} <= {"update"}


def test_averages_after_the_backward_are_part_of_the_update():
    model = wrapped()

    def step(batch):
        loss_of(model, batch).backward()
        with torch.no_grad():
            return [p.grad.exp() for p in model.parameters()]

    program = spmd.trace(step, described(), model=model)
    line = line_of(step, "p.grad.exp()")
    assert where(program, "exponential").count(("update", "", line)) == 7


def test_several_optimizers_keep_their_lines():
    model = wrapped()
    first = torch.optim.AdamW(model.layers[0].parameters(), lr=0.1)
    second = torch.optim.AdamW(model.layers[1].parameters(), lr=0.1)

    class Both(torch.optim.Optimizer):
        """Two in one, as a trace takes one."""

        def __init__(self):
            super().__init__(model.parameters(), {"lr": 0.1})

    def step(batch):
        loss_of(model, batch).backward()
        first.step()
        second.step()

    state = {
        f"{i}.{key}.{j}": value
        for i, one in enumerate((first, second))
        for j, table in enumerate(spmd.prime_optimizer(one).state.values())
        for key, value in table.items()
    }
    program = spmd.trace(step, described(), model=model, extra=state)
    roots = where(program, "sqrt")
    assert set(roots) == {
        ("update", "", line_of(step, "first.step()")),
        ("update", "", line_of(step, "second.step()")),
    }


def test_closures_are_no_update():
    model = wrapped()
    optimizer = adamw(model)

    def step(batch):
        def closure():
            loss = loss_of(model, batch)
            loss.backward()
            return loss

        return optimizer.step(closure)

    program = spmd.trace(step, described(), model=model, optimizer=optimizer)
    phases = [phase for phase, _, _ in where(program)]
    assert (phases.count("forward"), phases.count("backward")) == (5, 10)
    assert {phase for phase, _, _ in where(program, "sqrt")} == {"update"}


class Recomputing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Mlp() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + torch_xla.utils.checkpoint.checkpoint(layer, x, use_reentrant=True)
        return x


def test_recomputation_belongs_to_the_backward():
    with spmd.meta_parameters():
        model = Recomputing()
    model = FSDPv2(model, MESH, min_shard_elements=1)
    optimizer = adamw(model)

    def step(x):
        loss = model(x.requires_grad_()).square().sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    program = spmd.trace(
        step, torch.empty(8, DIM, device="meta"), model=model, optimizer=optimizer
    )
    found = where(program)
    for i in range(2):
        for part, line in (("up", UP), ("down", DOWN)):
            module = f"layers.{i}.{part}"
            assert found.count(("forward", module, line)) == 1
            # The gradients of weight and input, and what is computed again.
            num = 3 if module == "layers.1.up" else 2
            assert found.count(("backward", module, line)) == num
    assert len(found) == 13


def test_accumulation():
    model = wrapped()
    optimizer = adamw(model)

    def step(batch):
        for _ in range(3):
            loss_of(model, batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    program = spmd.trace(step, described(), model=model, optimizer=optimizer)
    found = where(program)
    assert found.count(("forward", "layers.1.up", UP)) == 3
    assert found.count(("backward", "layers.1.up", UP)) == 6


def test_a_module_that_raises_is_left():
    class Raising(nn.Module):
        def forward(self, x):
            raise KeyError

    class Outer(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Raising()
            self.after = nn.Linear(DIM, DIM)

        def forward(self, x):
            try:
                self.inner(x)
            except KeyError:
                pass
            return self.after(x) @ torch.ones(DIM, DIM, device=x.device)

    with spmd.meta_parameters():
        model = Outer()
    program = spmd.trace(model, torch.ones(8, DIM), model=model, mesh=MESH)
    assert [module for _, module, _ in where(program)] == ["after", ""]


def test_modules_of_a_wrapper_keep_their_paths():
    inner = net()
    wrapped_layers = FSDPv2(inner, MESH, auto_wrap_policy={Mlp}, min_shard_elements=1)
    modules = {module for _, module, _ in where(traced(wrapped_layers))}
    assert modules == {f"layers.{i}.{p}" for i in range(2) for p in ("up", "down")} | {
        "head"
    }


def test_nothing_is_left_behind():
    from torch.nn.modules import module as modules
    from torch.optim import optimizer as optimizers
    from torch.utils._python_dispatch import _get_current_dispatch_mode

    def seen():
        return (
            _get_current_dispatch_mode(),
            list(modules._global_forward_hooks),
            list(modules._global_forward_pre_hooks),
            list(optimizers._global_optimizer_pre_hooks),
            list(optimizers._global_optimizer_post_hooks),
            torch.autograd.is_multithreading_enabled(),
            torch_xla._XLAC._get_ir_debug(),
        )

    model = wrapped()
    before = seen()
    for fails in (False, True):

        def step(batch, fails=fails):
            if fails:
                raise ZeroDivisionError
            return loss_of(model, batch)

        try:
            spmd.trace(step, described(), model=model)
        except ZeroDivisionError:
            assert fails
        assert seen() == before


def test_an_optimizer_that_fails_leaves_nothing_behind():
    class Failing(torch.optim.SGD):
        def step(self, closure=None):
            raise ZeroDivisionError

    model = wrapped()
    optimizer = Failing(model.parameters(), lr=0.1)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            spmd.trace(
                step_of(model, optimizer), described(), model=model, optimizer=optimizer
            )
    assert not torch_xla._XLAC._get_ir_debug()
    assert where(traced(wrapped()))


# Source lines


def test_the_users_frame():
    line = inspect.currentframe().f_lineno + 1
    assert user_frame() == (__file__, line)
    assert Site("forward", "", *user_frame()).file == __file__


@pytest.mark.parametrize(
    ("path", "is_library"),
    [
        (torch.nn.modules.linear.__file__, True),
        (torch_xla.__file__, True),
        (scopes.__file__, True),
        (inspect.getfile(FSDPv2), True),
        ("<frozen importlib._bootstrap>", True),
        ("/home/me/torch/train.py", False),
        ("/home/me/spmd/model.py", False),
        ("/home/me/contextlib/model.py", False),
        ("<stdin>", False),
        ("<ipython-input-1-abc>", False),
    ],
)
def test_libraries(path, is_library):
    assert scopes._is_library(path) is is_library


def test_code_from_a_notebook():
    source = "def forward(model, x):\n\n    return model(x) @ x.T\n"
    scope = {}
    exec(compile(source, "<ipython-input-7>", "exec"), scope)
    with spmd.meta_parameters():
        model = nn.Linear(DIM, DIM)
    program = spmd.trace(
        lambda x: scope["forward"](model, x), torch.ones(8, DIM), model=model, mesh=MESH
    )
    assert {one[1:] for one in locations(program, "dot")} == {("<ipython-input-7>", 3)}


def test_outside_of_a_trace_there_are_no_sites():
    assert Sites(None).sites == []
    assert Sites(None).module == ""
