"""One side of a parameter: its precision S = B B^T, kept in one of two ways, for L equal parameters at once.

    Product   P = S^-1 itself, for groups closed under transposition (dense, blocks, diagonal). No inverse is taken.
    Factor    B, an element of any group. Solves stand where Product has products.

The half-power rule moves S by h on both sides, S <- h(M) S h(M)^T; that is B <- h(M) B, and P <- h(-M) P h(-M) to the
third order in M. All functions are pure, on blocks of vectors X of shape (L, d, r).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from natgrad.groups import BlockDiagonal, Dense, Diagonal, Element, Structure, Tangent
from natgrad.groups.base import beside

LARGEST = 1e18  # of P, which without damping grows for ever where the gradient has a direction that it never takes
Tensors = list[Tensor]  # the stored tensors of one side, each (L, ...)


@dataclass(frozen=True)
class Side(ABC):
    structure: Structure
    d: int

    @abstractmethod
    def start(self, dtype: torch.dtype, device: torch.device) -> Tensors:
        """S = I, without the leading L."""

    @property
    @abstractmethod
    def shapes(self) -> dict[str, torch.Size]:
        """Of what `start` returns, with the names that tell which way S is kept."""

    @abstractmethod
    def covariance(self, stored: Tensors, X: Tensor) -> Tensor:
        """S^-1 X, (L, d, r)."""

    @abstractmethod
    def condition(self, stored: Tensors) -> float:
        """The largest eigenvalue of S through the smallest, for L = 1."""

    @abstractmethod
    def scale(self, stored: Tensors) -> Tensor:
        """The size of S^-1, (L,): some mean of its eigenvalues."""

    @abstractmethod
    def follow(
        self, stored: Tensors, X: Tensor, v: Tensor, w: Tensor, unit: Tensor, beta: Tensor, gamma: float, c: Tensor
    ) -> Tensors:
        """S <- h S h^T / c with h = h(b P(unit E - gamma I)), E = w X X^T + v v^T.

        b = beta / max(1, unit ||E||): far from the fixed point the step is bounded. E has the size of one, `unit` that
        of the statistics, so that no square overflows. Where beta, X and v are zero and c is one, no bit of S changes.
        X (L, d, r), v (L, d, 1), all others (L,).
        """


@dataclass(frozen=True)
class Product(Side):
    """P = S^-1 in n blocks of size s: one block is Dense, s = 1 is Diagonal."""

    s: int

    def start(self, dtype: torch.dtype, device: torch.device) -> Tensors:
        return [torch.eye(self.s, dtype=dtype, device=device).repeat(self.d // self.s, 1, 1)]  # (n, s, s)

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return {"P": torch.Size((self.d // self.s, self.s, self.s))}

    def covariance(self, stored: Tensors, X: Tensor) -> Tensor:
        (P,) = stored
        if self.s == self.d:
            return P.squeeze(1) @ X
        return _times(P, X.unflatten(1, (-1, self.s))).flatten(1, 2)

    def condition(self, stored: Tensors) -> float:
        values = torch.linalg.eigvalsh(stored[0])
        return float(values.max() / values.min())

    def scale(self, stored: Tensors) -> Tensor:
        return stored[0].diagonal(dim1=-2, dim2=-1).mean((-2, -1))

    def follow(
        self, stored: Tensors, X: Tensor, v: Tensor, w: Tensor, unit: Tensor, beta: Tensor, gamma: float, c: Tensor
    ) -> Tensors:
        """P <- c H P H."""
        (P,) = stored
        X, v = X.unflatten(1, (-1, self.s)), v.unflatten(1, (-1, self.s))  # (L, n, s, r), (L, n, s, 1)
        w, c = w[:, None, None, None], c[:, None, None, None]
        if X.shape[-1] < 0.6 * self.s:  # r x r matrices are the cheaper ones
            A = torch.cat([X * w.sqrt(), v], -1)
            return [_move_thin(P, A, _Step(unit, beta, gamma), c)]
        E = torch.addcmul(w * _times(X, X.mT), v, v.mT)
        return [_move(P, E, _Step(unit, beta, gamma), c)]


@dataclass(frozen=True)
class _Step:
    unit: Tensor
    beta: Tensor
    gamma: float

    def coefficients(self, E2: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """h(-b (unit E - gamma I)) = a0 I - a1 E + a2 E^2.

        E^2 bounds the largest eigenvalue of E: || E^2 ||_F^(1/2), at most s^(1/4) times it. All blocks share the
        largest bound: with steps of their own, those that are rarely hit would follow the median of E, not its mean.
        """
        unit, beta = self.unit[:, None, None, None], self.beta[:, None, None, None]
        largest = torch.linalg.vector_norm(E2, dim=(-2, -1), keepdim=True).amax(1, keepdim=True).sqrt()
        b = beta / (unit * largest).clamp(min=1.0)
        u, b1 = b * self.gamma, b * unit
        return 1 + u + u**2 / 2, b1 * (1 + u), b1**2 / 2


def _move(P: Tensor, E: Tensor, step: _Step, c: Tensor) -> Tensor:
    """c H P H for E (L, n, s, s)."""
    E2 = _times(E, E)
    a0, a1, a2 = step.coefficients(E2)
    H = torch.addcmul(a2 * E2, a1, E, value=-1)
    H.diagonal(dim1=-2, dim2=-1).add_(a0.squeeze(-1))
    P = _times(_times(H, P), H)
    return ((c / 2) * (P + P.mT)).clamp_(-LARGEST, LARGEST)


def _move_thin(P: Tensor, A: Tensor, step: _Step, c: Tensor) -> Tensor:
    """The same for E = A A^T, A (L, n, s, r), by matrices of r x s.

    A^T A has the eigenvalues of E but for zeros, H = a0 I - A R A^T with R = a1 I - a2 A^T A, and with Y = A^T P
    H P H = a0^2 P - A Q - (A Q)^T where Q = R (a0 Y - Y A R A^T / 2).
    """
    W = A.mT @ A
    a0, a1, a2 = step.coefficients(W @ W)
    R = -a2 * W
    R.diagonal(dim1=-2, dim2=-1).add_(a1.squeeze(-1))
    Y = A.mT @ P
    AQ = A @ (R @ torch.sub(c * a0 * Y, (Y @ A) @ (R @ A.mT) * c, alpha=0.5))
    return ((c * a0**2) * P - (AQ + AQ.mT)).clamp_(-LARGEST, LARGEST)


@dataclass(frozen=True)
class Factor(Side):
    """B in its group, in a row of L elements."""

    identity: Element

    def start(self, dtype: torch.dtype, device: torch.device) -> Tensors:
        return [t.to(device, dtype, copy=True) for t in self.identity.tensors()]

    @property
    def shapes(self) -> dict[str, torch.Size]:
        return {f"B{i}": t.shape for i, t in enumerate(self.identity.tensors())}

    def element(self, stored: Tensors) -> Element:
        waiting = iter(stored)
        return self.identity.map(lambda _: next(waiting))

    def covariance(self, stored: Tensors, X: Tensor) -> Tensor:
        return self.element(stored).covariance(X)

    def condition(self, stored: Tensors) -> float:
        return float(torch.linalg.cond(self.element(stored).dense())) ** 2

    def scale(self, stored: Tensors) -> Tensor:
        return (self.element(stored).logdet() * (-2 / self.d)).exp()

    def follow(
        self, stored: Tensors, X: Tensor, v: Tensor, w: Tensor, unit: Tensor, beta: Tensor, gamma: float, c: Tensor
    ) -> Tensors:
        B = self.element(stored)
        A = torch.cat([X * w.sqrt()[:, None, None], v], -1)
        M = B.project(A, A).shift(-gamma / unit)
        M = M * (beta / _norm(M).clamp(min=1 / unit))
        new = (M.h() @ B).map(lambda t: t * beside(c.rsqrt(), t)).tensors()
        return only((beta > 0) & finite(new), new, stored)  # a product by FFT changes bits even where M is zero

    def whiten(self, stored: Tensors, X: Tensor, transpose: bool = False) -> Tensor:
        """B^-1 X, or B^-T X."""
        return self.element(stored).solve(X, transpose)

    def ridge(self, stored: Tensors) -> Tangent:
        """P(B^-1 B^-T), what curvature I is in B's coordinates. Its trace is that of S^-1."""
        B = self.element(stored)
        ones = torch.ones(B.shape[:-1], dtype=B.dtype, device=B.device)
        # `pull` would look for NaN in every product, and so wait for the device
        return B._pull(lambda V: V, ones)  # pyright: ignore[reportArgumentType]

    def follow_paper(self, stored: Tensors, A: Tensor, ridge: Tangent, beta: float | Tensor, gamma: float) -> Tensors:
        """B <- B h(beta/2 P(A A^T + ridge - gamma I))."""
        B = self.element(stored)
        M = (B.project(A, A) + ridge).shift(-gamma) * (beta / 2)
        return B.retract(M).tensors()


