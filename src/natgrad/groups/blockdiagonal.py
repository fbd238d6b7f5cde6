"""Equal dense blocks along the diagonal, and the single block that is the whole matrix.

        [A1  0  0]
    B = [ 0 A2  0]     each A an invertible size x size matrix
        [ 0  0 A3]

m has symmetric blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from natgrad.groups import check
from natgrad.groups.base import Algebra, Structure, add_to_diagonal, lu, symmetric
from natgrad.groups.remember import remembered

if TYPE_CHECKING:
    from typing_extensions import Self


@dataclass(frozen=True)
class Dense(Structure):
    """All invertible matrices, GL(p): the full-covariance update of the paper. The same group as Lower(p)."""

    storage = "p^2"
    cost = "p^3"

    def _identity(
        self, p: int, batch: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> BlockDiagonalMatrix:
        p = check.count(p, "p")
        return BlockDiagonalMatrix(self, torch.eye(p, dtype=dtype, device=device).repeat(*batch, 1, 1, 1))


@dataclass(frozen=True)
class BlockDiagonal(Structure):
    """Equal dense blocks of `size` coordinates each: groups of variables that interact only among themselves."""

    size: int

    storage = "size p"
    cost = "size^2 p"

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", check.count(self.size, "size", least=1))

    def _identity(
        self, p: int, batch: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> BlockDiagonalMatrix:
        p = check.count(p, "p")
        if p % self.size:
            raise ValueError(f"{self} needs a p that {self.size} divides, got p={p}; choose a size that divides it")
        eye = torch.eye(self.size, dtype=dtype, device=device)
        return BlockDiagonalMatrix(self, eye.repeat(*batch, p // self.size, 1, 1))


@dataclass(frozen=True, eq=False, repr=False)
class BlockDiagonalMatrix(Algebra):
    blocks: Tensor  # (*batch, n, s, s) with p = n s

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, n, s, _ = self.blocks.shape
        return (*batch, n * s, n * s)

    def dense(self) -> Tensor:
        *batch, n, s, _ = self.blocks.shape
        own = torch.eye(n, dtype=self.dtype, device=self.device)
        return torch.einsum("...aij,ab->...aibj", self.blocks, own).reshape(*batch, n * s, n * s)

    def _shift(self, c: float | Tensor) -> Self:
        return self.map(lambda blocks: add_to_diagonal(blocks, c))

    def trace(self) -> Tensor:
        return self.blocks.diagonal(dim1=-2, dim2=-1).sum((-2, -1))

    @remembered
    def _lu(self) -> tuple[Tensor, Tensor]:
        return lu(self.blocks)

    def logdet(self) -> Tensor:
        return self._lu[0].diagonal(dim1=-2, dim2=-1).abs().log().sum((-2, -1))

    def _matmul(self, other: Self) -> Self:
        return self.map(torch.matmul, other)

    def _apply(self, x: Tensor, transpose: bool) -> Tensor:
        return self._join((self.blocks.mT if transpose else self.blocks) @ self._split(x))

    def _solve(self, x: Tensor, transpose: bool) -> Tensor:
        return self._join(torch.linalg.lu_solve(*self._lu, self._split(x), adjoint=transpose))

    def _project(self, U: Tensor, V: Tensor) -> Self:
        return self.map(lambda _: symmetric(self._split(U) @ self._split(V).mT))

    def _split(self, x: Tensor) -> Tensor:  # (*batch, p, r) -> (*batch, n, s, r)
        return x.unflatten(-2, self.blocks.shape[-3:-1])

    def _join(self, x: Tensor) -> Tensor:  # (*batch, n, s, r) -> (*batch, p, r)
        return x.flatten(-3, -2)
