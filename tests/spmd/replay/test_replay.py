"""What compiled steps do with variants, memory, and with what happens between calls."""

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import spmd
from spmd import CaptureError, CompiledStep
from spmd._replay import replay as module
from spmd._torch_xla import graph as torch_xla_graph
from tests.on_device import on_device, split_by, sync
from tests.spmd.training import (
    MESH,
    Training,
    adamw,
    batches,
    check_equal,
    compiled,
    mlp,
    run,
    run_lazily,
    simple,
    squares,
    state_of,
    values,
    wrapped,
)


def training(**options: Any) -> Training:
    torch.manual_seed(0)
    model = wrapped(mlp(**options))
    made = simple(model, adamw(model))
    spmd.prime_optimizer(made.optimizer)
    sync()
    return made


def step_of(made: Training, **options: Any) -> CompiledStep:
    return compiled(made, **options)


def parameters_of(made: Training) -> list[torch.Tensor]:
    return [p.detach().cpu() for p in made.model.parameters()]


# --- what it holds


def test_handles_of_spent_state_are_dropped_together(monkeypatch):
    jobs: list[list[list[torch.Tensor]]] = []

    class Dropper:
        def submit(self, drop: Callable[..., None], spent: Any) -> None:
            jobs.append([list(tensors) for tensors in spent])
            drop(spent)
            assert not any(spent)

    monkeypatch.setattr(module, "_dropper", Dropper())
    made = training()
    step = step_of(made)
    num = 2 * module._DROPPED_AT_ONCE + 2
    for _ in range(num + 1):
        step(made.batches[0])
        assert len(step._spent) <= module._DROPPED_AT_ONCE + 2
    # Not those of the last two calls, which the devices may still work for.
    assert [len(job) for job in jobs] == [module._DROPPED_AT_ONCE] * 2
    assert all(tensors for job in jobs for tensors in job)


# --- how often it compiles


def test_the_first_call_compiles_the_graph_of_the_step_and_nothing_else():
    made = training()
    made.batches = batches(4, rows=40)  # no other test has compiled this
    step = step_of(made)
    num = torch_xla_graph.num_compiles()
    step(made.batches[0])
    assert torch_xla_graph.num_compiles() == num + 1
    for batch in made.batches:
        step(batch)
    assert torch_xla_graph.num_compiles() == num + 1
    assert step.num_graphs == 1 and step.num_calls == 5


def test_gradients_dropped_at_the_start_do_not_compile_twice():
    made = training()

    def step(batch: torch.Tensor) -> torch.Tensor:
        made.optimizer.zero_grad()
        loss = squares(made.model, batch)
        loss.backward()
        made.optimizer.step()
        return loss

    made.batches = batches(4, rows=48)  # no other test has compiled this
    replayed = spmd.compile_step(step, model=made.model, optimizer=made.optimizer)
    num = torch_xla_graph.num_compiles()
    found = [replayed(b).item() for b in made.batches]
    assert torch_xla_graph.num_compiles() == num + 1 and replayed.num_graphs == 1
    gradients = [p.grad.cpu() for p in made.model.parameters()]

    lazy = training()
    lazy.batches = made.batches
    lazy.step, made.model, made.optimizer = step, lazy.model, lazy.optimizer
    wanted = run_lazily(lazy, 4)
    check_equal([[torch.tensor(loss)] for loss in found], wanted)
    check_equal(gradients, [p.grad.cpu() for p in lazy.model.parameters()])


