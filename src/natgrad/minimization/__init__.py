"""Minimisation: `minimize` and what it is made of."""

from natgrad.minimization.minimize import minimize, scipy_method
from natgrad.minimization.sparsity import hessian_sparsity

__all__ = ["hessian_sparsity", "minimize", "scipy_method"]
