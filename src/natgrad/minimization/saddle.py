"""A stationary point with an indefinite Hessian is no minimum: a way down from it."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from natgrad.minimization.objective import Point

DENSE = 256
LANCZOS = 50  # restarts


def way_down(point: Point) -> Point | None:
    """A lower point along the direction of the most negative curvature, or None where none is found."""
    eigenvalue, v = lowest_eigenpair(point)
    if not eigenvalue < 0:
        return None
    a = 1.0 + float(point.x.abs().max())
    while a > torch.finfo(v.dtype).eps:
        for side in (v, -v):
            trial = point.objective.at(point.x + a * side)
            if trial.value <= point.value + 0.1 * eigenvalue / 2 * a * a and torch.isfinite(trial.gradient()).all():
                return trial
        a /= 4
    return None


def lowest_eigenpair(point: Point) -> tuple[float, Tensor]:
    p = len(point.x)
    if p <= DENSE:
        values, vectors = torch.linalg.eigh(point.matrix())
        return float(values[0]), vectors[:, 0]

    def product(v: np.ndarray) -> np.ndarray:
        return point.products(torch.as_tensor(v).to(point.x).reshape(-1, 1)).squeeze(-1).cpu().numpy()

    H = LinearOperator((p, p), matvec=product, dtype=np.float64)
    v0 = np.random.default_rng(0).standard_normal(p)
    try:
        values, vectors = eigsh(H, k=1, which="SA", v0=v0, tol=1e-2, maxiter=LANCZOS)
    except ArpackNoConvergence as unfinished:
        values, vectors = unfinished.eigenvalues, unfinished.eigenvectors
        if not len(values):
            return 0.0, torch.as_tensor(v0).to(point.x)
    return float(values[0]), torch.as_tensor(vectors[:, 0]).to(point.x)
