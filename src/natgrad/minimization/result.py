"""What `minimize` returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from scipy.optimize import OptimizeResult
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from natgrad.groups.base import Element
from natgrad.minimization.curvature import Curvature


class MinimizeResult(OptimizeResult):
    """SciPy's OptimizeResult with `nhvp`, the number of Hessian products, and

    precision: the final S = B B^T, as its factor B in the structure's group. It is made when asked for: the pattern of
    a sparse Cholesky group can be much larger than the Hessian's.
    """

    def __init__(self, curvature: Curvature, **fields: Any):
        super().__init__(**fields)
        self.__dict__["_curvature"] = curvature  # not an entry of the dictionary

    @property
    def precision(self) -> Element:
        return self["precision"]

    def __getitem__(self, key: str) -> Any:
        return self.__dict__["_curvature"].factor if key == "precision" else super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        return key == "precision" or super().__contains__(key)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), "precision"]


class Covariance(LinearOperator):
    """S^-1, the estimate of the inverse Hessian, on flat NumPy vectors."""

    def __init__(self, curvature: Curvature, like: Tensor):
        self.curvature, self.like = curvature, like.new_empty(0)
        super().__init__(np.dtype(str(like.dtype).removeprefix("torch.")), (len(like), len(like)))

    def _matvec(self, x: np.ndarray) -> np.ndarray:
        y = self.curvature.covariance(torch.as_tensor(np.ascontiguousarray(x).reshape(-1)).to(self.like))
        return y.cpu().numpy()

    def _adjoint(self) -> Covariance:
        return self
