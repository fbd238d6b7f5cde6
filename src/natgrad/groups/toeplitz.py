"""Triangular Toeplitz groups.

            [t0  0  0]
    lower B=[t1 t0  0]     B_ij = t_(i-j): causal convolution; products are those of polynomials cut off at z^p
            [t2 t1 t0]

The group is commutative, and the upper one is its transpose. P(X) has t_0 = the mean of the diagonal of X and
t_d = twice the mean of its d-th sub-diagonal.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from scipy.fft import next_fast_len
from torch import Tensor

from natgrad.groups import check
from natgrad.groups.base import Algebra, Structure, add_to_first
from natgrad.groups.conjugate import ConjugateMatrix, Reversal
from natgrad.groups.fourier import irfft, rfft
from natgrad.groups.remember import remembered

if TYPE_CHECKING:
    from typing_extensions import Self

LEAF = 64  # up to this size substitution is done by a dense triangular matrix


@dataclass(frozen=True)
class Toeplitz(Structure):
    """Lower (or `upper=True`) triangular Toeplitz matrices, for stationary problems on a line."""

    upper: bool = False

    storage = "p"
    cost = "p log p"

    def __post_init__(self) -> None:
        if not isinstance(self.upper, bool):
            raise ValueError(
                f"Toeplitz takes upper=True or upper=False, got {check.brief(self.upper)}; sizes go to identity(p)"
            )

    def _identity(
        self, p: int, batch: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> ToeplitzMatrix | ConjugateMatrix:
        p = check.count(p, "p")
        first = torch.eye(p, 1, dtype=dtype, device=device)[:, 0].repeat(*batch, 1)
        if self.upper:
            return ConjugateMatrix(self, ToeplitzMatrix(Toeplitz(), first), Reversal())
        return ToeplitzMatrix(self, first)


@dataclass(frozen=True, eq=False, repr=False)
class ToeplitzMatrix(Algebra):
    t: Tensor  # (*batch, p), the first column

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.t.shape, self.t.shape[-1])

    def dense(self) -> Tensor:
        i = torch.arange(self.t.shape[-1], device=self.device)
        return self.t[..., (i[:, None] - i).clamp(min=0)].tril()

    def _shift(self, c: float | Tensor) -> Self:
        return self.map(lambda t: add_to_first(t, c))

    def trace(self) -> Tensor:
        return self.t.shape[-1] * self.t[..., :1].sum(-1)

    def logdet(self) -> Tensor:
        return self.t.shape[-1] * self.t[..., :1].abs().log().sum(-1)

    def _matmul(self, other: Self) -> Self:
        return self.map(multiply, other)

    def _apply(self, x: Tensor, transpose: bool) -> Tensor:
        return _convolve(self.t, x, transpose)

    @remembered
    def _inverse(self) -> Tensor | None:
        """The power series y = 1 / t(z), its length doubled by Newton's rule y (2 - t y), if that is accurate.

        The errors of Fourier transforms are relative to the largest coefficient, which is too much where y grows along
        its length. One refinement of a solution leaves the square of the residual 1 - t y, so it must be below the
        root of the precision.
        """
        t = self.t
        y = 1 / t[..., :1]
        while y.shape[-1] < t.shape[-1]:
            n = min(2 * y.shape[-1], t.shape[-1])
            y = torch.nn.functional.pad(y, (0, n - y.shape[-1]))
            y = 2 * y - multiply(y, multiply(t[..., :n], y))
        residual = add_to_first(-multiply(t, y), 1.0).abs().sum(-1)
        return y if bool((residual < torch.finfo(t.dtype).eps ** 0.5).all()) else None

    def _solve(self, x: Tensor, transpose: bool) -> Tensor:
        if self._inverse is not None:
            y = _convolve(self._inverse, x, transpose)
            return y + _convolve(self._inverse, x - _convolve(self.t, y, transpose), transpose)
        if transpose:  # B^T is B with the coordinates counted from the other end
            return self._solve(x.flip(-2), False).flip(-2)
        leaf = replace(self, t=self.t[..., :LEAF]).dense()
        return _substitute(self.t, leaf, x)

    def _project(self, U: Tensor, V: Tensor) -> Self:
        """Sums along diagonals of U V^T are correlations of the columns of U and V; then both orders, and means."""
        p = self.t.shape[-1]
        size = next_fast_len(2 * p, real=True)
        spectrum = (rfft(U, size, dim=-2) * rfft(V, size, dim=-2).conj()).sum(-1).real
        sums = 2 * irfft(spectrum, size)[..., :p]  # of U V^T + V U^T along each sub-diagonal
        sums = torch.cat([sums[..., :1] / 2, sums[..., 1:]], -1)
        return self.map(lambda _: sums / torch.arange(p, 0, -1, dtype=self.dtype, device=self.device))


def multiply(a: Tensor, b: Tensor) -> Tensor:
    """The first p coefficients of the product of two polynomials with p coefficients each."""
    p = a.shape[-1]
    size = next_fast_len(2 * p, real=True)
    return irfft(rfft(a, size) * rfft(b, size), size)[..., :p].clone()  # not a view of twice the memory


def _convolve(t: Tensor, x: Tensor, transpose: bool) -> Tensor:
    """The lower Toeplitz matrix of t, or its transpose, on the columns of x (*batch, p, r)."""
    p = x.shape[-2]
    size = next_fast_len(2 * p, real=True)
    values = rfft(t, size).unsqueeze(-1)
    return irfft(rfft(x, size, dim=-2) * (values.conj() if transpose else values), size, dim=-2)[..., :p, :].clone()


def _substitute(t: Tensor, leaf: Tensor, x: Tensor) -> Tensor:
    """Forward substitution by halves, O(p log^2 p): the first half of y, and its part in the second half of x."""
    p = x.shape[-2]
    if p <= LEAF:
        return torch.linalg.solve_triangular(leaf[..., :p, :p], x, upper=False)
    first, second = x.split([p // 2, p - p // 2], -2)
    y = _substitute(t, leaf, first)
    known = _convolve(t[..., :p], torch.nn.functional.pad(y, (0, 0, 0, p - p // 2)), False)[..., p // 2 :, :]
    return torch.cat([y, _substitute(t, leaf, second - known)], -2)
