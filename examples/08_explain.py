"""Two layers whose activations are gathered where weights were expected, and the fix.

    python examples/08_explain.py                    # h100:2x8, half a minute
    python examples/08_explain.py --rows 6400        # the same with four times the rows

The weights of two linear layers are split on their first dim over `fsdp`, the batch
over `fsdp` and `replica`. That is FSDP: one expects that weights are gathered and rows
stay where they are. The compiler decides otherwise. The example asks what moves and
why, has the fix proven by compiling again, and traces anew by the plan that comes out.
"""

import argparse
import os
from pathlib import Path

# torch_xla reads both when it is imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import torch
from rich.console import Console
from torch import nn

import profiling
import spmd
from profiling import Figures

IN, HIDDEN, OUT = 12800, 9600, 1280
ROWS = 1600
MESH = spmd.Mesh({"replica": 2, "fsdp": 8})
BATCH = (("fsdp", "replica"), None)  # rows over all 16 devices
PLAN = spmd.Plan({"*.weight": ("fsdp", None)})  # nothing about outputs


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(IN, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, OUT, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [rows, IN]
        h = self.up(x)  # [rows, HIDDEN]
        return self.down(h)  # [rows, OUT]


def trace(plan: spmd.Plan, rows: int) -> spmd.Program:
    """One AdamW step, split as the plan says; nothing has data."""
    with spmd.meta_parameters():
        model = Net().to(torch.bfloat16)
    spmd.shard_module(model, MESH, plan)
    optimizer = torch.optim.AdamW(model.parameters())

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = (model(x) - y).float().square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    x = torch.empty(rows, IN, dtype=torch.bfloat16, device="meta")
    y = torch.empty(rows, OUT, dtype=torch.bfloat16, device="meta")
    return spmd.trace(
        step, x, y, model=model, optimizer=optimizer, mesh=MESH, batch_spec=BATCH
    )


def say(figures: Figures) -> str:
    """What moves in a step, in MiB of a device."""
    weights, rows = figures.weight_gather_bytes, figures.activation_bytes
    return f"weights {weights / 2**20:.1f} MiB, activations {rows / 2**20:.1f} MiB"


def main() -> int:
    parser = argparse.ArgumentParser(description="Explain what moves, and fix it.")
    parser.add_argument("--target", default="h100:2x8", help="16 devices")
    parser.add_argument("--rows", type=int, default=ROWS, help="of a batch")
    parser.add_argument("--out", type=Path, default=Path("out"), help="a folder")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    spmd.init(cpu_devices=1)  # traced here, compiled for the target

    print("1. The step as it is annotated\n")
    program = trace(PLAN, args.rows)
    path = program.save(args.out / "08_two_layers.spmd")
    schedule = profiling.compile(program, args.target)
    for total in schedule.totals("role"):
        print(f"   {total.key:18} {total.step_wire_bytes / 2**20:8.1f} MiB")

    print("\n2. What of that nobody asked for, and why\n")
    findings = profiling.explain(program, schedule)
    problems = [f for f in findings if f.is_problem]
    if not problems:
        print("   nothing: the compiler gathers the weights of itself")
        return 0
    for found in problems:
        print(f"   {found.kind}: {found.what}")
        for line in found.why:
            print(f"     - {line}")
        if found.fix is not None:
            print(f"     fix: {found.fix.code}\n     {found.fix.place}")

    print("\n3. The same with each fix, compiled again\n")
    verified = profiling.verify(program, schedule, findings)
    show(verified)
    if verified.plan is None:
        print("   no fix helps here")
        return 1

    print("\n4. The plan that comes out, and the step that it makes\n")
    plan = args.out / "08_plan.yaml"
    plan.write_text(verified.plan.to_yaml(), encoding="utf-8")
    print(plan.read_text(encoding="utf-8"))
    made = profiling.compile(trace(spmd.Plan.from_yaml(plan), args.rows), args.target)
    left = sum(c.step_wire_bytes for c in made.collectives if c.role == "activation")
    print(f"   before: {say(verified.before)}")
    print(f"   after:  {say(verified.after)}")
    print(f"   traced anew by the plan: activations {left / 2**20:.1f} MiB")
    print(f"\nagain: spmd explain {path} --target {args.target} --verify")
    return 0


def show(verified: profiling.Verified) -> None:
    """What became of each problem."""
    console = Console(width=100)
    for found in verified.findings:
        proof = None if found.fix is None else found.fix.proof
        if proof is not None:
            costs = f" for more {', '.join(proof.costs)}" if proof.is_trade else ""
            gone = "gone" if proof.gone else "smaller"
            line = f"{found.kind}: {gone}; less {', '.join(proof.gains)}{costs}"
            console.print(f"   {line}", highlight=False)
            if proof.even_at is not None:
                line = f"from {proof.even_at:.2g} times these rows on it sends less"
                console.print(f"     {line}", highlight=False)
        elif found.goes_with:
            console.print(f"   {found.kind}: goes with it", highlight=False)


if __name__ == "__main__":
    raise SystemExit(main())
