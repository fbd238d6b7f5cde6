"""Structured second-order methods by natural-gradient descent."""

from natgrad.groups import (
    BlockDiagonal,
    Circulant,
    Conjugate,
    Dense,
    Diagonal,
    Element,
    Hessian,
    Kronecker,
    Lower,
    SparseCholesky,
    Structure,
    Tangent,
    Toeplitz,
    Upper,
    covariance_as_low_rank,
    precision_as_low_rank,
)
from natgrad.minimization import hessian_sparsity, minimize, scipy_method
from natgrad.optimization import NGD, Blocks
from natgrad.step import curvature_first_step, paper_step

__version__ = "0.1.0"

__all__ = [
    "NGD",
    "BlockDiagonal",
    "Blocks",
    "Circulant",
    "Conjugate",
    "Dense",
    "Diagonal",
    "Element",
    "Hessian",
    "Kronecker",
    "Lower",
    "SparseCholesky",
    "Structure",
    "Tangent",
    "Toeplitz",
    "Upper",
    "covariance_as_low_rank",
    "curvature_first_step",
    "hessian_sparsity",
    "minimize",
    "paper_step",
    "precision_as_low_rank",
    "scipy_method",
]
