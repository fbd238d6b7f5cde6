"""Conjugate gradients on H d = -g with S as the preconditioner: nearly Newton's step where S cannot hold H."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from natgrad.minimization.objective import Point


def truncated_cg(point: Point, solve: Callable[[Tensor], Tensor], g: Tensor, steps: int, forcing: float) -> Tensor:
    """d with || H d + g || in the norm of S^-1 below `forcing` times that of g, or the last d of positive curvature.

    Every such d is a descent direction (Steihaug 1983); the first of all is -S^-1 g.
    """
    r, z = g, solve(g)
    d, q = torch.zeros_like(g), -z
    rz = first = r @ z
    for _ in range(steps):
        Hq = point.products(q.unsqueeze(-1)).squeeze(-1)
        curvature = q @ Hq
        if not curvature > 0:
            break
        a = rz / curvature
        d, r = d + a * q, r + a * Hq
        z = solve(r)
        before, rz = rz, r @ z
        if not rz > forcing**2 * first:
            break
        q = rz / before * q - z
    return d if d.any() else q
