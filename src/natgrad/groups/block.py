"""Block triangular and Heisenberg groups: a diagonal with a dense border.

               k1  n  k2                            k1  n  k2
             [ A   0   0 ]                        [ A   B   B']
    lower  B=[ C   D   0 ]  D diagonal    upper B=[ 0   D   F']
             [ E   F   G ]                        [ 0   0   G ]

k2 = 0 leaves the paper's block triangular groups. In m the blocks A and G are symmetric, the one-sided blocks free:
P(X) takes A, D, G from X once and C, E, F twice, the paper's 2 C (.) kappa(X).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from natgrad.groups import check
from natgrad.groups.base import Algebra, Element, Structure, add_to_diagonal, beside, lu, symmetric, unit_vectors
from natgrad.groups.conjugate import ConjugateMatrix, Reversal
from natgrad.groups.remember import remembered

if TYPE_CHECKING:
    from typing_extensions import Self

    from natgrad.groups.hessian import Hessian


@dataclass(frozen=True)
class Bordered(Structure):
    """What Lower and Upper share: k1 leading and k2 trailing coordinates that interact with all others."""

    k1: int
    k2: int = 0

    storage = "(k1+k2+1) p"
    cost = "(k1+k2)^2 p"

    def __post_init__(self) -> None:
        for name in ("k1", "k2"):
            object.__setattr__(self, name, check.count(getattr(self, name), name))

    def _between(self, p: int) -> int:
        """n = p - k1 - k2."""
        if check.count(p, "p") < self.k1 + self.k2:
            raise ValueError(f"{self} needs k1 + k2 <= p, got k1 + k2 = {self.k1 + self.k2} and p = {p}")
        return p - self.k1 - self.k2


@dataclass(frozen=True)
class Lower(Bordered):
    """Block lower triangular with k1 leading coordinates, lower Heisenberg with k2 trailing ones besides.

    For k2 = 0, S is diagonal plus rank k1; for k1 = 0, S^-1 is diagonal plus rank k2. The better choice for
    minimisation.
    """

    def _identity(self, p: int, batch: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> LowerMatrix:
        n = self._between(p)
        left = torch.eye(self.k1, p, dtype=dtype, device=device)
        bottom = torch.eye(self.k2, n + self.k2, dtype=dtype, device=device).roll(n, -1)
        return LowerMatrix(
            self,
            left=left.repeat(*batch, 1, 1),
            diag=torch.ones(*batch, n, dtype=dtype, device=device),
            bottom=bottom.repeat(*batch, 1, 1),
        )


@dataclass(frozen=True)
class Upper(Bordered):
    """Block upper triangular with k1 leading coordinates, upper Heisenberg with k2 trailing ones besides.

    Upper(k1, k2) is Lower(k2, k1) with the coordinates counted from the other end. For k2 = 0, S^-1 is diagonal
    plus rank k1; for k1 = 0, S is diagonal plus rank k2. The better choice for posteriors.
    """

    def _identity(self, p: int, batch: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> ConjugateMatrix:
        self._between(p)
        return ConjugateMatrix(self, Lower(self.k2, self.k1)._identity(p, batch, dtype, device), Reversal())


@dataclass(frozen=True, eq=False, repr=False)
class LowerMatrix(Algebra):
    left: Tensor  # (*batch, k1, p): row j is column j of B, that is [A; C; E]^T, so that each is contiguous
    diag: Tensor  # (*batch, n): D
    bottom: Tensor  # (*batch, k2, n + k2): [F G]

    @property
    def shape(self) -> tuple[int, ...]:
        *batch, _, p = self.left.shape
        return (*batch, p, p)

    @property
    def sizes(self) -> tuple[int, int, int]:
        """(k1, n, k2)"""
        return self.left.shape[-2], self.diag.shape[-1], self.bottom.shape[-2]

    def dense(self) -> Tensor:
        k1, n, k2 = self.sizes
        middle = torch.cat([self.diag.new_zeros(*self.batch, n, k1), torch.diag_embed(self.diag)], -1)
        rest = torch.cat([torch.nn.functional.pad(middle, (0, k2))[..., k1:], self.bottom], -2)  # [D 0; F G]
        return torch.cat([self.left.mT, torch.nn.functional.pad(rest, (0, 0, k1, 0))], -1)

    def _shift(self, c: float | Tensor) -> Self:
        return replace(
            self,
            left=add_to_diagonal(self.left, c),
            diag=self.diag + beside(c, self.diag),
            bottom=add_to_diagonal(self.bottom, c, offset=self.diag.shape[-1]),
        )

    def trace(self) -> Tensor:
        k1, n, _ = self.sizes
        corners = self.left[..., :k1], self.bottom[..., n:]
        return self.diag.sum(-1) + sum(t.diagonal(dim1=-2, dim2=-1).sum(-1) for t in corners)

    @remembered
    def _corners(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The LU factors of A and G."""
        k1, n, _ = self.sizes
        return lu(self.left[..., :k1].mT), lu(self.bottom[..., n:])

    def logdet(self) -> Tensor:
        (A, _), (G, _) = self._corners
        pivots = [A.diagonal(dim1=-2, dim2=-1), self.diag, G.diagonal(dim1=-2, dim2=-1)]
        return torch.cat(pivots, -1).abs().log().sum(-1)

    # The methods below write into tensors they have just made: at p = 1e6 each further pass costs as much as the work.

    def _matmul(self, other: Self) -> Self:
        k1, n, k2 = self.sizes
        A2, C2, E2 = other.left.split([k1, n, k2], -1)  # transposed, as all of `left`
        F, G = self.bottom.split([n, k2], -1)
        left = A2 @ self.left  # [A; C; E] A2
        left[..., k1 : k1 + n].addcmul_(C2, self.diag.unsqueeze(-2))  # + D C2
        left[..., k1 + n :] += C2 @ F.mT + E2 @ G.mT
        bottom = G @ other.bottom  # G [F2 G2]
        bottom[..., :n].addcmul_(F, other.diag.unsqueeze(-2))  # + F D2
        return replace(self, left=left, diag=self.diag * other.diag, bottom=bottom)

    def _apply(self, x: Tensor, transpose: bool) -> Tensor:
        k1, n, k2 = self.sizes
        xA, xD, xG = x.split([k1, n, k2], -2)
        D = self.diag.unsqueeze(-1)
        if transpose:
            y = torch.cat([_times(self.left, x), self.bottom.mT @ xG], -2)
        else:
            y = self.left.mT @ xA
            y[..., k1 + n :, :] += _times(self.bottom, x[..., k1:, :])
        y[..., k1 : k1 + n, :] += D * xD
        return y

    def _solve(self, x: Tensor, transpose: bool) -> Tensor:
        k1, n, k2 = self.sizes
        xA, xD, xG = x.split([k1, n, k2], -2)
        A, G = self._corners
        C, E = self.left[..., k1 : k1 + n], self.left[..., k1 + n :]  # transposed
        F, D = self.bottom[..., :n], self.diag.unsqueeze(-1)
        if transpose:
            yG = torch.linalg.lu_solve(*G, xG, adjoint=True)
            yD = _minus(xD, F.mT, yG) / D
            yA = torch.linalg.lu_solve(*A, _minus(_minus(xA, C, yD), E, yG), adjoint=True)
        else:
            yA = torch.linalg.lu_solve(*A, xA)
            yD = _minus(xD, C.mT, yA) / D
            yG = torch.linalg.lu_solve(*G, _minus(_minus(xG, E.mT, yA), F, yD))
        return torch.cat([yA, yD, yG], -2)

    def _project(self, U: Tensor, V: Tensor) -> Self:
        k1, n, k2 = self.sizes
        UA, UD, UG = U.split([k1, n, k2], -2)
        VA, VD, VG = V.split([k1, n, k2], -2)
        first = UA @ V.mT + VA @ U.mT
        last = UG @ V[..., k1:, :].mT + VG @ U[..., k1:, :].mT
        return self._tangent(first, (UD * VD).sum(-1), last)

    def _pull(self, hvp: Hessian, diagonal: Tensor | None) -> Algebra:
        """Exact from the k1 + k2 columns of X = B^-1 H B^-T at the border, and diag(H).

        A middle row of B^-1 is (e_i - W C_i)^T / d_i with W = B^-T [e_1 .. e_k1], so that
        X_ii = (H_ii - 2 C_i^T (H W)_i + C_i^T (W^T H W) C_i) / d_i^2.
        """
        k1, n, k2 = self.sizes
        if diagonal is None:
            return super()._pull(hvp, None)  # pyright: ignore[reportReturnType]
        p = k1 + n + k2
        eye = torch.eye(k1, dtype=self.dtype, device=self.device).expand(*self.batch, k1, k1)
        W = torch.linalg.lu_solve(*self._corners[0], eye, adjoint=True)  # A^-T, and zeros below
        W = torch.nn.functional.pad(W, (0, 0, 0, p - k1))
        HW = hvp(torch.cat([W, self._solve(unit_vectors(p - k2, p, self), True)], -1) if k2 else W)
        left, bottom = self._corners
        C, E, F = self.left[..., k1 : k1 + n], self.left[..., k1 + n :], self.bottom[..., :n]
        X = HW.mT.clone(memory_format=torch.contiguous_format)  # (*batch, k1 + k2, p), to become B^-1 H W, by rows
        XA, XD, XG = X[..., :k1], X[..., k1 : k1 + n], X[..., k1 + n :]
        YA = torch.linalg.lu_solve(*left, HW[..., :k1, :])
        CY = YA.mT @ C
        XD.sub_(CY)
        twice = torch.add(CY[..., :k1, :], XD[..., :k1, :], alpha=2)  # 2 (H W)_i - W^T H W C_i for each i
        diag = (diagonal[..., k1 : k1 + n] - twice.mul_(C).sum(-2)) / self.diag / self.diag
        XD.div_(self.diag.unsqueeze(-2))
        if k2:
            YG = HW[..., k1 + n :, :] - E.mT @ YA - F @ XD.mT.clone()
            XG.copy_(torch.linalg.lu_solve(*bottom, YG).mT)
        XA.copy_(YA.mT)
        X.mul_(2)
        return self._tangent(X[..., :k1, :], diag, X[..., k1:, k1:])

    def _tangent(self, first: Tensor, diag: Tensor, last: Tensor) -> Self:
        """P(X) from twice its first k1 rows, its diagonal, and twice [F G] of its last k2 rows, which it takes over."""
        k1, n, _ = self.sizes
        first[..., :k1] = symmetric(first[..., :k1]) / 2
        last[..., n:] = symmetric(last[..., n:]) / 2
        return replace(self, left=first, diag=diag, bottom=last)


