"""One side of a parameter: its precision S = B B^T, kept in one of two ways, for L equal parameters at once.

    Product   P = S^-1 itself, for groups closed under transposition (dense, blocks, diagonal). No inverse is taken.
    Factor    B, an element of any group. Solves stand where Product has products.

The half-power rule moves S by h on both sides, S <- h(M) S h(M)^T; that is B <- h(M) B, and P <- h(-M) P h(-M) to the
third order in M. All functions are pure, on blocks of vectors X of shape (L, d, r).
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from natgrad.groups import BlockDiagonal, Dense, Diagonal, Element, Structure, Tangent
from natgrad.groups.base import beside

Tensors = list[Tensor]  # the stored tensors of one side, each (L, ...)


@dataclass(frozen=True)
class Side(ABC):
    structure: Structure
    d: int

    @abstractmethod
    def start(self, dtype: torch.dtype, device: torch.device) -> Tensors:
        """S = I, without the leading L."""

    @abstractmethod
    def covariance(self, stored: Tensors, X: Tensor) -> Tensor:
        """S^-1 X, (L, d, r)."""

    @abstractmethod
    def condition(self, stored: Tensors) -> float:
        """The largest eigenvalue of S through the smallest, for L = 1."""

    @abstractmethod
    def scale(self, stored: Tensors) -> Tensor:
        """The logarithm of the size of S^-1, (L,): some mean of its eigenvalues."""

    @abstractmethod
    def follow(self, stored: Tensors, A: Tensor, beta: Tensor, gamma: float, c: Tensor) -> tuple[Tensors, Tensor]:
        """S <- h S h^T / c with h = h(b P(A A^T - gamma I)), and the size of the step b P(...), (L,).

        b = beta / max(1, the size of A A^T): far from the fixed point, where A A^T is large, the step is bounded.
        A (L, d, r), beta and c (L,).
        """


@dataclass(frozen=True)
class Product(Side):
    """P = S^-1 in n blocks of size s: one block is Dense, s = 1 is Diagonal."""

    s: int

    def start(self, dtype: torch.dtype, device: torch.device) -> Tensors:
        return [torch.eye(self.s, dtype=dtype, device=device).repeat(self.d // self.s, 1, 1)]  # (n, s, s)

    def covariance(self, stored: Tensors, X: Tensor) -> Tensor:
        (P,) = stored
        if self.s == self.d:
            return P.squeeze(1) @ X
        return _times(P, X.unflatten(1, (-1, self.s))).flatten(1, 2)

    def condition(self, stored: Tensors) -> float:
        values = torch.linalg.eigvalsh(stored[0])
        return float(values.max() / values.min())

    def scale(self, stored: Tensors) -> Tensor:
        return stored[0].diagonal(dim1=-2, dim2=-1).mean((-2, -1)).log()

    def follow(self, stored: Tensors, A: Tensor, beta: Tensor, gamma: float, c: Tensor) -> tuple[Tensors, Tensor]:
        """P <- c H P H with H = h(-b (E - gamma I)) = a0 I - a1 E + a2 E^2, E = A A^T.

        Each block has a step of its own. E^2 bounds the largest eigenvalue of E by || E^2 ||_F^(1/2), and so the step.
        """
        (P,) = stored
        A = A.unflatten(1, (-1, self.s))  # (L, n, s, r)
        thin = A.shape[-1] <= 0.6 * self.s  # where r x r matrices are the cheaper ones
        E = _times(A.mT, A) if thin else _times(A, A.mT)  # A^T A has the eigenvalues of A A^T, but for zeros
        E2 = _times(E, E)
        largest = torch.linalg.vector_norm(E2, dim=(-2, -1), keepdim=True).sqrt()
        b = beside(beta, E) / largest.clamp(min=1.0)
        u = b * gamma
        a0, a1, a2 = 1 + u + u**2 / 2, b * (1 + u), b**2 / 2
        c = beside(c, E)
        if thin:  # H = a0 I - A R A^T, and with Y = A^T P: H P H = a0^2 P - A Q - (A Q)^T
            R = torch.diag_embed(a1.squeeze(-1).expand(*E.shape[:-1])) - a2 * E
            Y = A.mT @ P
            Q = R @ torch.sub(a0 * Y, (Y @ A) @ (R @ A.mT), alpha=0.5)
            AQ = A @ (c * Q)
            P = (c * a0**2) * P - (AQ + AQ.mT)
        else:
            H = a2 * E2 - a1 * E
            H.diagonal(dim1=-2, dim2=-1).add_(a0.squeeze(-1))
            P = _times(_times(H, c * P), H)
            P = (P + P.mT) / 2
        return [P], (b * largest).amax((1, 2, 3))


@dataclass(frozen=True)
class Factor(Side):
    """B in its group, in a row of L elements."""

    def start(self, dtype: torch.dtype, device: torch.device) -> Tensors:
        return self.structure.identity(self.d, dtype=dtype, device=device).tensors()

    def element(self, stored: Tensors) -> Element:
        waiting = iter(stored)
        return _template(self.structure, self.d, stored[0].dtype, stored[0].device).map(lambda _: next(waiting))

    def covariance(self, stored: Tensors, X: Tensor) -> Tensor:
        return self.element(stored).covariance(X)

    def condition(self, stored: Tensors) -> float:
        return float(torch.linalg.cond(self.element(stored).dense())) ** 2

    def scale(self, stored: Tensors) -> Tensor:
        return self.element(stored).logdet() * (-2 / self.d)

    def follow(self, stored: Tensors, A: Tensor, beta: Tensor, gamma: float, c: Tensor) -> tuple[Tensors, Tensor]:
        B = self.element(stored)
        M = B.project(A, A).shift(-gamma)
        b = beta / _norm(M.tensors()).clamp(min=1.0)
        M = M * b
        new = (M.h() @ B).map(lambda t: t * beside(c.rsqrt(), t))
        return new.tensors(), _norm(M.tensors())

    def whiten(self, stored: Tensors, X: Tensor, transpose: bool = False) -> Tensor:
        """B^-1 X, or B^-T X."""
        return self.element(stored).solve(X, transpose)

    def ridge(self, stored: Tensors) -> Tangent:
        """P(B^-1 B^-T), what curvature I is in B's coordinates. Its trace is that of S^-1."""
        B = self.element(stored)
        return B.pull(lambda V: V, diagonal=torch.ones(B.shape[:-1], dtype=B.dtype, device=B.device))

    def follow_paper(
        self, stored: Tensors, A: Tensor, ridge: Tangent, beta: float | Tensor, gamma: float
    ) -> tuple[Tensors, Tensor]:
        """B <- B h(beta/2 P(A A^T + ridge - gamma I)), and the size of the step, (L,)."""
        B = self.element(stored)
        M = (B.project(A, A) + ridge).shift(-gamma) * (beta / 2)
        return B.retract(M).tensors(), _norm(M.tensors())