def side(structure: Structure, d: int, power: float, dtype: torch.dtype, device: torch.device) -> Side:
    size = {Dense: d, Diagonal: 1}.get(type(structure))
    if isinstance(structure, BlockDiagonal):
        size = structure.size
    if size and power == 0.5:
        structure.identity(d, device="meta")  # where it does not fit it says so
        return Product(structure, d, size)
    return Factor(structure, d, structure.identity(d, dtype=dtype, device=device))


def finite(tensors: Tensors) -> Tensor:
    """Of each of the L; a sum is not finite if a number in it is not."""
    return torch.isfinite(torch.stack([t.flatten(1).sum(1) for t in tensors]).sum(0))


def only(good: Tensor, new: Tensors, old: Tensors) -> Tensors:
    """The new tensors of those of the L that are good, the old ones of the others."""
    return [torch.where(beside(good, t), t, before) for t, before in zip(new, old, strict=True)]


def _times(A: Tensor, B: Tensor) -> Tensor:
    """A B; element by element where the matrices are numbers, which torch multiplies slowly."""
    if A.shape[-2:] == (1, 1) or B.shape[-2:] == (1, 1):
        return A * B
    if A.shape[-2] == 1 and B.shape[-1] == 1:
        return (A * B.mT).sum(-1, keepdim=True)
    return A @ B


def _norm(M: Tangent) -> Tensor:
    """The Frobenius norm of what is stored of each of L tangents, (L,)."""
    return torch.stack([t.flatten(1).square().sum(1) for t in M.tensors()]).sum(0).sqrt()
