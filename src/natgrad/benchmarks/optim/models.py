"""The networks that optimizers are measured on."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional


class CNN(nn.Sequential):
    """The paper's network: 9 hidden layers, 6 convolutions and 3 linear ones, average pooling, GELU, no normalisation.

    Images of 32 x 32; w, 2w and 4w channels, halved in size after each pair.
    """

    def __init__(self, width: int, classes: int = 10):
        w = width
        layers: list[nn.Module] = []
        for inside, outside in ((3, w), (w, 2 * w), (2 * w, 4 * w)):
            layers += [nn.Conv2d(inside, outside, 3, padding=1), nn.GELU()]
            layers += [nn.Conv2d(outside, outside, 3, padding=1), nn.GELU(), nn.AvgPool2d(2)]
        layers += [nn.Flatten(), nn.Linear(64 * w, 8 * w), nn.GELU(), nn.Linear(8 * w, 4 * w), nn.GELU()]
        super().__init__(*layers, nn.Linear(4 * w, classes))


class Block(nn.Module):
    """Attention and a perceptron, each after a LayerNorm and beside a shortcut."""

    def __init__(self, width: int, heads: int, causal: bool):
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:  # (batch, tokens, width)
        y = self.norm1(x)
        q, k, v = (
            layer(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(y.transpose(1, 2).flatten(-2))
        return x + self.down(functional.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """Blocks between a first and a last layer, with learned positions."""

    def __init__(self, first: nn.Module, tokens: int, width: int, depth: int, heads: int, outputs: int, causal: bool):
        super().__init__()
        self.first, self.positions = first, nn.Parameter(0.02 * torch.randn(tokens, width))
        self.blocks = nn.Sequential(*(Block(width, heads, causal) for _ in range(depth)))
        self.norm, self.last = nn.LayerNorm(width), nn.Linear(width, outputs)

    def forward(self, x: Tensor) -> Tensor:  # (batch, tokens, outputs)
        x = self.first(x)
        return self.last(self.norm(self.blocks(x + self.positions[: x.shape[1]])))


class GPT(Transformer):
    """A causal transformer over characters."""

    def __init__(self, symbols: int, tokens: int = 128, width: int = 96, depth: int = 3, heads: int = 4):
        first = nn.Embedding(symbols, width)
        nn.init.normal_(first.weight, std=0.02)
        super().__init__(first, tokens, width, depth, heads, symbols, causal=True)


class ViT(Transformer):
    """A vision transformer for 32 x 32 images, patches of 4 x 4, classes from the mean token."""

    def __init__(self, width: int = 96, depth: int = 4, heads: int = 4, classes: int = 10):
        patches = nn.Sequential(nn.Conv2d(3, width, 4, stride=4), nn.Flatten(2))
        super().__init__(patches, 64, width, depth, heads, classes, causal=False)

    def forward(self, x: Tensor) -> Tensor:  # (batch, 3, 32, 32) -> (batch, classes)
        x = self.first(x).transpose(1, 2)
        return self.last(self.norm(self.blocks(x + self.positions)).mean(1))


class Autoencoder(nn.Sequential):
    """A deep autoencoder: 64 pixels to 8 numbers and back."""

    def __init__(self, pixels: int = 64, widths: tuple[int, ...] = (256, 128, 64, 8)):
        down = [pixels, *widths]
        sizes = [*down, *down[-2::-1]]
        layers: list[nn.Module] = []
        for inside, outside in pairwise(sizes):
            layers += [nn.Linear(inside, outside), nn.GELU()]
        layers[2 * len(widths) - 1] = nn.Identity()  # the code is linear
        super().__init__(*layers[:-1])
