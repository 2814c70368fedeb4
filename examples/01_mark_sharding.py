"""Annotate a two-layer network by hand and see which device holds which piece.

    python examples/01_mark_sharding.py

Only the batch and the two weights are annotated. The compiler works out how to split
everything between them and puts in the communication. The same network, unsharded in
plain PyTorch, must give the same loss and the same gradients.
"""

import copy
import os

# torch_xla reads both when it is imported, so they come first.
os.environ.setdefault("PJRT_DEVICE", "CPU")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # no warnings of XLA's C++

import torch
import torch_xla
from torch import nn
from torch_xla.distributed.spmd import XLAShardedTensor

import spmd

DEVICES = 8  # virtual CPU devices; they share the cores of this machine
MESH = {"data": 4, "tensor": 2}  # 4 x 2: "data" splits the batch, "tensor" the weights
BATCH = 32  # rows, 8 for each of the 4 places along "data"
EMBED = 64  # features in and out
HIDDEN = 256  # features between the layers, 128 for each of the 2 along "tensor"


class TwoLayers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(EMBED, HIDDEN, bias=False)  # weight [hidden, embed]
        self.down = nn.Linear(HIDDEN, EMBED, bias=False)  # weight [embed, hidden]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(torch.relu(self.up(x)))  # [batch, embed]


def step(
    model: nn.Module, x: torch.Tensor
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """One forward and backward pass; the loss, and a gradient for each parameter."""
    names, parameters = zip(*model.named_parameters(), strict=True)
    loss = (model(x) - x).square().mean()
    gradients = torch.autograd.grad(loss, parameters)
    return loss.detach(), dict(zip(names, gradients, strict=True))


def print_pieces(title: str, tensor: torch.Tensor) -> None:
    """Print what each device really holds, as the runtime reports it."""
    print(f"\n{title}")
    for device, shard in enumerate(XLAShardedTensor(tensor).local_shards):
        rows, columns = (f"{s.start}:{s.stop}" for s in shard.indices)
        shape = list(shard.data.shape)
        print(f"  device {device} holds {shape}, [{rows}, {columns}] of the whole")


def main() -> None:
    spmd.init(cpu_devices=DEVICES)
    mesh = spmd.Mesh(MESH)
    torch.manual_seed(0)
    reference = TwoLayers()
    x = torch.randn(BATCH, EMBED)

    model = spmd.to_device(copy.deepcopy(reference))
    spmd.mark_sharding(model.up.weight, mesh, ("tensor", None), name="up.weight")
    spmd.mark_sharding(model.down.weight, mesh, (None, "tensor"), name="down.weight")
    sharded_x = spmd.mark_sharding(x.to("xla"), mesh, ("data", None), name="x")

    loss, gradients = step(model, sharded_x)
    torch_xla.sync(wait=True)  # compile and run what was recorded so far
    expected_loss, expected_gradients = step(reference, x)

    for name, tensor in {"x": sharded_x, **dict(model.named_parameters())}.items():
        print(f"\n{name}")
        spmd.visualize(tensor)
    print_pieces("up.weight, piece by piece", model.up.weight)
    print_pieces("its gradient, which nobody annotated", gradients["up.weight"])

    print(f"\nloss  sharded {loss.item():.7f}  unsharded {expected_loss.item():.7f}")
    torch.testing.assert_close(loss.cpu(), expected_loss)
    for name, expected in expected_gradients.items():
        gradient = gradients[name].cpu()
        difference = (gradient - expected).abs().max().item()
        print(f"gradient of {name:11}  largest difference {difference:.1e}")
        torch.testing.assert_close(gradient, expected)


if __name__ == "__main__":
    main()
