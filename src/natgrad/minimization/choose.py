"""Which structure S gets when the user leaves the choice to us, and where it starts.

structure="auto" takes, in this order,

    Dense             if hess returns dense matrices, or p <= 32
    SparseCholesky    if the sparsity of the Hessian is given (hess_sparsity, or a sparse hess), or a torch function
                      for which `hessian_sparsity` finds no more than a quarter of the entries
    Dense             for torch functions with p <= 100
    Lower(2)          if hess_diag is given, as the preconditioner of conjugate gradients
    a multiple of I   else, with conjugate gradients: an estimated diagonal does them more harm than good

The other modes have Lower(2) in place of the last two; and in stochastic mode, where the path through a function may
change with the mini-batch, no sparsity is looked for. docs/notes/minimize.md has the measurements behind it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, issparse
from torch import Tensor

from natgrad.groups import Dense, Diagonal, Kronecker, Lower, SparseCholesky, Upper, check
from natgrad.groups.base import Element, Structure
from natgrad.groups.patterns import sparsity
from natgrad.groups.sparse import both_triangles
from natgrad.minimization.compressed import Compressed
from natgrad.minimization.curvature import Boxed, Curvature, Isotropic, Recursion
from natgrad.minimization.diagonal import Diagonals
from natgrad.minimization.objective import Objective, Point
from natgrad.minimization.sparsity import hessian_sparsity
from natgrad.minimization.symmetric import DenseSymmetric, SparseSymmetric, Symmetric

SMALL, MEDIUM = 32, 100
DENSITY = 0.25  # of a Hessian that is no longer sparse
LEADING = 2
CG_STEPS = 50
NEARBY = 1e-6  # relative change of x0


@dataclass(frozen=True)
class Plan:
    structure: Structure | None  # None: s I; or SparseCholesky of the pattern, which is not made before it is needed
    compressed: Compressed | None  # the sparsity of the Hessian, where it is known
    proved: bool = False  # that sparsity, by us, and not asserted by the user
    cg_steps: int = 0

    def __str__(self) -> str:
        implied = "a multiple of I" if self.compressed is None else "SparseCholesky"
        text = implied if self.structure is None else str(self.structure)
        if self.compressed is not None:
            text += f", {len(self.compressed.i):,} entries of the Hessian from {self.compressed.colors} products"
        return text + (f", up to {self.cg_steps} steps of conjugate gradients" if self.cg_steps else "")


def plan(
    structure: Structure | str,
    objective: Objective,
    point: Point,
    hess_sparsity: Any,
    mode: str,
    cg_steps: int | None,
) -> Plan:
    given = _given_pattern(structure, objective, point, hess_sparsity)
    p, own_hess = objective.layout.p, objective.hess is not None
    own_products = objective.by_torch and not own_hess and objective.hessp is None
    look = given is None and own_products and p > SMALL and mode != "stochastic"
    if isinstance(structure, Structure):
        wants_diagonal = isinstance(structure, (Lower, Upper, Diagonal)) and objective.hess_diag is None
        found = _found_pattern(objective, point) if look and wants_diagonal else None
        return Plan(structure, given or found, proved=given is None, cg_steps=cg_steps or 0)
    if structure != "auto":
        raise ValueError(f'structure must be "auto" or a structure such as ng.Lower(2), got {structure!r}')
    if given is None and (p <= SMALL or (own_hess and isinstance(point.matrix_given(), Tensor))):
        return Plan(Dense(), None, cg_steps=cg_steps or 0)
    found = _found_pattern(objective, point) if look else None
    if given is not None or found is not None:
        return Plan(None, given or found, proved=given is None, cg_steps=cg_steps or 0)
    if own_products and p <= MEDIUM:
        return Plan(Dense(), None, cg_steps=cg_steps or 0)
    if mode != "linesearch":  # conjugate gradients are no part of these
        return Plan(Lower(LEADING), None)
    leading = None if objective.hess_diag is None else Lower(LEADING)
    return Plan(leading, None, cg_steps=CG_STEPS if cg_steps is None else cg_steps)


def _given_pattern(structure: Any, objective: Objective, point: Point, hess_sparsity: Any) -> Compressed | None:
    p = objective.layout.p
    if hess_sparsity is not None:
        pattern = sparsity(hess_sparsity, "hess_sparsity")
        if pattern.shape != (p, p):
            raise ValueError(f"hess_sparsity must be {p} x {p} for {p} variables, got {pattern.shape}")
        return Compressed(pattern)
    if isinstance(structure, SparseCholesky) and (entries := structure.hessian_entries()) is not None:
        if len(structure.order.array) != p:
            raise ValueError(f"{structure} was made for {len(structure.order.array)} variables, x0 has {p}")
        return Compressed(both_triangles(*entries, p))
    if objective.hess is not None and issparse(H := point.matrix_given()):
        random = np.random.default_rng(0).uniform(-NEARBY, NEARBY, p)
        near = objective.at(point.x * (1 + torch.as_tensor(random).to(point.x)) + torch.as_tensor(random).to(point.x))
        stored = csr_array(H) + csr_array(near.matrix_given())  # entries that happen to be zero at x0 show nearby
        return Compressed(sparsity(abs(stored) + abs(stored).T, "hess"))
    return None


def _found_pattern(objective: Objective, point: Point) -> Compressed | None:
    p = objective.layout.p
    objective.counts.nfev += 1
    most = min(max(4_000_000, 60 * p), int(DENSITY * p * p))
    try:
        pattern: csr_array = hessian_sparsity(
            objective.fun, objective.layout.user(point.x), args=objective.args, max_entries=most
        )
    except Exception:  # fun has run before: it is the tracing that failed, and there are other ways
        return None
    return Compressed(pattern)


def start(chosen: Plan, objective: Objective, point: Point, given: Element | None, boxed: bool, seed: int) -> Curvature:
    """S_0 = max |H_ii| I, or the user's own. `boxed` asks for the update of B in its group, whatever S can hold."""
    if given is not None:
        _check_element(given, chosen.structure, point.x)
    structure, compressed = chosen.structure, chosen.compressed
    if structure is None and compressed is None:
        return Isotropic(1.0, point.x)
    space = None if boxed else _space(structure, compressed, point.x)
    if space is not None:
        return Recursion.scaled_identity(space, point) if given is None else Recursion.of(space, given)
    diagonals = Diagonals(compressed, seed)
    if given is not None:
        return Boxed(given, diagonals)
    if structure is None:
        assert compressed is not None
        structure = SparseCholesky(compressed.pattern)
    size: Any = objective.layout.matrix if isinstance(structure, Kronecker) else objective.layout.p
    if size is None:
        raise ValueError(f"{structure} needs x0 as one matrix, m x n, got shapes {objective.layout.shapes}")
    one = structure.identity(size, dtype=point.x.dtype, device=point.x.device)
    return Boxed.scaled_identity(one, diagonals, point)


def _check_element(given: Any, structure: Structure | None, like: Tensor) -> None:
    if not isinstance(given, Element):
        raise ValueError(f"precision must be an element such as ng.Lower(2).identity(p), got {type(given).__name__}")
    p = len(like)
    if given.shape != (p, p) or given.dtype != like.dtype or given.device != like.device:
        raise ValueError(
            f"precision must be {p} x {p}, {like.dtype}, on {like.device}, as x0 is; got {check.shape(given.shape)}, "
            f"{given.dtype}, on {given.device}"
        )
    if given.structure != structure:
        raise ValueError(f"precision must be an element of structure={structure}, got one of {given.structure}")


def _space(structure: Structure | None, compressed: Compressed | None, like: Tensor) -> Symmetric | None:
    """The matrices that hold the Hessian, if this structure's S can be any of them."""
    if isinstance(structure, Dense):
        return DenseSymmetric(like)
    if compressed is not None and (structure is None or isinstance(structure, SparseCholesky)):
        return SparseSymmetric(compressed, like, structure)
    return None
