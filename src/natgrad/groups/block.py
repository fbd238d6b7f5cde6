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
from functools import cached_property
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from natgrad.groups import check
from natgrad.groups.base import Algebra, Element, Structure, add_to_diagonal, beside, columns_of_identity, symmetric
from natgrad.groups.conjugate import ConjugateMatrix, Reversal

if TYPE_CHECKING:
    from typing_extensions import Self

    from natgrad.groups.hessian import Hessian


@dataclass(frozen=True)
class Lower(Structure):
    """Block lower triangular with k1 leading coordinates, lower Heisenberg with k2 trailing ones besides.

    The k1 leading and k2 trailing coordinates interact with all others. For k2 = 0, S is diagonal plus rank k1; for
    k1 = 0, S^-1 is diagonal plus rank k2. The better choice for minimisation.
    """

    k1: int
    k2: int = 0

    storage = "(k1+k2+1) p"
    cost = "(k1+k2)^2 p"

    def __post_init__(self) -> None:
        check.count(self.k1, "k1")
        check.count(self.k2, "k2")

    def _identity(self, p: int, batch: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> LowerMatrix:
        p = check.count(p, "p")
        n = p - self.k1 - self.k2
        if n < 0:
            raise ValueError(f"{self} needs k1 + k2 <= p, got k1 + k2 = {self.k1 + self.k2} and p = {p}")
        left = torch.eye(self.k1, p, dtype=dtype, device=device)
        bottom = torch.eye(self.k2, n + self.k2, dtype=dtype, device=device).roll(n, -1)
        return LowerMatrix(
            self,
            left=left.repeat(*batch, 1, 1),
            diag=torch.ones(*batch, n, dtype=dtype, device=device),
            bottom=bottom.repeat(*batch, 1, 1),
        )


@dataclass(frozen=True)
class Upper(Structure):
    """Block upper triangular with k1 leading coordinates, upper Heisenberg with k2 trailing ones besides.

    Upper(k1, k2) is Lower(k2, k1) with the coordinates counted from the other end. For k2 = 0, S^-1 is diagonal
    plus rank k1; for k1 = 0, S is diagonal plus rank k2. The better choice for posteriors.
    """

    k1: int
    k2: int = 0

    storage = "(k1+k2+1) p"
    cost = "(k1+k2)^2 p"

    def __post_init__(self) -> None:
        check.count(self.k1, "k1")
        check.count(self.k2, "k2")

    def _identity(self, p: int, batch: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> ConjugateMatrix:
        if check.count(p, "p") < self.k1 + self.k2:
            raise ValueError(f"{self} needs k1 + k2 <= p, got k1 + k2 = {self.k1 + self.k2} and p = {p}")
        lower = Lower(self.k2, self.k1).identity(p, dtype=dtype, device=device, batch=batch)
        return ConjugateMatrix(self, lower, Reversal())


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

    def shift(self, c: float | Tensor) -> Self:
        return replace(
            self,
            left=add_to_diagonal(self.left, c),
            diag=self.diag + beside(c, self.diag),
            bottom=add_to_diagonal(self.bottom, c, offset=self.diag.shape[-1]),
        )

    @cached_property
    def _corners(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The LU factors of A and G."""
        k1, n, _ = self.sizes
        return torch.linalg.lu_factor(self.left[..., :k1].mT), torch.linalg.lu_factor(self.bottom[..., n:])

    def logdet(self) -> Tensor:
        (A, _), (G, _) = self._corners
        pivots = [A.diagonal(dim1=-2, dim2=-1), self.diag, G.diagonal(dim1=-2, dim2=-1)]
        return torch.cat(pivots, -1).abs().log().sum(-1)

    def _matmul(self, other: Self) -> Self:
        k1, n, k2 = self.sizes
        A2, C2, E2 = other.left.split([k1, n, k2], -1)  # transposed, as all of `left`
        F, G = self.bottom.split([n, k2], -1)
        A, C, E = self.left.split([k1, n, k2], -1)
        F2, G2 = other.bottom.split([n, k2], -1)
        left = [A2 @ A, torch.addcmul(A2 @ C, C2, self.diag.unsqueeze(-2)), A2 @ E + C2 @ F.mT + E2 @ G.mT]
        bottom = [torch.addcmul(G @ F2, F, other.diag.unsqueeze(-2)), G @ G2]
        return replace(self, left=torch.cat(left, -1), diag=self.diag * other.diag, bottom=torch.cat(bottom, -1))

    def _apply(self, x: Tensor, transpose: bool) -> Tensor:
        k1, n, k2 = self.sizes
        xA, xD, xG = x.split([k1, n, k2], -2)
        D = self.diag.unsqueeze(-1)
        if transpose:
            y = self.bottom.mT @ xG  # [F^T; G^T] xG
            return torch.cat([self.left @ x, torch.addcmul(y[..., :n, :], D, xD), y[..., n:, :]], -2)
        y = self.left.mT @ xA  # [A; C; E] xA
        yA, yD, yG = y.split([k1, n, k2], -2)
        return torch.cat([yA, torch.addcmul(yD, D, xD), yG + self.bottom @ x[..., k1:, :]], -2)

    def _solve(self, x: Tensor, transpose: bool) -> Tensor:
        k1, n, k2 = self.sizes
        xA, xD, xG = x.split([k1, n, k2], -2)
        D = self.diag.unsqueeze(-1)
        A, G = self._corners
        F = self.bottom[..., :n]
        CE = self.left[..., k1:]  # [C; E]^T
        if transpose:
            yG = torch.linalg.lu_solve(*G, xG, adjoint=True)
            yD = (xD - F.mT @ yG) / D
            yA = torch.linalg.lu_solve(*A, xA - CE @ torch.cat([yD, yG], -2), adjoint=True)
        else:
            yA = torch.linalg.lu_solve(*A, xA)
            rest = CE.mT @ yA
            yD = (xD - rest[..., :n, :]) / D
            yG = torch.linalg.lu_solve(*G, xG - rest[..., n:, :] - F @ yD)
        return torch.cat([yA, yD, yG], -2)

    def _project(self, U: Tensor, V: Tensor) -> Self:
        k1, n, k2 = self.sizes
        UA, UD, UG = U.split([k1, n, k2], -2)
        VA, VD, VG = V.split([k1, n, k2], -2)
        return self._tangent(UA @ V.mT + VA @ U.mT, (UD * VD).sum(-1), UG @ V.mT + VG @ U.mT)

    def _pull(self, hvp: Hessian, diagonal: Tensor | None) -> Algebra:
        """Exact from the k1 + k2 columns of X = B^-1 H B^-T at the border, and diag(H).

        A middle row of B^-1 is (e_i - W C_i)^T / d_i with W = B^-T [e_1 .. e_k1], so that
        X_ii = (H_ii - 2 C_i^T (H W)_i + C_i^T (W^T H W) C_i) / d_i^2.
        """
        k1, n, k2 = self.sizes
        if diagonal is None:
            return super()._pull(hvp, None)  # pyright: ignore[reportReturnType]
        p = k1 + n + k2
        first, last = columns_of_identity(p, 0, k1, self), columns_of_identity(p, p - k2, p, self)
        HW = hvp(self._solve(torch.cat([first, last], -1), True))
        X = self._solve(HW, False).mT  # (*batch, k1 + k2, p): the first k1 and last k2 rows of X
        XA = X[..., :k1, :k1]  # W^T H W
        C = self.left[..., k1 : k1 + n].mT  # (*batch, n, k1)
        HWD = HW[..., k1 : k1 + n, :k1]
        diag = (diagonal[..., k1 : k1 + n] + (C * (C @ XA - 2 * HWD)).sum(-1)) / self.diag**2
        return self._tangent(2 * X[..., :k1, :], diag, 2 * X[..., k1:, :])

    def _tangent(self, first: Tensor, diag: Tensor, last: Tensor) -> Self:
        """P(X) from twice the first k1 and last k2 rows of X, and its diagonal between them."""
        k1, n, _ = self.sizes
        left = torch.cat([symmetric(first[..., :k1]) / 2, first[..., k1:]], -1)
        bottom = torch.cat([last[..., k1 : k1 + n], symmetric(last[..., k1 + n :]) / 2], -1)
        return replace(self, left=left, diag=diag, bottom=bottom)


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
    return rotate(d.unsqueeze(-1)).squeeze(-1), rotate(lower.left.mT)


def covariance_as_low_rank(B: Element) -> tuple[Tensor, Tensor]:
    """S^-1 = diag(d) + U U^T as (d, U), (*batch, p) and (*batch, p, k), for B of Upper(k) or Lower(0, k).

    U is k columns of B^-T: [-A^-T; D^-1 B^T A^-T] in the paper's section 2.2, here with the other sign.
    """
    lower, rotate = _as_lower(B)
    k1, n, k2 = lower.sizes
    if k1:
        raise ValueError(
            f"S^-1 is diagonal plus low rank for Upper(k) and Lower(0, k), but not for {B.structure}; use "
            "covariance(x) for products with S^-1, or precision_as_low_rank where only the other border is dense"
        )
    d = torch.nn.functional.pad(lower.diag**-2, (0, k2))
    U = lower.solve(columns_of_identity(n + k2, n, n + k2, lower), transpose=True)
    return rotate(d.unsqueeze(-1)).squeeze(-1), rotate(U)


def _as_lower(B: Element) -> tuple[LowerMatrix, Callable[[Tensor], Tensor]]:
    """The lower matrix behind B, and the way from its coordinates to those of B."""
    inner, rotate = (B.inner, B.by.forward) if isinstance(B, ConjugateMatrix) and B.by.moves_only else (B, _stay)
    if not isinstance(inner, LowerMatrix):
        raise ValueError(f"expected an element of Lower or Upper (or of one with its coordinates permuted), got {B!r}")
    return inner, rotate


def _stay(x: Tensor) -> Tensor:
    return x
