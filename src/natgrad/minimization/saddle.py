"""A stationary point with an indefinite Hessian is no minimum: a way down from it."""

from __future__ import annotations

import numpy as np
import torch
from scipy.sparse.linalg import ArpackNoConvergence, LinearOperator, eigsh
from torch import Tensor

from natgrad.minimization.objective import Point
from natgrad.minimization.run import bounded

DENSE = 256
LANCZOS = 50  # restarts


def way_down(point: Point) -> Point | None:
    """A lower point along directions of negative curvature, or None."""
    found = downhill(point)
    return None if found is None else lower_along(point, *found)


def lower_along(point: Point, v: Tensor, curvature: float) -> Point | None:
    """A point along v or -v that is lower by about what the curvature promises."""
    a, eps = 1.0 + float(point.x.abs().max()), torch.finfo(v.dtype).eps
    while a > eps:
        enough = max(-0.05 * curvature * a * a, 4 * eps * abs(point.value))
        for side in (v, -v):
            trial = bounded(point.objective.at(point.x + a * side))
            if trial.value < point.value - enough and torch.isfinite(trial.gradient()).all():
                return trial
        a /= 4
    return None


def downhill(point: Point) -> tuple[Tensor, float] | None:
    """A unit vector v with v^T H v < 0 beyond rounding errors, and that number."""
    random = np.random.default_rng(0)
    p = len(point.x)
    rounding = torch.finfo(point.x.dtype).eps ** 0.5
    if p <= DENSE:  # a mixture of all such directions: many coordinates may sit on saddles of their own
        H = point.matrix()
        if not torch.isfinite(H).all():
            return None
        values, vectors = torch.linalg.eigh(H)
        negative = values < -rounding * values.abs().max()
        if not negative.any():
            return None
        weights = torch.as_tensor(random.standard_normal(p)).to(point.x)[negative]
        weights = weights / weights.norm()
        return vectors[:, negative] @ weights, float(values[negative] @ weights**2)

    def product(v: np.ndarray) -> np.ndarray:
        return point.products(torch.as_tensor(v).to(point.x).reshape(-1, 1)).squeeze(-1).cpu().numpy()

    v0 = random.standard_normal(p)
    scale = float(np.linalg.norm(product(v0)) / np.linalg.norm(v0))
    if not np.isfinite(scale):
        return None
    try:
        operator = LinearOperator((p, p), matvec=product, dtype=np.float64)
        values, vectors = eigsh(operator, k=1, which="SA", v0=v0, tol=1e-2, maxiter=LANCZOS)
    except ArpackNoConvergence as unfinished:
        values, vectors = unfinished.eigenvalues, unfinished.eigenvectors
    if not len(values) or values[0] >= -rounding * scale:
        return None
    return torch.as_tensor(vectors[:, 0]).to(point.x), float(values[0])