def variant(change: str, made: Training) -> Callable[[], Any]:
    """Something that changes the graph."""
    group = made.optimizer.param_groups[0]
    return {
        "rows": lambda: batches(1, rows=16)[0],
        "mode": lambda: made.model.eval() and made.batches[0],
        "hyperparameter": lambda: group.update(betas=(0.9, 0.9)) or made.batches[0],
        "frozen": lambda: (
            made.model.module[0].requires_grad_(False) and made.batches[0]
        ),
        "dtype": lambda: made.batches[0].double(),
        "split": lambda: spmd.shard_batch(torch.randn(8, 16), MESH, (None, "fsdp")),
    }[change]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("rows", r"batch, now float32\[16, 16\] split .*, before float32\[8, 16\]"),
        ("mode", "training or evaluation mode of a module"),
        (
            "hyperparameter",
            r"optimizer hyperparameters: betas, now \(0.9, 0.9\), before \(0.9, 0.99",
        ),
        ("frozen", "which parameters require a gradient"),
        ("dtype", r"batch, now float64\[8, 16\]"),
        ("split", r"batch, now .* split \(None, 'fsdp'\), before"),
    ],
)
def test_a_variant_is_announced_and_right(change, words):
    made = training(dropout=0.5)
    made.step = lambda batch: simple(made.model, made.optimizer).step(batch.float())
    step = step_of(made, max_graphs=2)
    step(made.batches[0])
    with pytest.warns(UserWarning, match=f"graph 2 of at most 2, because of {words}"):
        found = step(variant(change, made)())
    assert step.num_graphs == 2

    lazy = training(dropout=0.5)
    results = run_lazily(lazy, 1)
    batch = variant(change, lazy)()
    del results
    assert found.isfinite().item()
    spmd._torch_xla.graph.set_seed(3)
    step(batch)  # the variant is known now
    assert step.num_graphs == 2


def test_going_back_to_an_earlier_variant_compiles_nothing():
    made = training()
    step = step_of(made)
    large = batches(1, rows=16)[0]
    step(made.batches[0])
    with pytest.warns(UserWarning, match="graph 2"):
        step(large)
    num = torch_xla_graph.num_compiles()
    for batch in (made.batches[1], large, made.batches[0]):
        step(batch)
    assert torch_xla_graph.num_compiles() == num


def test_one_graph_too_many_is_refused_by_what_changed():
    made = training()
    step = step_of(made, max_graphs=1)
    step(made.batches[0])
    before = state_of(made)
    text = (
        r"needs another graph, beyond max_graphs=1, because of batch, now "
        r"float32\[16, 16\] .* Keep it the same from call to call .* or raise"
    )
    with pytest.raises(CaptureError, match=text):
        step(batches(1, rows=16)[0])
    check_equal(state_of(made), before)
    step(made.batches[1])
    assert step.num_graphs == 1


def test_a_number_that_changes_is_refused_soon_rather_than_traced_for_ever():
    made = training()

    def step(batch: torch.Tensor, i: int) -> torch.Tensor:
        return made.step(batch) * (0.5 + i)

    replayed = spmd.compile_step(
        step, model=made.model, optimizer=made.optimizer, max_graphs=2
    )
    first = replayed(made.batches[0], 0).item()
    words = r"variant 2 of at most 2, because of an argument that is no tensor, now"
    with pytest.warns(UserWarning, match=rf"{words} \('i', 1\)"):
        second = replayed(made.batches[0], 1).item()
    assert second > 2 * first
    with pytest.raises(CaptureError, match=r"beyond max_graphs=2, .*now \('i', 2\)"):
        replayed(made.batches[0], 2)


def test_a_schedule_of_betas_is_refused_by_their_name():
    made = training()
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        made.optimizer, max_lr=0.1, total_steps=10
    )
    made.between = lambda i: schedule.step()
    step = step_of(made, max_graphs=1)
    with pytest.raises(CaptureError, match=r"optimizer hyperparameters: betas, now"):
        run(made, step, 3)


def test_true_and_one_are_different_arguments():
    def step(batch: torch.Tensor, flag: Any) -> torch.Tensor:
        return batch + 1 if flag is True else batch * 2

    replayed = spmd.compile_step(step)
    x = on_device(8, 4)
    check_equal(replayed(x, True).cpu(), (x + 1).cpu())
    with pytest.warns(UserWarning, match=r"graph 2 .*\('flag', 1\)"):
        check_equal(replayed(x, 1).cpu(), (x * 2).cpu())


