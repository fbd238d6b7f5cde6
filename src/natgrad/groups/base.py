"""The interface of a structure: descriptions without tensors, and their elements and tangents.

    Structure   a matrix group, described; `structure.identity(p)` makes
    Element     an invertible matrix B of the group: products, solves, the projection onto the tangent space
    Tangent     a matrix M of the tangent space m at the identity: sums, scalings, h(M)
    Algebra     both at once, for groups that are the units of a matrix algebra: every group but Kronecker's

A subclass writes the underscored methods, which see checked blocks of vectors of shape (*batch, p, r) only.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias, overload

import torch
from torch import Tensor

from natgrad.groups import check
from natgrad.groups.hessian import Hessian

if TYPE_CHECKING:
    from typing_extensions import Self

Size: TypeAlias = "int | tuple[Size, Size]"
HVP: TypeAlias = Callable[[Tensor], Tensor]  # V (*batch, p, r) -> H V, as wide

CHUNK = 2**22  # numbers in one block of vectors where a long loop is cut into blocks


class Structure(ABC):
    """A matrix group, described: immutable, comparable, printable, picklable, and without tensors."""

    storage: ClassVar[str]  # numbers kept for one element, as a formula
    cost: ClassVar[str]  # time of the dearest operation, as a formula

    def identity(
        self,
        p: Size,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        batch: tuple[int, ...] = (),
    ) -> Element:
        """The identity matrix of size p as an element of this group, `batch` of them."""
        dtype = check.dtype(torch.get_default_dtype() if dtype is None else dtype)
        return self._identity(p, check.batch(batch), dtype, check.device(device))

    @abstractmethod
    def _identity(self, p: Any, batch: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Element: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Stored(ABC):
    """What elements and tangents share: a structure, and tensors with the same leading batch dimensions."""

    structure: Structure

    __array_ufunc__ = None  # so that a NumPy number on the left leaves the product to us

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """(*batch, p, p), the shape of `dense()`."""

    @abstractmethod
    def dense(self) -> Tensor:
        """The matrix itself, (*batch, p, p). For people, pictures and tests: no computation uses it."""

    def tensors(self) -> list[Tensor]:
        """The stored tensors, in a fixed order."""
        found: list[Tensor] = []
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, Stored):
                found.extend(value.tensors())
        return found

    def map(self, function: Callable[..., Tensor], *others: Self) -> Self:
        """The element or tangent whose stored tensors are function(mine, theirs, ...), of the same shapes and dtype."""
        changed: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Tensor):
                changed[field.name] = function(value, *(getattr(other, field.name) for other in others))
            elif isinstance(value, Stored):
                changed[field.name] = value.map(function, *(getattr(other, field.name) for other in others))
        return dataclasses.replace(self, **changed)

    @property
    def batch(self) -> tuple[int, ...]:
        return self.shape[:-2]

    @property
    def dtype(self) -> torch.dtype:
        return self.tensors()[0].dtype

    @property
    def device(self) -> torch.device:
        return self.tensors()[0].device

    def __getstate__(self) -> dict[str, Any]:  # fields only: cached factorisations are not worth carrying
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.structure}, {check.shape(self.shape)}, {self.dtype}, {self.device}>"


class Tangent(Stored):
    """A matrix M of the tangent space m of a group at the identity, where M + M', a M and h(M) make sense.

    Scalars are numbers, which must be finite, or tensors of one number a batch member, which are not looked at.
    """

    def __add__(self, other: Self) -> Self:
        check.alike(self, other, "+")
        return self.map(torch.add, other)

    def __sub__(self, other: Self) -> Self:
        check.alike(self, other, "-")
        return self.map(torch.sub, other)

    def __neg__(self) -> Self:
        return self.map(torch.neg)

    def __mul__(self, scalar: float | Tensor) -> Self:
        """a M."""
        a = check.scalar(self, scalar)
        return self.map(lambda t: t * beside(a, t))

    __rmul__ = __mul__

    def __truediv__(self, scalar: float | Tensor) -> Self:
        a = check.divisor(self, scalar)
        return self.map(lambda t: t / beside(a, t))

    def shift(self, c: float | Tensor) -> Self:
        """M + c I."""
        return self._shift(check.scalar(self, c))

    @abstractmethod
    def _shift(self, c: float | Tensor) -> Self: ...

    @abstractmethod
    def trace(self) -> Tensor:
        """tr M, (*batch). As I lies in m, tr P(X) = tr X."""

    @abstractmethod
    def h(self) -> Element:
        """h(M), an element of the group that agrees with the exponential of M to second order."""


class Element(Stored):
    """An invertible matrix B of a group, with S = B B^T the precision that it factors.

    Vectors are x of shape (*batch, p), blocks of r vectors (*batch, p, r). Elements are immutable: every operation
    makes a new one, differentiable with respect to what went in. Numbers that are not finite are refused where the
    look is cheap (Hessian products, diagonals, scalars); in `apply`, `solve` and `project` they go where arithmetic
    takes them.
    """

    def __matmul__(self, other: Self) -> Self:
        """The product A B, in the same group."""
        check.alike(self, other, "@")
        return self._matmul(other)

    def apply(self, x: Tensor, transpose: bool = False) -> Tensor:
        """B x, or B^T x."""
        return self._on_block(x, "apply", lambda block: self._apply(block, transpose))

    def solve(self, x: Tensor, transpose: bool = False) -> Tensor:
        """B^-1 x, or B^-T x."""
        return self._on_block(x, "solve", lambda block: self._solve(block, transpose))

    def precision(self, x: Tensor) -> Tensor:
        """S x = B (B^T x)."""
        return self._on_block(x, "precision", lambda block: self._apply(self._apply(block, True), False))

    def covariance(self, x: Tensor) -> Tensor:
        """S^-1 x = B^-T (B^-1 x)."""
        return self._on_block(x, "covariance", lambda block: self._solve(self._solve(block, False), True))

    def project(self, U: Tensor, V: Tensor) -> Tangent:
        """P(X) for X = sym(U V^T) = (U V^T + V U^T) / 2, without forming X.

        P(X) is the M of the tangent space for which || sym(M) - X ||_F is least, and of those the smallest. So the
        residual sym(P(X)) - X is orthogonal to sym(m), and P(sym(M)) = M for every M in m.
        """
        U, _ = check.vectors(self, U, "project, as U")
        V, _ = check.vectors(self, V, "project, as V")
        if U.shape != V.shape:
            raise ValueError(
                f"project: U and V are the two factors of U V^T and must be equally wide, "
                f"but U is {check.shape(U.shape)} and V is {check.shape(V.shape)}"
            )
        return self._project(U, V)

    def pull(self, hvp: HVP, diagonal: Tensor | None = None) -> Tangent:
        """P(B^-1 H B^-T) exactly, for a symmetric H given by its products `hvp(V)` = H V on blocks of vectors.

        `diagonal` is the exact diag(H), (*batch, p), with which many groups need far fewer products. Pass a
        `Hessian` to count them.
        """
        counted = hvp if isinstance(hvp, Hessian) else Hessian(hvp)
        if diagonal is not None:
            diagonal = check.diagonal(self, diagonal)
        return self._pull(counted, diagonal)

    def retract(self, M: Tangent) -> Self:
        """B h(M), in the group for every M of the tangent space."""
        check.tangent(self, M)
        return self._retract(M)

    @abstractmethod
    def logdet(self) -> Tensor:
        """log |det B|, (*batch)."""

    @abstractmethod
    def _matmul(self, other: Any) -> Self: ...

    @abstractmethod
    def _apply(self, x: Tensor, transpose: bool) -> Tensor: ...

    @abstractmethod
    def _solve(self, x: Tensor, transpose: bool) -> Tensor: ...

    @abstractmethod
    def _project(self, U: Tensor, V: Tensor) -> Tangent: ...

    @abstractmethod
    def _retract(self, M: Any) -> Self: ...

    def _pull(self, hvp: Hessian, diagonal: Tensor | None) -> Tangent:
        """The general way, by p products: X = B^-1 H B^-T is the sum of (X e_i) e_i^T. Some groups need far fewer."""
        p = self.shape[-1]
        width = max(1, CHUNK // max(1, p * math.prod(self.batch)))
        total: Tangent | None = None
        for start in range(0, max(p, 1), width):
            E = unit_vectors(start, min(start + width, p), self)
            X = self._solve(hvp(self._solve(E, True)), False)
            part = self._project(X, E)
            total = part if total is None else total + part
        assert total is not None
        return total

    def _on_block(self, x: Tensor, name: str, operation: Callable[[Tensor], Tensor]) -> Tensor:
        block, is_vector = check.vectors(self, x, name)
        y = operation(block)
        return y.squeeze(-1) if is_vector else y


class Algebra(Element, Tangent):
    """An element of a group that is the set of units of a matrix algebra with I.

    Sums, scalings, products and inverses stay inside, so elements and tangents are stored alike.
    """

    def h(self) -> Self:
        """h(M) = I + M + M^2 / 2."""
        return (self + self._matmul(self) * 0.5)._shift(1.0)

    def _retract(self, M: Self) -> Self:
        """B h(M) = B + C + C M / 2 with C = B M."""
        C = self._matmul(M)
        return self.map(lambda b, c, cm: cm.mul_(0.5).add_(c).add_(b), C, C._matmul(M))  # into the newest


def unit_vectors(first: int, last: int, like: Stored) -> Tensor:
    """The block of e_i for i from first to last, this not included, (*batch, p, r)."""
    E = torch.zeros(like.shape[-1], last - first, dtype=like.dtype, device=like.device)
    E.diagonal(-first).fill_(1.0)
    return E.expand(*like.batch, *E.shape)


@overload
def beside(c: Tensor, t: Tensor) -> Tensor: ...


@overload
def beside(c: float | Tensor, t: Tensor) -> float | Tensor: ...


def beside(c: float | Tensor, t: Tensor) -> float | Tensor:
    """A number as it is, or one number a batch member shaped to meet t, (*batch, ...)."""
    return c.reshape(c.shape + (1,) * (t.ndim - c.ndim)) if isinstance(c, Tensor) else c


def add_to_diagonal(t: Tensor, c: float | Tensor, offset: int = 0) -> Tensor:
    """t + c on one diagonal of its last two dimensions."""
    t = t.clone()
    diagonal = t.diagonal(offset, -2, -1)
    diagonal.add_(beside(c, diagonal))
    return t


def add_to_first(t: Tensor, c: float | Tensor) -> Tensor:
    """t with c added to the first number of its last dimension."""
    first = t[..., :1]
    return torch.cat([first + beside(c, first), t[..., 1:]], -1)


def symmetric(X: Tensor) -> Tensor:
    """sym(X) = (X + X^T) / 2."""
    return (X + X.mT) / 2


def lu(A: Tensor) -> tuple[Tensor, Tensor]:
    """LU factors; of a singular matrix such that solving gives infinities, as dividing by zero does elsewhere."""
    factors, pivots, _ = torch.linalg.lu_factor_ex(A)
    return factors, pivots
