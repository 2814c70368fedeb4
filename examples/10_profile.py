"""Train with figures of each step, record a few, and read what they really did.

    python examples/10_profile.py                # half a minute
    tensorboard --logdir runs/10_profile         # the same figures and the profile

Nothing waits for the devices but every fifth step. The steps between two waits are
recorded, and the profile is held against what the compiler planned. The estimate is
for CPU devices of a nominal speed: which figures are large counts here, not the ratio.
"""

import argparse
import os
from pathlib import Path

# torch_xla reads both when it is imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import torch
from torch import nn

import profiling
import spmd
from fsdpv2 import FSDPv2

DEVICES = 8  # virtual CPU devices; they share the cores of this machine
DIM, LAYERS = 256, 4
ROWS = 512  # of a step, 64 on each device
LOG_EVERY = 5  # steps between two lines, and two waits for the devices
RECORDED = range(10, 15)  # steps, counted from 0: all between two waits
OUT = Path("runs/10_profile")


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(DIM, 4 * DIM), nn.Linear(4 * DIM, DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x)))  # [rows, dim]


def main() -> None:
    parser = argparse.ArgumentParser(description="Train, record and read a profile.")
    parser.add_argument("--steps", type=int, default=20)
    args = parser.parse_args()
    spmd.init(cpu_devices=DEVICES)
    torch.manual_seed(0)
    model = FSDPv2(nn.Sequential(*(Block() for _ in range(LAYERS))))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def train_step(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        loss = (model(x) - x.flip(-1)).square().mean()
        loss.backward()
        grad_norm = model.clip_grad_norm_(1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss, grad_norm

    rows = torch.empty(ROWS, DIM, device="meta")
    program = spmd.trace(train_step, rows, model=model, optimizer=optimizer)
    compiled = profiling.compile(program, f"cpu:{DEVICES}")
    step = spmd.compile_step(train_step, model=model, optimizer=optimizer)
    batches = (torch.randn(ROWS, DIM) for _ in range(args.steps))
    loader = spmd.ShardedLoader(batches, model.mesh)

    metrics = profiling.StepMetrics(
        tokens=ROWS,
        log_every=LOG_EVERY,
        flops=program,  # counted in the traced step
        peak=f"cpu:{DEVICES}",  # a chip such as "h100"; of a CPU no peak is known
        compiled=compiled,  # its memory, since CPU devices do not say theirs
        tensorboard=OUT,
    )
    with profiling.capture(OUT, steps=RECORDED) as capture, metrics:
        for batch in loader:
            metrics.step(*step(batch))

    profile = profiling.read_profile(capture.path, program=program)
    print()
    profile.show(top=3)  # the verdict, and measured beside estimated
    print(f"\nReport: {profile.save_html(OUT / 'profile.html')}")


if __name__ == "__main__":
    main()