EVICTED = """
import spmd
spmd.init(cpu_devices=8)
import torch, warnings
from tests.spmd.training import *
from tests.on_device import sync
warnings.simplefilter("error")
torch.manual_seed(0)
model = wrapped(mlp())
made = simple(model, adamw(model))
step = compiled(made, max_graphs=1)
losses = [step(b).item() for b in made.batches]
for i in range(8):
    (torch.ones(i + 2).to("xla") * 2).sum().item()
num = spmd._torch_xla.graph.num_compiles()
losses += [step(b).item() for b in made.batches]
assert spmd._torch_xla.graph.num_compiles() == num + 1
assert step.num_graphs == 1 and step.num_calls == 8
torch.manual_seed(0)
model = wrapped(mlp())
made = simple(model, adamw(model))
spmd.prime_optimizer(made.optimizer)
sync()
assert losses == [r[0].item() for r in run_lazily(made, 8)], losses
print("fine")
"""


def test_an_evicted_graph_is_captured_again(run_script):
    done = run_script(EVICTED, env={"XLA_COMPILATION_CACHE_SIZE": "4"})
    assert done.stdout.endswith("fine\n"), done.stderr


# --- between calls


def test_state_has_the_current_values_between_calls():
    made, lazy = training(norm=True), training(norm=True)
    step = step_of(made)
    for i in range(3):
        run(made, step, 1, first=i)
        run_lazily(lazy, 1, first=i)
        check_equal(
            {n: t.cpu() for n, t in made.model.state_dict().items()},
            {n: t.cpu() for n, t in lazy.model.state_dict().items()},
        )
        check_equal(parameters_of(made), parameters_of(lazy))
        for one, other in ((made, lazy), (lazy, made)):
            file = io.BytesIO()
            torch.save(one.model.state_dict(), file)
            file.seek(0)
            check_equal(
                {n: t.cpu() for n, t in torch.load(file).items()},
                {n: t.cpu() for n, t in other.model.state_dict().items()},
            )
        check_equal(
            values(copy.deepcopy(made.optimizer.state_dict())["state"]),
            values(lazy.optimizer.state_dict()["state"]),
        )
        with torch.no_grad():
            held = batches(6)[5]
            check_equal(
                squares(made.model.eval(), held).cpu(),
                squares(lazy.model.eval(), held).cpu(),
            )
        made.model.train()
        lazy.model.train()
    assert step.num_graphs == 1


def test_parameters_optimizer_state_and_annotations_stay_what_they_are():
    made = training(norm=True)
    step = step_of(made)
    parameters = list(made.model.parameters())
    buffers = dict(made.model.named_buffers())
    for batch in made.batches:
        step(batch)
    assert all(a is b for a, b in zip(made.model.parameters(), parameters, strict=True))
    assert all(b is buffers[n] for n, b in made.model.named_buffers())
    for parameter in parameters:
        known = spmd.get_sharding(parameter)
        assert known is not None and split_by(parameter, MESH, known.spec)
        state = made.optimizer.state[parameter]
        assert list(state) == ["step", "exp_avg", "exp_avg_sq"]
        assert spmd.get_sharding(state["exp_avg"]) == known
        assert split_by(state["exp_avg"], MESH, known.spec)


def test_lazy_execution_and_replay_may_take_turns():
    made, lazy = training(dropout=0.5), training(dropout=0.5)
    step = step_of(made)
    torch_xla_graph.set_seed(5)
    wanted = run_lazily(lazy, 12)
    torch_xla_graph.set_seed(5)
    found = []
    for i in range(0, 12, 4):
        found += run(made, step, 2, first=i)
        found += run_lazily(made, 2, first=i + 2)
    check_equal(found, wanted)
    check_equal(state_of(made), state_of(lazy))
    assert step.num_graphs == 1


def load_parameters(made: Training) -> None:
    state = {n: t.cpu() * 0.5 for n, t in made.model.state_dict().items()}
    made.model.load_state_dict(state)


def load_from_the_device(made: Training) -> None:
    state = {n: t.detach().clone() * 0.5 for n, t in made.model.state_dict().items()}
    made.model.load_state_dict(state)


def assign_data(made: Training) -> None:
    for p in made.model.parameters():
        p.data = (p.detach().cpu() * 0.5).to("xla")


@torch.no_grad()
def in_place(made: Training) -> None:
    for p in made.model.parameters():
        p.mul_(0.5)


