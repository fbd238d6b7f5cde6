"""A Hessian with a known sparsity, read off one product for each colour."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, issparse
from torch import Tensor

from natgrad.groups.coloring import color
from natgrad.minimization.factor import lower_pairs
from natgrad.minimization.objective import Point

SUSPECTS = 20


class Compressed:
    """The entries H_ij, i >= j, of a symmetric pattern, in the order of `lower_pairs`."""

    def __init__(self, pattern: csr_array):
        self.pattern = pattern
        self.i, self.j = lower_pairs(pattern)
        self.p = pattern.shape[0]
        self.on_diagonal = np.flatnonzero(self.i == self.j)
        self.on_diagonal = self.on_diagonal[np.argsort(self.i[self.on_diagonal])]

    @cached_property
    def _coloring(self) -> tuple[Tensor, Tensor]:
        """The 0-1 seeds (p, colors), and where the entries stand among the products, laid out flat."""
        coloring = color(self.pattern)
        row, product = coloring.read(self.i, self.j)
        seeds = torch.zeros(self.p, coloring.colors, dtype=torch.float64)
        seeds[torch.arange(self.p), torch.as_tensor(coloring.color)] = 1.0
        return seeds, torch.as_tensor(row * coloring.colors + product)

    @property
    def colors(self) -> int:
        return self._coloring[0].shape[1]

    def hessian(self, point: Point) -> Tensor:
        if point.hessian is None:
            if point.objective.hess is not None and issparse(given := point.matrix_given()):
                point.hessian = torch.as_tensor(self._read(given)).to(point.x)
            else:
                point.hessian = self.entries(point.products, point.x)
        return point.hessian

    def entries(self, product: Callable[[Tensor], Tensor], like: Tensor) -> Tensor:
        """Those of the matrix with this pattern that multiplies blocks of vectors."""
        seeds, where = self._coloring
        return product(seeds.to(like)).reshape(-1)[where.to(like.device)]

    def _read(self, H: Any) -> np.ndarray:
        """The entries of the user's own sparse matrix, which may not hold others."""
        H = csr_array(H)
        outside = _outside(H, self.pattern)
        if outside is not None:
            raise ValueError(
                f"hess returned a nonzero at row {outside[0]}, column {outside[1]}, which hess_sparsity (or hess at "
                "x0) does not hold; pass a hess_sparsity with every entry that can be nonzero"
            )
        return np.asarray(H[self.i, self.j]).reshape(-1)

    def product(self, entries: Tensor, v: Tensor) -> Tensor:
        """H v from the entries."""
        i, j = torch.as_tensor(self.i, device=v.device), torch.as_tensor(self.j, device=v.device)
        off = torch.where(i == j, 0.0, entries)
        return torch.zeros_like(v).index_add(0, i, entries * v[j]).index_add(0, j, off * v[i])

    def check(self, point: Point, seed: int) -> None:
        """A random product tells whether the pattern misses an entry of H; products with e_i tell which."""
        entries = self.hessian(point)
        random = torch.Generator().manual_seed(seed)
        v = (torch.rand(self.p, generator=random, dtype=torch.float64) + 0.5).to(point.x)
        expected = point.products(v.unsqueeze(-1)).squeeze(-1)
        gap = (self.product(entries, v) - expected).abs()
        scale = self.product(entries.abs(), v) + expected.abs()
        eps = torch.finfo(v.dtype).eps
        suspects = (gap > eps ** (2 / 3) * (scale + scale.mean())).nonzero().flatten().tolist()
        for row in suspects[:SUSPECTS]:  # a missing entry spoils others of its colour: not every suspect misses one
            unit = torch.zeros_like(v)
            unit[row] = 1.0
            column = point.products(unit.unsqueeze(-1)).squeeze(-1).abs()
            largest = float(column.max())
            column[torch.as_tensor(self.pattern[[row]].indices.astype(np.int64), device=v.device)] = 0.0
            if float(column.max()) > eps**0.4 * largest:
                raise ValueError(
                    f"the sparsity of the Hessian misses the entry in row {row}, column {int(column.argmax())}, which "
                    f"is {float(column.max()):.3g} in absolute value; add it to hess_sparsity, or leave that out"
                )
        if suspects:
            warnings.warn(
                "Hessian products are inexact, or not symmetric: those of the entries that were read off differ in "
                f"rows {suspects[:SUSPECTS]}, though the sparsity misses nothing there",
                RuntimeWarning,
                stacklevel=3,
            )


def _outside(H: csr_array, pattern: csr_array) -> tuple[int, int] | None:
    lost = (abs(H).astype(bool) > pattern).tocoo()
    return (int(lost.row[0]), int(lost.col[0])) if lost.nnz else None
