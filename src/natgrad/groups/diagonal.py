"""The diagonal group.

B = diag(d)        m = all diagonal matrices
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from natgrad.groups import check
from natgrad.groups.base import Algebra, Structure, beside

if TYPE_CHECKING:
    from typing_extensions import Self

    from natgrad.groups.hessian import Hessian


@dataclass(frozen=True)
class Diagonal(Structure):
    """Diagonal precision factors: mean-field posteriors, Adam-like scalings. The same group as Lower(0)."""

    storage = "p"
    cost = "p"

    def _identity(self, p: int, batch: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> DiagonalMatrix:
        p = check.count(p, "p")
        return DiagonalMatrix(self, torch.ones(*batch, p, dtype=dtype, device=device))


@dataclass(frozen=True, eq=False, repr=False)
class DiagonalMatrix(Algebra):
    d: Tensor  # (*batch, p)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.d.shape, self.d.shape[-1])

    def dense(self) -> Tensor:
        return torch.diag_embed(self.d)

    def _shift(self, c: float | Tensor) -> Self:
        return self.map(lambda d: d + beside(c, d))

    def trace(self) -> Tensor:
        return self.d.sum(-1)

    def logdet(self) -> Tensor:
        return self.d.abs().log().sum(-1)

    def _matmul(self, other: Self) -> Self:
        return self.map(torch.mul, other)

    def _apply(self, x: Tensor, transpose: bool) -> Tensor:
        return self.d.unsqueeze(-1) * x

    def _solve(self, x: Tensor, transpose: bool) -> Tensor:
        return x / self.d.unsqueeze(-1)

    def _project(self, U: Tensor, V: Tensor) -> Self:
        return self.map(lambda _: (U * V).sum(-1))

    def _pull(self, hvp: Hessian, diagonal: Tensor | None) -> DiagonalMatrix:
        """P(B^-1 H B^-T) = diag(H_ii / d_i^2), without any product where diag(H) is known."""
        if diagonal is None:
            return super()._pull(hvp, None)  # pyright: ignore[reportReturnType]
        return self.map(lambda d: diagonal / d / d)  # d^2 might underflow
