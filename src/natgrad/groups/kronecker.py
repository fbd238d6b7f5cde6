"""Kronecker products of two groups, p = m n, for matrix-shaped unknowns W (m x n, row by row in the vector).

    B = L (x) R        B w = L W R^T        S = (L L^T) (x) (R R^T)

Products of elements stay in the group, but sums do not: it is no algebra, and its tangents are a class of their own,
M = M_L (x) I + I (x) M_R, whose exponential is exp(M_L) (x) exp(M_R). Its h is therefore h(M_L) (x) h(M_R). A scale
may move between the two sides without any change of M; P shares it equally.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from natgrad.groups import check
from natgrad.groups.base import Element, Size, Structure, Tangent

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Kronecker(Structure):
    """Two sides, each of any structure, for W of m rows (left) and n columns (right): `identity((m, n))`."""

    left: Structure
    right: Structure

    storage = "left(m) + right(n)"
    cost = "n left(m) + m right(n)"

    def __post_init__(self) -> None:
        for side in (self.left, self.right):
            if not isinstance(side, Structure):
                raise ValueError(
                    f"Kronecker expected two structures, as Kronecker(Lower(2), Dense()), got {check.brief(side)}"
                )

    def _identity(self, p: Size, batch: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> KroneckerMatrix:
        if not (isinstance(p, (tuple, list)) and len(p) == 2):
            raise ValueError(f"{self} needs both sizes, as in identity((m, n)) for p = m n, got {check.brief(p)}")
        m, n = p
        left = self.left.identity(m, dtype=dtype, device=device, batch=batch)
        right = self.right.identity(n, dtype=dtype, device=device, batch=batch)
        return KroneckerMatrix(self, left, right)


@dataclass(frozen=True, eq=False, repr=False)
class KroneckerMatrix(Element):
    left: Element  # L, m x m
    right: Element  # R, n x n

    @property
    def shape(self) -> tuple[int, ...]:
        p = self.left.shape[-1] * self.right.shape[-1]
        return (*self.left.batch, p, p)

    def dense(self) -> Tensor:
        return _kron(self.left.dense(), self.right.dense())

    def logdet(self) -> Tensor:
        return self.right.shape[-1] * self.left.logdet() + self.left.shape[-1] * self.right.logdet()

    def _matmul(self, other: Self) -> Self:
        return replace(self, left=self.left._matmul(other.left), right=self.right._matmul(other.right))

    def _apply(self, x: Tensor, transpose: bool) -> Tensor:
        return self._sides(x, lambda W: self.left._apply(W, transpose), lambda W: self.right._apply(W, transpose))

    def _solve(self, x: Tensor, transpose: bool) -> Tensor:
        return self._sides(x, lambda W: self.left._solve(W, transpose), lambda W: self.right._solve(W, transpose))

    def _project(self, U: Tensor, V: Tensor) -> KroneckerTangent:
        """Each side is the projection of a partial trace of X, less half of the scale that both would carry."""
        m, n = self.left.shape[-1], self.right.shape[-1]
        scale = (U * V).sum((-2, -1)) / (2 * max(m * n, 1))  # half of tr X / p
        left = self.left._project(self._columns(U), self._columns(V)) / max(n, 1)
        right = self.right._project(self._rows(U), self._rows(V)) / max(m, 1)
        return KroneckerTangent(self.structure, left._shift(-scale), right._shift(-scale))

    def _retract(self, M: KroneckerTangent) -> Self:
        return replace(self, left=self.left._retract(M.left), right=self.right._retract(M.right))

    def _sides(self, x: Tensor, left: Callable[[Tensor], Tensor], right: Callable[[Tensor], Tensor]) -> Tensor:
        """left(W) right^T for each of the r matrices W that x holds."""
        *batch, _, r = x.shape
        m, n = self.left.shape[-1], self.right.shape[-1]
        x = left(self._columns(x)).reshape(*batch, m * n, r)
        x = right(self._rows(x)).reshape(*batch, n, m, r)
        return x.transpose(-3, -2).reshape(*batch, m * n, r)

    def _columns(self, x: Tensor) -> Tensor:
        """The columns of each W, (*batch, m n, r) -> (*batch, m, n r): blocks of vectors for the left side."""
        *batch, _, r = x.shape
        m, n = self.left.shape[-1], self.right.shape[-1]
        return x.reshape(*batch, m, n * r)

    def _rows(self, x: Tensor) -> Tensor:
        """The rows of each W, (*batch, m n, r) -> (*batch, n, m r): blocks of vectors for the right side."""
        *batch, _, r = x.shape
        m, n = self.left.shape[-1], self.right.shape[-1]
        return x.reshape(*batch, m, n, r).transpose(-3, -2).reshape(*batch, n, m * r)


@dataclass(frozen=True, eq=False, repr=False)
class KroneckerTangent(Tangent):
    left: Tangent  # M_L
    right: Tangent  # M_R

    @property
    def shape(self) -> tuple[int, ...]:
        p = self.left.shape[-1] * self.right.shape[-1]
        return (*self.left.batch, p, p)

    def dense(self) -> Tensor:
        left, right = self.left.dense(), self.right.dense()
        eye_left, eye_right = torch.eye(left.shape[-1]).to(left), torch.eye(right.shape[-1]).to(right)
        return _kron(left, eye_right) + _kron(eye_left, right)

    def _shift(self, c: float | Tensor) -> Self:
        return replace(self, left=self.left._shift(c / 2), right=self.right._shift(c / 2))

    def trace(self) -> Tensor:
        return self.right.shape[-1] * self.left.trace() + self.left.shape[-1] * self.right.trace()

    def h(self) -> KroneckerMatrix:
        return KroneckerMatrix(self.structure, self.left.h(), self.right.h())


def _kron(a: Tensor, b: Tensor) -> Tensor:
    """torch.kron over leading batch dimensions."""
    product = torch.einsum("...ij,...kl->...ikjl", a, b)
    return product.flatten(-4, -3).flatten(-2, -1)
