"""diag(H), which the block groups need: exact wherever it can be had, an estimate as the last resort."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from scipy.sparse import issparse
from torch import Tensor

from natgrad.minimization.compressed import Compressed
from natgrad.minimization.objective import Point

EXACT = 512  # up to so many variables the p products of an exact pull cost little more than a few
PROBES = 8


class Diagonals:
    """The source of diag(H) for one run: diag(H) at a point, (p,), or None where p products give the whole pull."""

    def __init__(self, compressed: Compressed | None, seed: int):
        self.compressed, self.generator = compressed, torch.Generator().manual_seed(seed)
        self.warned = False

    def __call__(self, point: Point) -> Tensor | None:
        objective = point.objective
        if objective.hess_diag is not None:
            y = objective.hess_diag(objective.give(point.x), *objective.args)
            return objective.layout.vector(y, "hess_diag")
        if self.compressed is not None:
            return self.compressed.hessian(point)[torch.as_tensor(self.compressed.on_diagonal)]
        if objective.hess is not None and (isinstance(H := point.matrix_given(), Tensor) or issparse(H)):
            diagonal: Any = H.diagonal()
            return torch.as_tensor(diagonal).to(point.x)
        return None if len(point.x) <= EXACT else self._estimate(point)

    def _estimate(self, point: Point) -> Tensor:
        """Hutchinson's estimate, the mean of z * H z over random signs z."""
        if not self.warned:
            warnings.warn(
                f"diag(H) is estimated from {PROBES} random Hessian products in each iteration, with large errors; "
                "pass hess_diag= or hess_sparsity= for an exact one",
                RuntimeWarning,
                stacklevel=2,
            )
            self.warned = True
        z = torch.randint(0, 2, (len(point.x), PROBES), generator=self.generator).to(point.x) * 2 - 1
        return (z * point.products(z)).mean(-1)
