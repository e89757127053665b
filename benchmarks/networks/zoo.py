"""Networks by their usual definitions, with random weights, and an example input of each.

Definitions are torchvision's and transformers' where these have one; the U-Net follows Ronneberger et al., 2015
(arXiv:1505.04597), with padding and batch normalisation as implementations have them today.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

TOKENS = 128  # of a sequence of the decoder


class Network(NamedTuple):
    """A network to measure.

    Attributes:
        build: returns the network on the CPU, in fp32.
        shape: of one example of a batch.
    """

    build: Callable[[], nn.Module]
    shape: tuple[int, ...]


def _torchvision(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torchvision.models import get_model

        network: nn.Module = get_model(name, weights=None)
        return network

    return build


class _Twice(nn.Sequential):  # type: ignore[misc] # torch has no types here
    """Two 3x3 convolutions, each with batch normalisation and ReLU."""

    def __init__(self, c: int, k: int) -> None:
        layers = [(nn.Conv2d(i, k, 3, padding=1, bias=False), nn.BatchNorm2d(k), nn.ReLU(True)) for i in (c, k)]
        super().__init__(*(layer for group in layers for layer in group))


class UNet(nn.Module):  # type: ignore[misc] # as above
    """The U-Net of 64 to 1,024 channels, for images of three channels and two classes."""

    def __init__(self) -> None:
        super().__init__()
        widths = (64, 128, 256, 512, 1024)
        self.down = nn.ModuleList(_Twice(c, k) for c, k in zip((3, *widths), widths, strict=False))
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * k, k, 2, 2) for k in widths[-2::-1])
        self.merge = nn.ModuleList(_Twice(2 * k, k) for k in widths[-2::-1])
        self.head = nn.Conv2d(widths[0], 2, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes' scores for each pixel of a batch of images."""
        kept = []
        for i, down in enumerate(self.down):
            x = down(x if i == 0 else nn.functional.max_pool2d(x, 2))
            kept.append(x)
        for up, merge, skip in zip(self.up, self.merge, kept[-2::-1], strict=True):
            x = merge(torch.cat([skip, up(x)], 1))
        result: Tensor = self.head(x)
        return result


class _Decoder(nn.Module):  # type: ignore[misc] # as above
    """The layers of a decoder, from embedded tokens to the last hidden state."""

    def __init__(self) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaModel

        config = LlamaConfig(
            hidden_size=2048, intermediate_size=8192, num_hidden_layers=4, num_attention_heads=32,
            num_key_value_heads=8, vocab_size=512, use_cache=False,
        )  # fmt: skip
        self.layers = LlamaModel(config)  # four layers with the sizes of Llama 3.2 1B, which has sixteen

    def forward(self, x: Tensor) -> Tensor:
        """Return the hidden states of a batch of sequences of embedded tokens."""
        hidden: Tensor = self.layers(inputs_embeds=x).last_hidden_state
        return hidden


_IMAGE = (3, 224, 224)
_NAMES = (
    "resnet50", "resnext50_32x4d", "vgg16_bn", "densenet121", "convnext_tiny", "efficientnet_b0", "mobilenet_v3_large",
    "regnet_y_1_6gf", "shufflenet_v2_x1_0", "wide_resnet50_2", "vit_b_16",
)  # fmt: skip
NETWORKS: dict[str, Network] = {
    **{name: Network(_torchvision(name), _IMAGE) for name in _NAMES},
    "unet": Network(UNet, (3, 256, 256)),
    "r3d_18": Network(_torchvision("r3d_18"), (3, 16, 112, 112)),
    "llama_decoder": Network(_Decoder, (TOKENS, 2048)),
}


def prepare(network: Network, batch: int, dtype: torch.dtype, device: str) -> tuple[nn.Module, Tensor]:
    """Return a network in evaluation mode and an input, both channels-last; equal calls give equal tensors.

    Statistics of batch normalisations are those of one batch, so that activations have the size of a trained
    network's. A layer that begins with weights of zero gets others, or no error could be seen behind it.
    """
    torch.manual_seed(0)
    model = network.build().to(device)
    for layer in model.modules():
        if isinstance(layer, nn.Linear) and not layer.weight.any():
            nn.init.normal_(layer.weight, std=0.02)
    x = torch.randn(batch, *network.shape, device=device)
    with torch.no_grad():
        model.train()(x[: min(batch, 8)].repeat(2 if batch == 1 else 1, *(1 for _ in network.shape)))
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim(), torch.contiguous_format)
    if layout is not torch.contiguous_format:
        model, x = model.to(memory_format=layout), x.to(memory_format=layout)
    return model.eval().to(dtype), x.to(dtype)