def side(structure: Structure, d: int, power: float) -> Side:
    size = {Dense: d, Diagonal: 1}.get(type(structure))
    if isinstance(structure, BlockDiagonal):
        size = structure.size
    structure.identity(d, device="meta") if size else _template(structure, d, torch.float32, torch.device("cpu"))
    return Product(structure, d, size) if size and power == 0.5 else Factor(structure, d)


@functools.lru_cache(maxsize=256)
def _template(structure: Structure, d: int, dtype: torch.dtype, device: torch.device) -> Element:
    """An element whose tensors are exchanged for those stored."""
    return structure.identity(d, dtype=dtype, device=device)


def _times(A: Tensor, B: Tensor) -> Tensor:
    """A B; element by element where the matrices are numbers, which torch multiplies slowly."""
    if A.shape[-2:] == (1, 1):
        return A * B
    if B.shape[-2:] == (1, 1):
        return A * B
    if A.shape[-2] == 1 and B.shape[-1] == 1:
        return (A * B.mT).sum(-1, keepdim=True)
    return A @ B


def _norm(tensors: Tensors) -> Tensor:
    """The Frobenius norm over all tensors of each of L tangents, (L,)."""
    return torch.stack([t.flatten(1).square().sum(1) for t in tensors]).sum(0).sqrt()
