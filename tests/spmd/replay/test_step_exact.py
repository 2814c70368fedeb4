"""A compiled step gives exactly what lazy execution gives: not one bit differs.

Twenty steps each; every result and all state at the end are compared.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import spmd
from spmd import Mesh, Plan
from tests.on_device import sync
from tests.spmd.training import (
    MESH,
    Training,
    adamw,
    batches,
    check_equal,
    check_exact,
    mlp,
    simple,
    squares,
    state_of,
    values,
    wrapped,
)

SGD = torch.optim.SGD
RULES: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.01),
    "AdamW-amsgrad": lambda p: torch.optim.AdamW(p, lr=0.01, amsgrad=True),
    "Adam-maximize": lambda p: torch.optim.Adam(
        p, lr=1e-3, weight_decay=0.1, maximize=True
    ),
    "RMSprop": lambda p: torch.optim.RMSprop(p, lr=1e-3, momentum=0.9, centered=True),
    "RAdam": lambda p: torch.optim.RAdam(p, lr=0.01),
    "NAdam": lambda p: torch.optim.NAdam(p, lr=0.01),
    "Adamax": lambda p: torch.optim.Adamax(p, lr=0.01),
    "Adadelta": lambda p: torch.optim.Adadelta(p, lr=0.5),
    "Rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
    "ASGD": lambda p: torch.optim.ASGD(p, lr=0.01),
}


@pytest.mark.parametrize("name", RULES)
def test_rules(name):
    def make() -> Training:
        model = wrapped(mlp())
        return simple(model, RULES[name](model.parameters()))

    # torch itself reads a rate on the device where it is not AdamW's kind of rule.
    check_exact(make, device_lr=name not in ("RMSprop", "Adadelta"))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9},
        {"momentum": 0.9, "nesterov": True},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"maximize": True, "weight_decay": 0.1},
    ],
    ids=lambda o: "-".join(o) or "plain",
)
def test_sgd(options):
    def make() -> Training:
        model = wrapped(mlp())
        return simple(model, SGD(model.parameters(), lr=0.1, **options))

    check_exact(make, device_lr=False)


@pytest.mark.filterwarnings("ignore:compile_step. compiling graph 2 of at most 4")
def test_sgd_with_dampening_starts_differently_and_so_has_two_graphs():
    def make() -> Training:
        model = wrapped(mlp())
        return simple(
            model, SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.2)
        )

    check_exact(make, device_lr=False, num_graphs=2)


def test_dropout():
    def make() -> Training:
        model = wrapped(mlp(dropout=0.5))
        return simple(model, adamw(model))

    check_exact(make)


def test_a_step_without_random_numbers_moves_the_seed_on_too():
    def make() -> Training:
        model = wrapped(mlp())
        return simple(model, adamw(model))

    check_exact(make, num=3)
    seed = spmd._torch_xla.graph.seed()
    check_exact(make, num=3)
    assert spmd._torch_xla.graph.seed() == seed


def test_clipped_gradients_with_the_norm_returned():
    def make() -> Training:
        model = wrapped(mlp())
        optimizer = adamw(model)

        def step(batch: torch.Tensor) -> dict[str, torch.Tensor]:
            loss = squares(model, batch)
            loss.backward()
            norm = model.clip_grad_norm_(0.05)
            optimizer.step()
            optimizer.zero_grad()
            return {"loss": loss, "norm": norm}

        return Training(model, optimizer, step, batches())

    check_exact(make)


def test_gradients_added_up_inside_one_graph():
    def make() -> Training:
        model = wrapped(mlp())
        optimizer = adamw(model)

        def step(batch: list[torch.Tensor]) -> torch.Tensor:
            losses = []
            for part in batch:
                losses.append(squares(model, part))
                losses[-1].backward()
            optimizer.step()
            optimizer.zero_grad()
            return torch.stack(losses).mean()

        return Training(model, optimizer, step, [batches(3), batches(6)[3:]])

    check_exact(make)


def schedule(kind: str, optimizer: torch.optim.Optimizer) -> Any:
    if kind == "lambda":
        return lr_scheduler.LambdaLR(optimizer, lambda i: min(i / 5, 1.0))
    if kind == "one-cycle":
        return lr_scheduler.OneCycleLR(
            optimizer, max_lr=0.02, total_steps=30, cycle_momentum=False
        )
    return lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)


@pytest.mark.parametrize("kind", ["lambda", "one-cycle", "cosine"])
@pytest.mark.parametrize("on_device", [False, True], ids=["number", "tensor"])
def test_schedules_stepped_outside(kind, on_device):
    def make() -> Training:
        model = wrapped(mlp())
        rate = torch.tensor(0.01).to("xla") if on_device else 0.01
        optimizer = adamw(model, lr=rate, capturable=True)
        scheduler = schedule(kind, optimizer)
        return simple(model, optimizer, between=lambda i: scheduler.step())

    check_exact(make)


def test_a_rate_for_each_group():
    def make() -> Training:
        model = wrapped(mlp())
        groups = [
            {"params": [p], "lr": 0.01 * (1 + i // 2)}
            for i, p in enumerate(model.parameters())
        ]
        optimizer = torch.optim.AdamW(groups)
        scheduler = lr_scheduler.ExponentialLR(optimizer, 0.9)
        return simple(model, optimizer, between=lambda i: scheduler.step())

    check_exact(make)


class Master:
    """AdamW on float32 copies of bfloat16 parameters, as mixed precision has it."""

    def __init__(self, model: nn.Module) -> None:
        self.pairs = [(p, nn.Parameter(p.detach().float())) for p in model.parameters()]
        for p, copy in self.pairs:
            known = spmd.get_sharding(p)
            assert known is not None
            spmd.mark_sharding(copy, known.mesh, known.spec, grad=known.spec)
        self.optimizer = torch.optim.AdamW([c for _, c in self.pairs], lr=0.01)

    def step(self) -> None:
        for p, copy in self.pairs:
            assert p.grad is not None
            copy.grad, p.grad = p.grad.float(), None
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for p, copy in self.pairs:
                p.copy_(copy)


@pytest.mark.filterwarnings(
    "ignore:compile_step. . of the optimizer.s parameters are none"
)
def test_bfloat16_with_float32_masters():
    def make() -> Training:
        model = wrapped(mlp().bfloat16())
        master = Master(model)

        def step(batch: torch.Tensor) -> torch.Tensor:
            loss = squares(model, batch.bfloat16()).float()
            loss.backward()
            master.step()
            return loss

        return Training(model, master.optimizer, step, batches())

    training = check_exact(make)
    assert next(training.model.parameters()).dtype == torch.bfloat16


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        self.inner = nn.Linear(16, 16)
        self.head = nn.Linear(16, 32, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.inner(self.embed(tokens)).relu())


def tokens(num: int, *, vocab: int = 32, seq: int = 8) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(2)
    data = [torch.randint(vocab, (8, seq), generator=generator) for _ in range(num)]
    return [spmd.shard_batch(d, MESH) for d in data]


def test_tied_weights():
    def make() -> Training:
        model = wrapped(Tied())
        optimizer = adamw(model)

        def step(batch: torch.Tensor) -> torch.Tensor:
            logits = model(batch).flatten(0, 1)
            loss = nn.functional.cross_entropy(logits, batch.flatten())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss

        return Training(model, optimizer, step, tokens(3))

    training = check_exact(make)
    assert training.model.embed.weight is training.model.head.weight


def test_running_statistics():
    def make() -> Training:
        model = wrapped(mlp(norm=True))
        return simple(model, SGD(model.parameters(), lr=0.1))

    training = check_exact(make, device_lr=False)
    assert training.model.module[1].num_batches_tracked.item() == 20


def test_frozen_parameters():
    def make() -> Training:
        model = wrapped(mlp())
        model.module[0].requires_grad_(False)
        return simple(model, adamw(model))

    check_exact(make)


def test_a_rule_written_by_hand():
    def make() -> Training:
        model = wrapped(mlp())
        rate = torch.tensor(0.1).to("xla")

        def step(batch: torch.Tensor) -> torch.Tensor:
            loss = squares(model, batch)
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    p.sub_(p.grad * rate)
                    p.grad = None
                rate.mul_(0.9)
            return loss

        return Training(model, None, step, batches(), extra={"rate": rate})

    check_exact(make)


@pytest.mark.filterwarnings("ignore:shard_module. . parameters .* match no pattern")
def test_a_model_annotated_in_part():
    mesh = Mesh({"data": 4, "tensor": 2})

    def make() -> Training:
        model = spmd.to_device(mlp())
        plan = Plan({"0.weight": ("tensor", None), "4.weight": (None, "tensor")})
        spmd.shard_module(model, mesh, plan)
        data = [
            spmd.shard_batch(torch.randn(8, 16), mesh, ("data", None)) for _ in "ab"
        ]
        training = simple(model, adamw(model))
        training.batches = data
        return training

    check_exact(make)


@pytest.mark.parametrize("pure", [False, True])
def test_scanned_layers(pure, monkeypatch):
    from torch_xla.experimental import scan
    from torch_xla.experimental.scan_layers import scan_layers

    # torch_xla's own needs torchax.
    monkeypatch.setattr(scan, "shard_as", lambda *tensors: tensors)

    class Scanned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()) for _ in range(3)]
            self.layers = nn.ModuleList(layers)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return scan_layers(self.layers, x, is_layer_pure=pure)

    def make() -> Training:
        model = wrapped(Scanned())
        return simple(model, adamw(model))

    check_exact(make, num=20 if pure else 5)  # else torch_xla traces for a second


@pytest.mark.filterwarnings("ignore:compile_step. compiling graph 2 of at most 4")
def test_gradients_added_up_over_compiled_steps():
    """One graph keeps gradients for each micro-batch, another applies them."""

    def make() -> tuple[nn.Module, Any, Any, Any]:
        torch.manual_seed(0)
        model = wrapped(mlp())
        optimizer = adamw(model)
        spmd.prime_optimizer(optimizer)

        def micro(batch: torch.Tensor) -> torch.Tensor:
            loss = squares(model, batch)
            loss.backward()
            return loss

        def apply() -> None:
            optimizer.step()
            optimizer.zero_grad()

        return model, optimizer, micro, apply

    found = []
    for replay in (False, True):
        model, optimizer, micro, apply = make()
        if replay:
            micro = spmd.compile_step(micro, model=model)
            apply = spmd.compile_step(apply, model=model, optimizer=optimizer)
        else:
            optimizer.param_groups[0]["lr"] = torch.tensor(0.01).to("xla")
        losses = []
        for _ in range(5):
            for batch in batches(4):
                losses.append(micro(batch))
                if not replay:
                    sync()
            apply()
            if not replay:
                sync()
        training = Training(model, optimizer, micro, ())
        found.append((values(losses), state_of(training)))
        if replay:
            assert micro.num_graphs == 2  # with and without gradients to add to
            assert apply.num_graphs == 1
    check_equal(list(found[1]), list(found[0]))
