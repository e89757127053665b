"""A small network of two residual blocks, as torchvision writes them, and a linear layer."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as own


class Block(nn.Module):  # type: ignore[misc] # torch has no types here
    """A residual block as torchvision writes it: one ReLU module, in place, called three times."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)
        self.conv2, self.bn2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = None
        if inputs != outputs:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.downsample is not None:
            identity = self.downsample(x)
        out += identity
        return self.relu(out)


class Small(nn.Module):  # type: ignore[misc] # as above
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.Sequential(Block(4, 8), Block(8, 8))
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor, scale: float | None = None) -> torch.Tensor:
        y = own.gelu(self.head(self.blocks(x).mean((2, 3))), approximate="tanh")
        return y if scale is None else y * scale


def small() -> Small:
    made = Small()
    made.half().eval()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.normal_(module.weight)
            nn.init.normal_(module.running_mean)
            nn.init.uniform_(module.running_var, 0.5, 2)
    return made


def small_like(model: nn.Module) -> nn.Module:
    """Return a network by PyTorch's layers with the parameters of another."""
    made = small()
    made.load_state_dict(model.state_dict())
    return made
