"""Which structure S gets when the user leaves the choice to us, and how it follows the Hessian.

structure="auto" takes, in this order,

    Dense             up to 256 variables if no sparsity is given, or if hess returns dense matrices
    SparseCholesky    if the sparsity of the Hessian is given (hess_sparsity, or a sparse hess), or found by
                      `hessian_sparsity` in a torch function
    Dense             up to 1,000 variables of a torch function
    Lower(10)         else, as the preconditioner of conjugate gradients
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from scipy.sparse import csr_array, issparse
from torch import Tensor

from natgrad.groups import Dense, Kronecker, Lower, SparseCholesky
from natgrad.groups.base import Element, Structure
from natgrad.groups.patterns import sparsity
from natgrad.groups.sparse import both_triangles
from natgrad.minimization.compressed import Compressed
from natgrad.minimization.curvature import Boxed, Curvature, Recursion
from natgrad.minimization.diagonal import Diagonals
from natgrad.minimization.objective import Objective, Point
from natgrad.minimization.symmetric import DenseSymmetric, SparseSymmetric, Symmetric

SMALL, MEDIUM = 256, 1_000
LEADING = 10
CG_STEPS = 50


@dataclass(frozen=True)
class Plan:
    structure: Structure | None  # None: SparseCholesky of the pattern, not made before it is needed
    compressed: Compressed | None  # the sparsity of the Hessian, where it is known
    proved: bool  # that sparsity, by us, and not asserted by the user
    cg_steps: int

    def __str__(self) -> str:
        text = str(self.structure) if self.structure is not None else "SparseCholesky"
        if self.compressed is not None:
            text += f", {len(self.compressed.i):,} entries of the Hessian from {self.compressed.colors} products"
        return text + (f", up to {self.cg_steps} steps of conjugate gradients" if self.cg_steps else "")

    def space(self, like: Tensor) -> Symmetric | None:
        """The matrices that hold the Hessian, if this structure's S can be any of them."""
        if isinstance(self.structure, Dense):
            return DenseSymmetric(like)
        if self.compressed is not None and (self.structure is None or isinstance(self.structure, SparseCholesky)):
            return SparseSymmetric(self.compressed, like, self.structure)
        return None


def plan(
    structure: Structure | str,
    objective: Objective,
    point: Point,
    hess_sparsity: Any,
    noisy: bool,
    cg_steps: int | None,
) -> Plan:
    p = objective.layout.p
    pattern, proved = _known_pattern(structure, objective, point, hess_sparsity), False
    if isinstance(structure, Structure):
        return Plan(structure, _compressed(pattern), proved, cg_steps or 0)
    if structure != "auto":
        raise ValueError(f'structure must be "auto" or a structure such as ng.Lower(2), got {structure!r}')
    dense_hess = objective.hess is not None and isinstance(point.matrix_given(), Tensor)
    own_products = objective.by_torch and objective.hess is None and objective.hessp is None
    if pattern is None and own_products and p > SMALL and not noisy:
        from natgrad.minimization.sparsity import NotSparse, hessian_sparsity

        try:
            pattern, proved = hessian_sparsity(objective.fun, objective.layout.user(point.x), args=objective.args), True
        except NotSparse:
            pattern = None
    if pattern is not None:
        return Plan(None, _compressed(pattern), proved, cg_steps or 0)
    if dense_hess or p <= SMALL or (own_products and p <= MEDIUM):
        return Plan(Dense(), None, proved, cg_steps or 0)
    return Plan(Lower(LEADING), None, proved, CG_STEPS if cg_steps is None and not noisy else cg_steps or 0)


def _known_pattern(structure: Any, objective: Objective, point: Point, hess_sparsity: Any) -> csr_array | None:
    p = objective.layout.p
    if hess_sparsity is not None:
        pattern = sparsity(hess_sparsity, "hess_sparsity")
        if pattern.shape != (p, p):
            raise ValueError(f"hess_sparsity must be {p} x {p} for {p} variables, got {pattern.shape}")
        return pattern
    if isinstance(structure, SparseCholesky) and (entries := structure.hessian_entries()) is not None:
        return both_triangles(*entries, len(structure.order.array))
    if objective.hess is not None and issparse(H := point.matrix_given()):
        return sparsity(abs(H) + abs(H).T, "hess")
    return None


def _compressed(pattern: csr_array | None) -> Compressed | None:
    return None if pattern is None else Compressed(pattern)


def start(plan: Plan, objective: Objective, point: Point, given: Element | None, boxed: bool, seed: int) -> Curvature:
    """S_0: max |H_ii| I, or the user's own."""
    space = None if boxed else plan.space(point.x)
    if space is not None:
        return Recursion.scaled_identity(space, point) if given is None else Recursion.of(space, given)
    structure = (
        SparseCholesky(plan.compressed.pattern) if plan.structure is None and plan.compressed else plan.structure
    )
    assert structure is not None
    diagonals = Diagonals(plan.compressed, seed)
    if given is not None:
        return Boxed(given, diagonals)
    size: Any = objective.layout.matrix if isinstance(structure, Kronecker) else objective.layout.p
    if size is None:
        raise ValueError(f"{structure} needs x0 as one matrix, m x n, got shapes {objective.layout.shapes}")
    one = structure.identity(size, dtype=point.x.dtype, device=point.x.device)
    return Boxed.scaled_identity(one, diagonals, point)
