"""Matrix groups: descriptions (Lower(2), Dense(), ...) and their elements."""

from natgrad.groups.base import Algebra, Element, Structure, Tangent
from natgrad.groups.block import Lower, Upper, covariance_as_low_rank, precision_as_low_rank
from natgrad.groups.blockdiagonal import BlockDiagonal, Dense
from natgrad.groups.circulant import Circulant
from natgrad.groups.conjugate import Conjugate
from natgrad.groups.diagonal import Diagonal
from natgrad.groups.hessian import Hessian
from natgrad.groups.kronecker import Kronecker
from natgrad.groups.sparse import SparseCholesky
from natgrad.groups.toeplitz import Toeplitz

__all__ = [
    "Algebra",
    "BlockDiagonal",
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
    "precision_as_low_rank",
]
