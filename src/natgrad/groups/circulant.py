"""The circulant group.

        [c0 c2 c1]
    B = [c1 c0 c2]      B_ij = c_(i-j mod p): convolution on a ring, diagonal in Fourier space
        [c2 c1 c0]

The group is commutative. m has the symmetric circulant matrices, c_d = c_-d: an antisymmetric part of M would not
move S at all, and P leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from natgrad.groups import check
from natgrad.groups.base import Algebra, Structure, add_to_first
from natgrad.groups.fourier import irfft, rfft
from natgrad.groups.remember import remembered

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Circulant(Structure):
    """Circulant matrices, for stationary problems on a ring: time series with a season, images with wrapped edges."""

    storage = "p"
    cost = "p log p"

    def _identity(self, p: int, batch: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> CirculantMatrix:
        p = check.count(p, "p")
        return CirculantMatrix(self, torch.eye(p, 1, dtype=dtype, device=device)[:, 0].repeat(*batch, 1))


@dataclass(frozen=True, eq=False, repr=False)
class CirculantMatrix(Algebra):
    c: Tensor  # (*batch, p), the first column

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.c.shape, self.c.shape[-1])

    def dense(self) -> Tensor:
        i = torch.arange(self.c.shape[-1], device=self.device)
        return self.c[..., (i[:, None] - i) % max(len(i), 1)]

    def _shift(self, c: float | Tensor) -> Self:
        return self.map(lambda t: add_to_first(t, c))

    def trace(self) -> Tensor:
        return self.c.shape[-1] * self.c[..., :1].sum(-1)

    @remembered
    def _eigenvalues(self) -> Tensor:  # (*batch, p // 2 + 1) of them; the others are their conjugates
        return rfft(self.c, self.c.shape[-1])

    def logdet(self) -> Tensor:
        p = self.c.shape[-1]
        once = torch.arange(p // 2 + 1, device=self.device) * 2 % max(p, 1) == 0  # c_0's and, for even p, the last
        return torch.where(once, 1.0, 2.0).to(self.dtype).mul(self._eigenvalues.abs().log()).sum(-1)

    def _matmul(self, other: Self) -> Self:
        return self.map(lambda _: irfft(self._eigenvalues * other._eigenvalues, self.c.shape[-1]))

    def _apply(self, x: Tensor, transpose: bool) -> Tensor:
        values = self._eigenvalues.unsqueeze(-1)
        return self._filter(x, values.conj() if transpose else values)

    def _solve(self, x: Tensor, transpose: bool) -> Tensor:
        values = self._eigenvalues.unsqueeze(-1)
        return self._filter(x, 1 / (values.conj() if transpose else values))

    def _filter(self, x: Tensor, values: Tensor) -> Tensor:
        return irfft(rfft(x, x.shape[-2], dim=-2) * values, x.shape[-2], dim=-2)

    def _project(self, U: Tensor, V: Tensor) -> Self:
        """c_d = the mean of X along its d-th wrapped diagonal: the circular correlation of U and V, made even."""
        p = self.c.shape[-1]
        spectrum = (rfft(U, p, dim=-2) * rfft(V, p, dim=-2).conj()).sum(-1).real
        return self.map(lambda _: irfft(spectrum, p) / max(p, 1))
