"""The dense oracle: every law is checked against plain matrices."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from natgrad.groups import Element, Tangent
from natgrad.groups.base import symmetric
from tests.structures import Case


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def vectors(case: Case, batch: tuple[int, ...], r: int | None, dtype: torch.dtype, seed: int) -> Tensor:
    shape = (*batch, case.p) if r is None else (*batch, case.p, r)
    return torch.randn(shape, dtype=torch.float64, generator=generator(seed)).to(dtype)


def identity(case: Case, batch: tuple[int, ...] = (), dtype: torch.dtype = torch.float64) -> Element:
    return case.structure.identity(case.size, dtype=dtype, batch=batch)


def tangent(case: Case, batch: tuple[int, ...], dtype: torch.dtype, seed: int, size: float = 0.5) -> Tangent:
    """A random tangent of about the given norm."""
    U, V = (vectors(case, batch, 3, dtype, 1000 * seed + i) for i in range(2))
    M = identity(case, batch, dtype).project(U, V)
    return M * (size / max(1.0, float(M.dense().norm()) / math.sqrt(max(1, math.prod(batch)))))


def element(case: Case, batch: tuple[int, ...] = (), dtype: torch.dtype = torch.float64, seed: int = 0) -> Element:
    """A random element, moderately conditioned, no more symmetric than its group makes it."""
    B = identity(case, batch, dtype)
    for i in range(3):
        B = B.retract(tangent(case, batch, dtype, 10 * seed + i))
    return B


def hessian(case: Case, batch: tuple[int, ...] = (), dtype: torch.dtype = torch.float64, seed: int = 0) -> Tensor:
    """A random symmetric matrix, indefinite, with the sparsity that the structure assumes, if any."""
    H = symmetric(torch.randn(*batch, case.p, case.p, dtype=torch.float64, generator=generator(seed)))
    return (H if case.hessian is None else H * case.hessian).to(dtype)


def coordinates(case: Case, M: Tensor) -> Tensor:
    """The smallest coefficients of M in the basis, by least squares, and with them the nearest matrix of its span."""
    rows = case.basis.flatten(1).mT
    flat = M.double().flatten(-2).unsqueeze(-1)
    return (rows @ (torch.linalg.pinv(rows) @ flat)).squeeze(-1).unflatten(-1, (case.p, case.p))


def projection(case: Case, X: Tensor) -> Tensor:
    """argmin over M in the span of the basis of || sym(M) - X ||_F, the smallest such M."""
    # the smallest M, not the smallest coefficients: take coefficients of an orthonormal basis
    Q = _orthonormal(case.basis.flatten(1)).unflatten(-1, (case.p, case.p))
    rows = symmetric(Q).flatten(1).mT
    c = torch.linalg.pinv(rows, rtol=1e-10) @ X.double().flatten(-2).unsqueeze(-1)
    return torch.einsum("...d,dij->...ij", c.squeeze(-1), Q)


def _orthonormal(rows: Tensor) -> Tensor:
    if 0 in rows.shape:
        return rows[:0]
    _, s, Vh = torch.linalg.svd(rows, full_matrices=False)
    return Vh[s > 1e-10 * s.max()]


def close(actual: Tensor, expected: Tensor, dtype: torch.dtype = torch.float64) -> None:
    tolerance = 1e-9 if dtype == torch.float64 else 2e-3
    scale = max(1.0, float(expected.abs().max())) if expected.numel() else 1.0
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=tolerance * scale)