@torch.no_grad()
def copied(made: Training) -> None:
    for p in made.model.parameters():
        p.copy_((p.detach().cpu() * 0.5).to("xla"))


def load_optimizer(made: Training) -> None:
    state = copy.deepcopy(made.optimizer.state_dict())
    for table in state["state"].values():
        table["exp_avg"] = table["exp_avg"] * 0.5
    made.optimizer.load_state_dict(state)


def load_optimizer_from_the_host(made: Training) -> None:
    file = io.BytesIO()
    torch.save(made.optimizer.state_dict(), file)
    file.seek(0)
    state = torch.load(file, map_location="cpu")
    for group in state["param_groups"]:  # as if it had never been primed
        group["capturable"] = False
    made.optimizer.load_state_dict(state)
    spmd.shard_optimizer(made.optimizer)


def replace_state(made: Training) -> None:
    for table in made.optimizer.state.values():
        table["exp_avg"] = table["exp_avg"].clone()


CHANGES = [
    load_parameters,
    load_from_the_device,
    assign_data,
    in_place,
    copied,
    load_optimizer,
    load_optimizer_from_the_host,
    replace_state,
]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("synced", [False, True])
def test_state_changed_between_calls_is_taken_up(change, synced):
    found = []
    for replay in (False, True):
        made = training()
        step = step_of(made) if replay else None
        history = []
        for i in range(3):
            if step is not None:
                history += run(made, step, 2, first=2 * i)
            else:
                spmd.prime_optimizer(made.optimizer)
                history += run_lazily(made, 2, first=2 * i)
            change(made)
            if synced:
                sync()
        sync()
        found.append((history, state_of(made)))
        if step is not None:
            assert step.num_graphs == 1
            for p in made.model.parameters():
                known = spmd.get_sharding(p)
                assert known is not None
    check_equal(list(found[1]), list(found[0]))


def test_a_call_that_finds_what_the_last_left_looks_at_nothing(monkeypatch):
    made = training(dropout=0.5)
    step = step_of(made)
    for batch in made.batches[:2]:
        step(batch)
    rates = iter((0.1, 0.2, 0.3))
    monkeypatch.setattr(torch_xla_graph.torch_xla, "sync", None)  # not called
    monkeypatch.setattr(torch_xla_graph, "layouts", None)
    for batch in made.batches[1:]:
        made.optimizer.param_groups[0]["lr"] = next(rates)
        step(batch)


def test_a_step_that_updates_nothing_does_not_wait(monkeypatch):
    model = wrapped(mlp()).eval()

    @torch.no_grad()
    def evaluate(batch: torch.Tensor) -> torch.Tensor:
        return model(batch)

    step = spmd.compile_step(evaluate, model=model)
    batch = batches(1)[0]
    wanted = step(batch).cpu()
    monkeypatch.setattr(spmd._torch_xla.seam, "wait", None)  # not called
    found = step(batch)
    monkeypatch.undo()
    check_equal(found.cpu(), wanted)


def test_a_learning_rate_set_between_calls():
    made, lazy = training(), training()
    step = step_of(made)
    for i, rate in enumerate((0.0, 1.0, 0.01, 0.01, 3e-4)):
        for one in (made, lazy):
            one.optimizer.param_groups[0]["lr"] = rate
        check_equal(run(made, step, 1, first=i), run_lazily(lazy, 1, first=i))
    assert step.num_graphs == 1


def test_a_parameter_group_added_between_calls():
    made = training()
    late = nn.Parameter(torch.ones(16).to("xla"))
    spmd.mark_sharding(late, MESH, ("fsdp",), grad=("fsdp",))

    def step(batch: torch.Tensor) -> torch.Tensor:
        loss = (made.model(batch) * late - batch).square().mean()
        loss.backward()
        made.optimizer.step()
        made.model.zero_grad()
        late.grad = None
        return loss

    extra = {"late": late}
    replayed = spmd.compile_step(
        step, model=made.model, optimizer=made.optimizer, extra=extra
    )
    replayed(made.batches[0])
    assert late.sum().item() == 16
    made.optimizer.add_param_group({"params": [late]})
    with pytest.warns(UserWarning, match="optimizer hyperparameters"):
        replayed(made.batches[1])
    assert late.sum().item() != 16


