"""Real Fourier transforms that also take nothing at all: torch's refuse tensors without entries."""

from __future__ import annotations

import torch
from torch import Tensor


def rfft(x: Tensor, n: int, dim: int = -1) -> Tensor:
    """torch.fft.rfft, n padded or cut to."""
    return torch.fft.rfft(x, n, dim=dim) if x.numel() else x.new_zeros(_resized(x, n // 2 + 1, dim)) + 0j


def irfft(x: Tensor, n: int, dim: int = -1) -> Tensor:
    """torch.fft.irfft to n real numbers."""
    return torch.fft.irfft(x, n, dim=dim) if n and x.numel() else x.real.new_zeros(_resized(x, n, dim))


def _resized(x: Tensor, n: int, dim: int) -> list[int]:
    shape = list(x.shape)
    shape[dim] = n
    return shape
