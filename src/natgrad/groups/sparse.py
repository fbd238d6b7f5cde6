"""Sparse Cholesky groups: B_ij != 0 only where i is j or above j in a transitive relation.

    a chain of 7, dissected:      4          B has columns 1: {4 2 1}, 3: {4 2 3}, 2: {4 2}, 5: {4 6 5}, ...
                                2   6
                               1 3 5 7       an entry in every ancestor's row

For the elimination tree of a Hessian the relation "ancestor" holds the pattern of its exact Cholesky factor, so S = H
can be reached: full Newton steps at the price of the tree's depth. m has all entries of the pattern; P(X) takes the
diagonal of X once and the rest twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from scipy.sparse import csc_array, csr_array, diags_array
from torch import Tensor

from natgrad.groups import check
from natgrad.groups.base import CHUNK, Algebra, Element, Structure, beside
from natgrad.groups.coloring import color
from natgrad.groups.frozen import FrozenArray
from natgrad.groups.ordering import elimination_tree, from_the_root, nested_dissection, straighten
from natgrad.groups.patterns import above_sets, find, positions, relation_sets, sparsity
from natgrad.groups.remember import plain, remembered
from natgrad.groups.superlu import symmetric_lu
from natgrad.groups.upsets import UpSets

if TYPE_CHECKING:
    from typing_extensions import Self

    from natgrad.groups.hessian import Hessian


@dataclass(frozen=True, repr=False)
class SparseCholesky(Structure):
    """Factors with the pattern of a sparse Cholesky factor, closed under ancestors, for a sparse Hessian.

    hessian: the symmetric sparsity pattern of H, p x p: a SciPy sparse matrix (its stored entries), or a dense array
    (its nonzeros). order: an elimination order of your own, first to last; nested dissection by default.
    `pull` takes H to have this sparsity, finds it from one product per colour, and ignores `diagonal`.
    """

    order: FrozenArray  # (p,): the coordinate at each place, what is above first
    starts: FrozenArray  # (p + 1,)
    rows: FrozenArray  # (sum of depths,): the places above j and j itself, for each place j
    hessian: FrozenArray | None  # where the entries of H stand among `rows`; None for any H

    storage = "sum of depths"
    cost = "sum of squared depths"

    def __init__(self, hessian: object, order: object = None):
        pattern = sparsity(hessian, "hessian")
        first_to_last = nested_dissection(pattern) if order is None else check.permutation(order, "order")
        if len(first_to_last) != pattern.shape[0]:
            raise ValueError(f"order must have one entry for each of {pattern.shape[0]} rows, got {len(first_to_last)}")
        node, parent = from_the_root(straighten(elimination_tree(pattern, first_to_last)))
        self._set(pattern, first_to_last[node], *above_sets(parent))

    @classmethod
    def from_relation(cls, relation: object, hessian: object = None) -> SparseCholesky:
        """The group of a transitive pattern of your own: B_ij may be nonzero where relation[i, j] is, and for i = j.

        hessian: the sparsity of H, within the pattern and its transpose. Without it H may be any matrix, and `pull`
        asks for p products.
        """
        self = cls.__new__(cls)
        self._set(None if hessian is None else sparsity(hessian, "hessian"), *relation_sets(relation))
        return self

    def _set(self, pattern: csr_array | None, order: np.ndarray, starts: np.ndarray, rows: np.ndarray) -> None:
        if pattern is not None and pattern.shape[0] != len(order):
            raise ValueError(f"hessian is {pattern.shape[0]} x {pattern.shape[0]}, but relation has {len(order)} rows")
        where = None if pattern is None else FrozenArray(positions(pattern, order, starts, rows))
        for name, value in {"order": order, "starts": starts, "rows": rows}.items():
            object.__setattr__(self, name, FrozenArray(value))
        object.__setattr__(self, "hessian", where)

    def cholesky(
        self, S: object, dtype: torch.dtype | None = None, device: torch.device | str | None = None
    ) -> Element:
        """The B of this group with B B^T = S, for a positive definite S with the sparsity that the group is for."""
        A = csc_array(S)
        one = self.identity(A.shape[0], dtype=dtype, device=device)
        order, p = self.order.array[::-1], A.shape[0]  # what is above is eliminated last
        lu = symmetric_lu(csc_array(A[order][:, order]))
        if lu is None:
            raise ValueError("S must be positive definite to have a Cholesky factor")
        L = (lu.L @ diags_array(lu.U.diagonal() ** 0.5)).tocoo()
        moved = np.argsort(lu.perm_r)  # SuperLU may renumber within the same tree
        place = p - 1 - moved
        where = find(place[L.row], place[L.col], self.starts.array, self.rows.array)
        if (where < 0).any():
            raise ValueError(f"S has entries that {self} does not hold; make the structure from the pattern of S")
        values = torch.zeros(one.tensors()[0].shape, dtype=torch.float64)
        values[torch.as_tensor(where)] = torch.as_tensor(L.data, dtype=torch.float64)
        return one.map(lambda v: values.to(v))

    def hessian_entries(self) -> tuple[np.ndarray, np.ndarray] | None:
        """(i, j) of the entries that H may have, each pair once; None where H may be any matrix."""
        if self.hessian is None:
            return None
        order, starts, rows, position = self.order.array, self.starts.array, self.rows.array, self.hessian.array
        return order[rows[position]], order[np.searchsorted(starts, position, side="right") - 1]

    def __repr__(self) -> str:
        return f"SparseCholesky(p={len(self.order.array)}, {len(self.rows.array)} numbers)"

    def _identity(self, p: int, batch: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> SparseMatrix:
        if check.count(p, "p") != len(self.order.array):
            raise ValueError(f"{self} was made for p={len(self.order.array)}, got p={p}")
        made = tables(self, device)
        values = torch.zeros(*batch, made.upsets.size, dtype=dtype, device=device)
        values[..., made.upsets.diagonal] = 1.0
        return SparseMatrix(self, values, made)


def both_triangles(i: np.ndarray, j: np.ndarray, p: int) -> csr_array:
    """The symmetric pattern with the entries (i, j) and (j, i)."""
    return csr_array((np.ones(2 * len(i), bool), (np.append(i, j), np.append(j, i))), shape=(p, p))


@dataclass(frozen=True)
class ReadOff:
    """How the entries of a sparse H are read off one product for each colour."""

    seeds: Tensor  # (p, colors), zeros and ones
    position: Tensor  # (entries,): where H_ij stands among the stored values, and where it is read:
    row: Tensor
    product: Tensor

    @classmethod
    def of(cls, structure: SparseCholesky, device: torch.device) -> ReadOff | None:
        entries = structure.hessian_entries()
        if entries is None or structure.hessian is None:
            return None
        (i, j), p, position = entries, len(structure.order.array), structure.hessian.array
        pattern = both_triangles(i, j, p)
        coloring = color(pattern)
        seeds = np.arange(coloring.colors) == coloring.color[:, None]
        indices = [torch.tensor(a, dtype=torch.int64, device=device) for a in (position, *coloring.read(i, j))]
        return cls(torch.tensor(seeds, device=device), *indices)


@dataclass(frozen=True, eq=False)
class Tables:
    """All index tables of a structure on one device, shared by its elements and left out of their pickles."""

    structure: SparseCholesky
    upsets: UpSets
    readoff: ReadOff | None

    def __reduce__(self) -> tuple[Any, ...]:
        return tables, (self.structure, self.upsets.device)


_made: WeakKeyDictionary[SparseCholesky, dict[torch.device, Tables]] = WeakKeyDictionary()


def tables(structure: SparseCholesky, device: torch.device) -> Tables:
    """The tables, made once for as long as the structure lives."""
    known = _made.setdefault(structure, {})
    if device in known:
        return known[device]
    with torch.inference_mode(False), torch.no_grad():
        upsets = UpSets(structure.starts.array, structure.rows.array, structure.order.array, device)
        made = Tables(structure, upsets, ReadOff.of(structure, device))
    if plain(upsets.row):  # not those of a torch.func transform, which die with it
        known[device] = made
    return made


@dataclass(frozen=True, eq=False, repr=False)
class SparseMatrix(Algebra):
    values: Tensor  # (*batch, sum of depths): column after column, see upsets.py
    tables: Tables

    @property
    def upsets(self) -> UpSets:
        return self.tables.upsets

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.values.shape[:-1], self.upsets.p, self.upsets.p)

    def dense(self) -> Tensor:
        B = self.values.new_zeros(self.shape)
        B[..., self.upsets.row, self.upsets.column] = self.values
        return B

    def _shift(self, c: float | Tensor) -> Self:
        diagonal = self.values[..., self.upsets.diagonal]
        return self.map(lambda v: v.index_copy(-1, self.upsets.diagonal, diagonal + beside(c, diagonal)))

    def trace(self) -> Tensor:
        return self.values[..., self.upsets.diagonal].sum(-1)

    def logdet(self) -> Tensor:
        return self.values[..., self.upsets.diagonal].abs().log().sum(-1)

    def _matmul(self, other: Self) -> Self:
        """Column j of A B is A[up, up] B[up, j]; all matrices below are transposed, as the tables are."""
        left, right = self._gatherable(), other._gatherable()
        return self._from_columns(_gather(right, own) @ _gather(left, chain) for chain, own in self.upsets.tables())

    @remembered
    def _inverse(self) -> Self:
        """B^-1: its column j solves B[up, up] x = e_j."""
        one = self.map(torch.zeros_like).shift(1.0)
        left, right = self._gatherable(), one._gatherable()
        return self._from_columns(
            torch.linalg.solve_triangular(_gather(left, chain), _gather(right, own), upper=False, left=False)
            for chain, own in self.upsets.tables()
        )

    def _apply(self, x: Tensor, transpose: bool) -> Tensor:
        to, of = (self.upsets.column, self.upsets.row) if transpose else (self.upsets.row, self.upsets.column)
        step = max(1, CHUNK // max(1, self.values.numel()))
        y = torch.zeros_like(x)
        for start in range(0, x.shape[-1], step):
            few = slice(start, start + step)
            products = self.values.unsqueeze(-1) * x[..., few].index_select(-2, of)
            y[..., few] = y[..., few].index_add(-2, to, products)
        return y

    def _solve(self, x: Tensor, transpose: bool) -> Tensor:
        return self._inverse._apply(x, transpose)

    def _project(self, U: Tensor, V: Tensor) -> Self:
        row, column = self.upsets.row, self.upsets.column
        P = torch.zeros_like(self.values)
        step = max(1, CHUNK // max(1, self.values.numel()))
        for start in range(0, U.shape[-1], step):
            u, v = U[..., start : start + step], V[..., start : start + step]
            P = P + (u.index_select(-2, row) * v.index_select(-2, column)).sum(-1)
            P = P + (v.index_select(-2, row) * u.index_select(-2, column)).sum(-1)
        return self.map(lambda _: P)._halve_diagonal()

    def _pull(self, hvp: Hessian, diagonal: Tensor | None) -> Algebra:
        """With H = T + T^T, T in the algebra: X = Z W^T + W Z^T for W = B^-1 and Z = B^-1 T.

        Column l of Z and W lives on up(l) and adds to X[up(l), up(l)], which the gather table scatters.
        """
        read = self.tables.readoff
        if read is None:
            return super()._pull(hvp, diagonal)  # pyright: ignore[reportReturnType]
        HV = hvp(read.seeds.to(self.dtype).expand(*self.batch, *read.seeds.shape))
        entries = HV[..., read.row, read.product]
        T = self.map(lambda v: torch.zeros_like(v).index_copy(-1, read.position, entries))._halve_diagonal()
        W = self._inverse
        Z = W._matmul(T)
        W, Z = W._gatherable(), Z._gatherable()
        X = torch.zeros_like(W)
        for chain, own in self.upsets.tables():
            ZW = _gather(Z, own).mT @ _gather(W, own)  # (*batch, n, R, R)
            X = X.index_add(-1, chain.flatten().long(), (ZW + ZW.mT).flatten(-3))
        return self.map(lambda _: 2 * X[..., : self.upsets.size])._halve_diagonal()

    def _gatherable(self) -> Tensor:
        """The values with the zero and the one behind them that the tables point at."""
        end = self.values.new_tensor([0.0, 1.0]).expand(*self.values.shape[:-1], 2)
        return torch.cat([self.values, end], -1)

    def _from_columns(self, blocks: Iterator[Tensor]) -> Self:
        laid = torch.cat([self.values[..., :0], *(block.flatten(-3) for block in blocks)], -1)
        return replace(self, values=laid.index_select(-1, self.upsets.entries))

    def _halve_diagonal(self) -> Self:
        half = self.values[..., self.upsets.diagonal] / 2
        return self.map(lambda v: v.index_copy(-1, self.upsets.diagonal, half))


def _gather(values: Tensor, table: Tensor) -> Tensor:
    """(*batch, numbers) at (n, rows, columns) places."""
    return values.index_select(-1, table.flatten()).unflatten(-1, table.shape)