def test_what_was_recorded_before_a_step_is_of_before():
    made = training()
    step = step_of(made)
    step(made.batches[0])
    with torch.no_grad():
        wanted = squares(made.model, made.batches[0]).item()
        pending = squares(made.model, made.batches[0])
    step(made.batches[1])
    step(made.batches[2])
    assert pending.item() == wanted


def test_what_was_recorded_before_moves_the_seed_only_if_it_draws():
    found = []
    for pending in (lambda: None, lambda: on_device(4) * 2.5):
        made = training(dropout=0.5)
        step = step_of(made)
        torch_xla_graph.set_seed(11)
        held = pending()
        found.append([step(b).item() for b in made.batches])
        assert held is None or held.sum().item() == 15
    check_equal(found[0], found[1])
    made = training(dropout=0.5)
    step = step_of(made)
    torch_xla_graph.set_seed(11)
    drawn = torch.rand(4, device="xla")
    assert step(made.batches[0]).item() != found[0][0]
    assert 0 < drawn.sum().item() < 4


def test_a_batch_computed_on_the_device():
    made, lazy = training(), training()
    step = step_of(made)
    found = [step(b * 1.5).cpu() for b in made.batches]
    made.batches = [b.cpu() for b in made.batches]
    lazy.batches = [spmd.shard_batch(b * 1.5, MESH) for b in made.batches]
    check_equal([[f] for f in found], run_lazily(lazy, 4))


# --- memory


