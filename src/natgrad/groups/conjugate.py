"""Conjugate groups: Q B Q^T for B in a group and a fixed orthogonal Q.

A permutation Q costs nothing and says which coordinates lead; an orthogonal Q, p x p, costs two products a use.
Projection and pull commute with the conjugation, so everything happens in the inner group on rotated vectors.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from scipy.sparse import issparse
from torch import Tensor

from natgrad.groups import check
from natgrad.groups.base import Algebra, Structure
from natgrad.groups.frozen import FrozenArray
from natgrad.groups.hessian import Hessian
from natgrad.groups.kronecker import Kronecker

if TYPE_CHECKING:
    from typing_extensions import Self


class Rotation(Protocol):
    """An orthogonal Q acting on blocks of vectors (*batch, p, r)."""

    def forward(self, x: Tensor) -> Tensor: ...  # Q x

    def backward(self, x: Tensor) -> Tensor: ...  # Q^T x

    @property
    def moves_only(self) -> bool: ...  # a permutation: then diag(Q^T H Q) is diag(H) moved


@dataclass(frozen=True)
class Reversal:
    """The permutation that counts coordinates from the other end."""

    moves_only = True

    def forward(self, x: Tensor) -> Tensor:
        return x.flip(-2)

    backward = forward


@dataclass(frozen=True, eq=False)
class Permutation:
    order: Tensor  # (p,): coordinate order[j] takes place j
    place: Tensor  # (p,): its inverse
    moves_only = True

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(-2, self.place)

    def backward(self, x: Tensor) -> Tensor:
        return x.index_select(-2, self.order)


@dataclass(frozen=True, eq=False)
class Orthogonal:
    Q: Tensor  # (p, p)
    moves_only = False

    def forward(self, x: Tensor) -> Tensor:
        return self.Q @ x

    def backward(self, x: Tensor) -> Tensor:
        return self.Q.mT @ x


@dataclass(frozen=True)
class Conjugate(Structure):
    """Q B Q^T for B of `structure`, `by` an orthogonal matrix Q, p x p, or a permutation, p whole numbers.

    With a permutation, coordinate by[j] takes place j: Conjugate(Lower(2), by=[7, 3, ...]) leads with w_7 and w_3.
    What the inner structure assumes of H (a sparsity pattern) is meant for Q^T H Q.
    """

    structure: Structure
    by: FrozenArray

    storage = "that of the inner"
    cost = "that of the inner (+ p^2)"

    def __init__(self, structure: Structure, by: object):
        if not isinstance(structure, Structure):
            raise ValueError(f"Conjugate expected a structure first, as Lower(2) is, got {check.brief(structure)}")
        if isinstance(structure, Kronecker):
            raise ValueError(f"Conjugate cannot rotate {structure}, which is no algebra; conjugate its sides instead")
        object.__setattr__(self, "structure", structure)
        object.__setattr__(self, "by", by if isinstance(by, FrozenArray) else FrozenArray(_rotation(by)))

    def _identity(self, p: int, batch: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> ConjugateMatrix:
        by = self.by.array
        if check.count(p, "p") != len(by):
            raise ValueError(f"{self} is of size {len(by)}, got p={p}")
        inner = self.structure.identity(p, dtype=dtype, device=device, batch=batch)
        assert isinstance(inner, Algebra)
        if by.ndim == 1:
            order = torch.tensor(by, device=device)
            return ConjugateMatrix(self, inner, Permutation(order, torch.argsort(order)))
        return ConjugateMatrix(self, inner, Orthogonal(torch.tensor(by, dtype=dtype, device=device)))


@dataclass(frozen=True, eq=False, repr=False)
class ConjugateMatrix(Algebra):
    inner: Algebra
    by: Rotation

    @property
    def shape(self) -> tuple[int, ...]:
        return self.inner.shape

    def dense(self) -> Tensor:
        return self.by.forward(self.by.forward(self.inner.dense()).mT).mT

    def _shift(self, c: float | Tensor) -> Self:
        return replace(self, inner=self.inner._shift(c))

    def trace(self) -> Tensor:
        return self.inner.trace()

    def logdet(self) -> Tensor:
        return self.inner.logdet()

    def _matmul(self, other: Self) -> Self:
        return replace(self, inner=self.inner._matmul(other.inner))

    def _apply(self, x: Tensor, transpose: bool) -> Tensor:
        return self.by.forward(self.inner._apply(self.by.backward(x), transpose))

    def _solve(self, x: Tensor, transpose: bool) -> Tensor:
        return self.by.forward(self.inner._solve(self.by.backward(x), transpose))

    def _project(self, U: Tensor, V: Tensor) -> Self:
        return replace(self, inner=self.inner._project(self.by.backward(U), self.by.backward(V)))

    def _pull(self, hvp: Hessian, diagonal: Tensor | None) -> Self:
        """The inner pull of Q^T H Q, whose diagonal is known if Q only moves coordinates."""
        moved = (
            self.by.backward(diagonal.unsqueeze(-1)).squeeze(-1)
            if diagonal is not None and self.by.moves_only
            else None
        )
        rotated = Hessian(lambda V: self.by.backward(hvp(self.by.forward(V))))
        return replace(self, inner=self.inner._pull(rotated, moved))


def _rotation(by: object) -> np.ndarray:
    """A permutation or an orthogonal matrix as a NumPy array, or a ValueError that says what it is not."""
    if issparse(by) or (isinstance(by, Tensor) and by.layout != torch.strided):
        raise ValueError(
            f"by must be dense, got {type(by).__name__}: by.toarray() of SciPy, by.to_dense() of torch; a permutation "
            "matrix is given by its permutation, np.ravel(by.argmax(0))"
        )
    array = check.array(by, "by")
    if array.ndim == 1 and (array.dtype.kind in "iu" or array.size == 0):
        return check.permutation(array, "by")
    if array.ndim == 2 and array.dtype in (np.float32, np.float64) and array.shape[0] == array.shape[1]:
        Q, eye = array.astype(np.float64), np.eye(len(array))
        gap = np.abs(Q.T @ Q - eye).max(initial=0.0)
        if not gap <= 100 * max(1, len(array)) ** 0.5 * np.finfo(array.dtype).eps:
            raise ValueError(
                f"by is not orthogonal: an entry of Q^T Q - I is {gap:.2g}; torch.linalg.qr(by)[0] gives one that is"
            )
        return Q @ (3 * eye - Q.T @ Q) / 2  # one Newton step to the nearest orthogonal matrix squares what is left
    raise ValueError(
        "by must be a permutation (p whole numbers, 0 .. p-1 once each) or an orthogonal matrix (p x p, float32 or "
        f"float64), got {array.dtype} of shape {check.shape(array.shape)}"
        + ("; a permutation matrix is given by its permutation, by.argmax(0)" if array.ndim == 2 else "")
    )
