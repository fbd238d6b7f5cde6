"""Minimisation: `minimize` and what it is made of."""

from natgrad.minimization.minimize import minimize, scipy_method

__all__ = ["minimize", "scipy_method"]
