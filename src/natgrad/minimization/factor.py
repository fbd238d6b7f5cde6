"""Cholesky factors of sparse matrices with one pattern: ordered once, factorised in every iteration.

Narrow bands go to LAPACK, everything else to SuperLU in a nested-dissection order. Both come with SciPy.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np
from scipy.linalg import get_lapack_funcs
from scipy.sparse import coo_array, csc_array, csr_array, tril
from scipy.sparse.csgraph import reverse_cuthill_mckee

from natgrad.groups.ordering import nested_dissection
from natgrad.groups.superlu import symmetric_lu

BAND = 48  # up to this half bandwidth the band is faster than SuperLU's bookkeeping


class Solver(Protocol):
    def __call__(self, x: np.ndarray) -> np.ndarray: ...


class Ordered(Protocol):
    """A pattern made ready; its entries are the pairs (i, j), i >= j, in the order of `lower_pairs`."""

    def cholesky(self, entries: np.ndarray) -> Solver | None: ...


def lower_pairs(pattern: csr_array) -> tuple[np.ndarray, np.ndarray]:
    """i >= j of a symmetric pattern, each pair once."""
    lower = coo_array(tril(pattern))
    return lower.row.astype(np.int64), lower.col.astype(np.int64)


def ordered(pattern: csr_array) -> Ordered:
    i, j = lower_pairs(pattern)
    p = pattern.shape[0]
    natural = np.arange(p)
    narrowest = min((natural, reverse_cuthill_mckee(pattern, symmetric_mode=True)), key=lambda o: _width(o, i, j))
    if _width(narrowest, i, j) <= BAND:
        return Band(narrowest, i, j)
    return Supernodes(nested_dissection(pattern), i, j)


def _width(order: np.ndarray, i: np.ndarray, j: np.ndarray) -> int:
    place = np.argsort(order)
    return int(np.abs(place[i] - place[j]).max(initial=0))


class Band:
    """Half bandwidth b: p b^2 operations, (b + 1) p numbers."""

    def __init__(self, order: np.ndarray, i: np.ndarray, j: np.ndarray):
        self.order = None if np.array_equal(order, np.arange(len(order))) else order
        place = np.argsort(order)
        low, high = np.minimum(place[i], place[j]), np.maximum(place[i], place[j])
        self.width, p = int((high - low).max(initial=0)), len(order)
        self.position = low * (self.width + 1) + high - low  # in Fortran order, as LAPACK wants the band
        self.numbers = p * (self.width + 1)

    def cholesky(self, entries: np.ndarray) -> Solver | None:
        flat = np.zeros(self.numbers, dtype=entries.dtype)
        flat[self.position] = entries
        band = flat.reshape(self.width + 1, -1, order="F")
        pbtrf, pbtrs = get_lapack_funcs(("pbtrf", "pbtrs"), (band,))
        factor, info = pbtrf(band, lower=1, overwrite_ab=1)
        if info != 0:
            return None
        order = self.order
        if order is None:
            return lambda x: pbtrs(factor, x, lower=1)[0]

        def solve(x: np.ndarray) -> np.ndarray:
            y = np.empty_like(x)
            y[order] = pbtrs(factor, x[order], lower=1)[0]
            return y

        return solve


class Supernodes:
    """General patterns, by SuperLU without pivoting: L U with U = D L^T, positive definite if D is."""

    def __init__(self, order: np.ndarray, i: np.ndarray, j: np.ndarray):
        self.order, p = order, len(order)
        place = np.argsort(order)
        off = np.flatnonzero(i != j)
        rows, columns = np.append(place[i], place[j[off]]), np.append(place[j], place[i[off]])
        number = np.append(np.arange(len(i)), off)
        form = csc_array((number + 1, (rows, columns)), shape=(p, p))  # + 1: a stored zero might be dropped
        self.pointers, self.rows, self.number, self.p = form.indptr, form.indices, form.data - 1, p

    def cholesky(self, entries: np.ndarray) -> Solver | None:
        lu = symmetric_lu(csc_array((entries[self.number], self.rows, self.pointers), shape=(self.p, self.p)))
        if lu is None:
            return None
        order = self.order

        def solve(x: np.ndarray) -> np.ndarray:
            y = np.empty_like(x)
            y[order] = lu.solve(x[order])
            return y

        return solve
