"""Symmetric matrices that can hold the Hessian itself: all of its entries, or those of its sparsity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from scipy.sparse import csc_array
from torch import Tensor

from natgrad.groups import Dense, SparseCholesky
from natgrad.groups.base import Element
from natgrad.minimization.compressed import Compressed
from natgrad.minimization.factor import ordered
from natgrad.minimization.objective import Point

Solve = Callable[[Tensor], Tensor]


class Symmetric(Protocol):
    """A space of symmetric matrices, each stored as a tensor of numbers, so that sums need no method."""

    def hessian(self, point: Point) -> Tensor: ...

    def diagonal(self, S: Tensor) -> Tensor: ...

    def identity(self) -> Tensor: ...

    def cholesky(self, S: Tensor) -> Solve | None:
        """x -> S^-1 x, or None if S is not positive definite."""
        ...

    def element(self, S: Tensor) -> Element:
        """B with B B^T = S."""
        ...

    def product(self, B: Element) -> Tensor:
        """S = B B^T."""
        ...


@dataclass(frozen=True)
class DenseSymmetric:
    like: Tensor  # (p,)

    def hessian(self, point: Point) -> Tensor:
        if point.hessian is None:
            H = point.matrix()
            point.hessian = (H + H.mT) / 2
        return point.hessian

    def diagonal(self, S: Tensor) -> Tensor:
        return S.diagonal()

    def identity(self) -> Tensor:
        return torch.eye(len(self.like)).to(self.like)

    def cholesky(self, S: Tensor) -> Solve | None:
        L, info = torch.linalg.cholesky_ex(S)
        if info:
            return None
        return lambda x: torch.cholesky_solve(x.unsqueeze(-1), L).squeeze(-1)

    def element(self, S: Tensor) -> Element:
        L = torch.linalg.cholesky(S)
        return Dense().identity(len(L), dtype=L.dtype, device=L.device).map(lambda blocks: L.reshape(blocks.shape))

    def product(self, B: Element) -> Tensor:
        return B.precision(self.identity())


class SparseSymmetric:
    """The entries on and below the diagonal of a sparsity pattern."""

    def __init__(self, compressed: Compressed, like: Tensor, structure: SparseCholesky | None = None):
        self.compressed, self.like, self._structure = compressed, like, structure
        self._ordered = ordered(compressed.pattern)

    @property
    def structure(self) -> SparseCholesky:
        """Made when asked for: its pattern, closed under ancestors, may be much larger than the Hessian's."""
        if self._structure is None:
            self._structure = SparseCholesky(self.compressed.pattern)
        return self._structure

    def hessian(self, point: Point) -> Tensor:
        return self.compressed.hessian(point)

    def diagonal(self, S: Tensor) -> Tensor:
        return S[torch.as_tensor(self.compressed.on_diagonal, device=S.device)]

    def identity(self) -> Tensor:
        return torch.as_tensor(self.compressed.i == self.compressed.j).to(self.like)

    def cholesky(self, S: Tensor) -> Solve | None:
        solve = self._ordered.cholesky(S.cpu().numpy())
        if solve is None:
            return None
        return lambda x: torch.as_tensor(solve(x.cpu().numpy())).to(x)

    def element(self, S: Tensor) -> Element:
        i, j, values = self.compressed.i, self.compressed.j, S.cpu().numpy()
        lower = csc_array((values, (i, j)), shape=self.compressed.pattern.shape)
        strict = csc_array((values * (i != j), (j, i)), shape=lower.shape)
        return self.structure.cholesky(lower + strict, dtype=S.dtype, device=S.device)

    def product(self, B: Element) -> Tensor:
        S = self.compressed.entries(B.precision, self.like)
        v = torch.linspace(1, 2, len(self.like)).to(self.like)
        expected = B.precision(v)
        if float((self.compressed.product(S, v) - expected).abs().max()) > 1e-4 * float(expected.abs().max()):
            raise ValueError("precision has entries in S = B B^T beyond the sparsity of the Hessian; start without it")
        return S
