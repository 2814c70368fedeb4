"""A model with a list of equal layers, and the same with their tensors stacked."""

import torch
from torch import nn

from spmd._stacked.stack import stack_layers


class Layer(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width)
        self.register_buffer("seen", torch.rand(3))
        self.register_buffer("mask", torch.ones(2), persistent=False)

    def forward(self, x):
        return x + self.up(self.norm(x))


class Model(nn.Module):
    def __init__(self, num_layers=3, kind=Layer):
        super().__init__()
        self.embed = nn.Linear(8, 8)
        self.layers = nn.ModuleList(kind() for _ in range(num_layers))

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return x


def build(**options):
    torch.manual_seed(0)
    return Model(**options)


def stacked(model=None):
    model = model or build()
    others = {id(p): n for n, p in model.named_parameters() if "layers" not in n}
    stack_layers(model.layers, name="layers", others=others)
    return model