def donated(step: CompiledStep, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Sizes of what the graphs that are compiled from now on may reuse."""
    sizes: list[int] = []
    original = torch_xla_graph.donating

    def spy(tensors: Any) -> Any:
        sizes.extend(t.numel() for t in tensors)
        return original(tensors)

    monkeypatch.setattr(torch_xla_graph, "donating", spy)
    return sizes


def test_only_what_is_replaced_is_donated(monkeypatch):
    made = training()
    made.model.module[0].requires_grad_(False)
    frozen = [p for p in made.model.parameters() if not p.requires_grad]
    held = [p.detach() for p in frozen]
    step = step_of(made)
    sizes = donated(step, monkeypatch)
    for batch in made.batches:
        step(batch)
    trained = [p.numel() for p in made.model.parameters() if p.requires_grad]
    assert sorted(sizes) == sorted([*trained * 3, *[1] * len(trained)])
    check_equal([h.cpu() for h in held], [p.detach().cpu() for p in frozen])
    assert made.batches[0].isfinite().all()


def test_memory_kept_by_another_tensor_is_lost_with_donation_only():
    made = training()
    step = step_of(made)
    step(made.batches[0])
    held = made.model.module[0].weight.detach()
    wanted = held.cpu()
    step(made.batches[1])
    # torch_xla's words for a buffer that is gone
    with pytest.raises(RuntimeError, match="Trying to access XLA data"):
        held.cpu()
    made = training()
    step = step_of(made, donate=False)
    step(made.batches[0])
    held = made.model.module[0].weight.detach()
    step(made.batches[1])
    check_equal(held.cpu(), wanted)
    assert not torch.equal(made.model.module[0].weight.cpu(), wanted)


def test_memory_kept_when_a_step_is_compiled_is_not_taken():
    made = training()
    held = made.model.module[0].weight.detach()
    wanted = held.cpu()
    step = step_of(made)
    step(made.batches[0])
    check_equal(held.cpu(), wanted)


def test_state_that_shares_memory_is_given_memory_of_its_own():
    made, lazy = training(), training()
    step = step_of(made)
    for table in made.optimizer.state.values():
        table["step"] = torch.tensor(0.0).to("xla")  # shares its upload with its equals
    check_equal(run(made, step, 1), run_lazily(lazy, 1))
    for one in (made, lazy):  # between calls
        table = one.optimizer.state[one.model.module[0].weight]
        sync()
        table["exp_avg"].data = table["exp_avg_sq"].data
        if one is lazy:
            table["exp_avg"] = table["exp_avg"].clone()
    check_equal(run(made, step, 2, first=1), run_lazily(lazy, 2, first=1))
    check_equal(state_of(made), state_of(lazy))
    assert step.num_graphs == 1


def test_replacing_without_donation_is_exact_too():
    made, lazy = training(), training()
    step = step_of(made, donate=False)
    check_equal(run(made, step, 5), run_lazily(lazy, 5))
    check_equal(state_of(made), state_of(lazy))


def test_results_of_earlier_calls_stay_readable():
    made = training()
    weight = made.model.module[0].weight

    def step(batch: torch.Tensor) -> Any:
        loss = made.step(batch)
        return loss, weight.detach().clone()

    replayed = spmd.compile_step(step, model=made.model, optimizer=made.optimizer)
    results = []
    wanted = []
    for batch in made.batches:
        results.append(replayed(batch)[1])
        wanted.append(weight.detach().cpu())
    check_equal([r.cpu() for r in results], wanted)


# --- layouts


def test_state_without_an_annotation_stays_whole():
    model = nn.Module()
    model.w = nn.Parameter(torch.ones(8, 4).to("xla"))

    def step(batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            model.w.copy_(model.w * 0.5 + batch)
        return model.w.sum()

    x = spmd.shard_batch(torch.ones(8, 4), MESH)
    replayed = spmd.compile_step(step, model=model)
    found = [replayed(x).item() for _ in range(4)]
    assert found == [32 * v for v in (1.5, 1.75, 1.875, 1.9375)]
    assert replayed.num_graphs == 1


def test_state_laid_out_otherwise_is_another_variant():
    model = nn.Module()
    model.w = nn.Parameter(torch.ones(8, 4).to("xla"))

    @torch.no_grad()
    def step(batch: torch.Tensor) -> torch.Tensor:
        model.w.mul_(batch)
        return model.w.sum()

    x = spmd.shard_batch(torch.full((8, 4), 2.0), MESH)
    replayed = spmd.compile_step(step, model=model)
    found = [replayed(x).item()]
    # Behind the back of `mark_sharding`, so that nobody knows where it should be.
    columns = spmd.mark_sharding(torch.ones(8, 4).to("xla"), MESH, ("fsdp", None))
    model.w.data = columns.detach()
    text = (
        r"graph 2 of at most 4, because of how a tensor of the state is laid out: now "
        r"float32\[8, 4\] \{devices=\[8,1\].*before float32\[8, 4\] \{replicated\}"
    )
    with pytest.warns(UserWarning, match=text):
        found.append(replayed(x).item())
    found += [replayed(x).item(), replayed(x).item()]
    assert found == [64, 64, 128, 256] and replayed.num_graphs == 2


def test_a_parameter_that_is_split_in_another_way_between_calls():
    def split(made):
        parameter = next(p for p in made.model.parameters() if p.ndim == 2)
        known = spmd.get_sharding(parameter)
        spmd.clear_sharding(parameter)
        spmd.mark_sharding(parameter, known.mesh, known.spec[::-1])

    made, lazy = training(), training()
    step = step_of(made)
    got = [step(made.batches[0]).item()]
    split(made)
    with pytest.warns(UserWarning, match="how a tensor of the state is laid out"):
        got.append(step(made.batches[1]).item())
    got.append(step(made.batches[2]).item())
    assert step.num_graphs == 2
    want = [row[0].item() for row in run_lazily(lazy, 3)]
    assert got == pytest.approx(want, rel=1e-5)


def test_two_steps_over_one_model_know_each_others_layouts():
    made, lazy = training(), training()

    def half(batch: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for p in made.model.parameters():
                spmd.mark_sharding(
                    p.mul_(0.5), MESH, spmd.get_sharding(p).spec, grad=None
                )
        return batch.sum()

    step, other = step_of(made), spmd.compile_step(half, model=made.model)
    for i in range(4):
        check_equal(run(made, step, 1, first=i), run_lazily(lazy, 1, first=i))
        other(made.batches[0])
        in_place(lazy)
        sync()
    check_equal(state_of(made), state_of(lazy))
    assert step.num_graphs == other.num_graphs == 1