def _minus(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x - a b, where a b may be a sum of nothing."""
    return x - _times(a, b) if a.shape[-1] else x


def _times(a: Tensor, x: Tensor) -> Tensor:
    """a x; with one long row as (x^T a^T)^T, at which torch is four times faster."""
    return (x.mT @ a.mT).mT if a.shape[-2] == 1 else a @ x


def precision_as_low_rank(B: Element) -> tuple[Tensor, Tensor]:
    """S = diag(d) + U U^T as (d, U), (*batch, p) and (*batch, p, k), for B of Lower(k) or Upper(0, k).

    U is the first k columns of B, [A; C].
    """
    lower, rotate = _as_lower(B)
    k1, _, k2 = lower.sizes
    if k2:
        raise ValueError(
            f"S is diagonal plus low rank for Lower(k) and Upper(0, k), but not for {B.structure}; use precision(x) "
            "for products with S, or covariance_as_low_rank where only the other border is dense"
        )
    d = torch.nn.functional.pad(lower.diag**2, (k1, 0))
    return rotate(d.unsqueeze(-1)).squeeze(-1), rotate(lower.left.mT).clone()


def covariance_as_low_rank(B: Element) -> tuple[Tensor, Tensor]:
    """S^-1 = diag(d) + U U^T as (d, U), (*batch, p) and (*batch, p, k), for B of Upper(k) or Lower(0, k).

    U is k columns of B^-T: [-A^-T; D^-1 B^T A^-T] in the paper's section 2.2, up to the sign and order of columns.
    """
    lower, rotate = _as_lower(B)
    k1, n, k2 = lower.sizes
    if k1:
        raise ValueError(
            f"S^-1 is diagonal plus low rank for Upper(k) and Lower(0, k), but not for {B.structure}; use "
            "covariance(x) for products with S^-1, or precision_as_low_rank where only the other border is dense"
        )
    d = torch.nn.functional.pad(lower.diag**-2, (0, k2))
    U = lower.solve(unit_vectors(n, n + k2, lower), transpose=True)
    return rotate(d.unsqueeze(-1)).squeeze(-1), rotate(U)


def _as_lower(B: Element) -> tuple[LowerMatrix, Callable[[Tensor], Tensor]]:
    """The lower matrix behind B, and the way from its coordinates to those of B."""
    moves: list[Callable[[Tensor], Tensor]] = []
    inner = B
    while isinstance(inner, ConjugateMatrix) and inner.by.moves_only:
        moves.append(inner.by.forward)
        inner = inner.inner
    if not isinstance(inner, LowerMatrix):
        raise ValueError(
            f"expected an element of Lower or Upper (or of one with its coordinates permuted), got {check.named(B)}"
        )

    def rotate(x: Tensor) -> Tensor:
        for move in reversed(moves):
            x = move(x)
        return x

    return inner, rotate
