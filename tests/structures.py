"""The one list of structures: a new structure gets one entry here, and with it all the laws of test_laws.py.

An entry draws descriptions with sizes, and spans their tangents by dense matrices written down without the package.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st
from torch import Tensor

import natgrad as ng
from natgrad.groups.base import Size, Structure


@dataclass(frozen=True)
class Case:
    """One structure of one size, with what the dense oracle needs to know of it."""

    structure: Structure
    size: Size  # as identity() takes it
    p: int
    basis: Tensor = field(repr=False)  # (d, p, p): spans the algebra; for Kronecker the tangents
    products: int  # Hessian products that pull needs when the diagonal is known, at most
    hessian: Tensor | None = field(default=None, repr=False)  # (p, p) bool: where H may be nonzero, if that matters


def units(mask: Tensor) -> Tensor:
    """The matrices with a single one at each place of a mask."""
    p = len(mask)
    places = mask.nonzero()
    basis = torch.zeros(len(places), p, p, dtype=torch.float64)
    basis[torch.arange(len(places)), places[:, 0], places[:, 1]] = 1.0
    return basis


def border(p: int, first: int, last: int) -> Tensor:
    """Lower(first, last): dense first columns, dense last rows, a diagonal."""
    mask = torch.eye(p, dtype=torch.bool)
    mask[:, :first] = True
    mask[p - last :, :] = True
    return mask


def shifts(p: int, lags: range, wrap: bool) -> Tensor:
    """The matrices with ones where i - j is one of the lags."""
    i = torch.arange(p)
    gap = i[:, None] - i
    return torch.stack([(gap % p == lag) if wrap else (gap == lag) for lag in lags]).double()


def random_matrix(draw: st.DrawFn, p: int) -> Tensor:
    return torch.randn(p, p, dtype=torch.float64, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))


def sizes(least: int = 0) -> st.SearchStrategy[int]:
    return st.integers(least, 9)


@st.composite
def dense(draw: st.DrawFn) -> Case:
    p = draw(sizes())
    return Case(ng.Dense(), p, p, units(torch.ones(p, p, dtype=torch.bool)), products=p)


@st.composite
def diagonal(draw: st.DrawFn) -> Case:
    p = draw(sizes())
    return Case(ng.Diagonal(), p, p, units(torch.eye(p, dtype=torch.bool)), products=0)


@st.composite
def block_diagonal(draw: st.DrawFn) -> Case:
    size, blocks = draw(st.integers(1, 4)), draw(st.integers(0, 3))
    p = size * blocks
    owner = torch.arange(p) // size
    return Case(ng.BlockDiagonal(size), p, p, units(owner[:, None] == owner), products=p)


@st.composite
def lower(draw: st.DrawFn) -> Case:
    p = draw(sizes())
    k1 = draw(st.integers(0, p))
    k2 = draw(st.integers(0, p - k1))
    return Case(ng.Lower(k1, k2), p, p, units(border(p, k1, k2)), products=k1 + k2)


@st.composite
def upper(draw: st.DrawFn) -> Case:
    p = draw(sizes())
    k1 = draw(st.integers(0, p))
    k2 = draw(st.integers(0, p - k1))
    mask = border(p, k2, k1).flip(0, 1)
    return Case(ng.Upper(k1, k2), p, p, units(mask), products=k1 + k2)


@st.composite
def toeplitz(draw: st.DrawFn) -> Case:
    p, is_upper = draw(sizes(1)), draw(st.booleans())
    basis = shifts(p, range(0, -p, -1) if is_upper else range(p), wrap=False)
    return Case(ng.Toeplitz(upper=is_upper), p, p, basis, products=p)


@st.composite
def circulant(draw: st.DrawFn) -> Case:
    p = draw(sizes(1))
    return Case(ng.Circulant(), p, p, shifts(p, range(p), wrap=True), products=p)


@st.composite
def permuted(draw: st.DrawFn) -> Case:
    inner = draw(st.one_of(lower(), block_diagonal(), circulant()))
    order = draw(st.permutations(range(inner.p)))
    Q = torch.eye(inner.p, dtype=torch.float64)[:, list(order)]
    structure = ng.Conjugate(inner.structure, order)
    return Case(structure, inner.p, inner.p, Q @ inner.basis @ Q.mT, inner.products)


@st.composite
def rotated(draw: st.DrawFn) -> Case:
    inner = draw(st.one_of(lower(), diagonal()))
    Q = torch.linalg.qr(random_matrix(draw, inner.p))[0]
    return Case(ng.Conjugate(inner.structure, Q), inner.p, inner.p, Q @ inner.basis @ Q.mT, products=inner.p)


@st.composite
def sparse_cholesky(draw: st.DrawFn) -> Case:
    """A random graph, its Cholesky fill by plain elimination, closed under ancestors by repeated composition."""
    p = draw(sizes())
    edges = random_matrix(draw, p) > draw(st.sampled_from([-9.0, 0.0, 1.0, 9.0]))
    pattern = edges | edges.mT | torch.eye(p, dtype=torch.bool)
    order = draw(st.permutations(range(p)))
    structure = ng.SparseCholesky(pattern, order)
    mask = structure.identity(p).map(torch.ones_like).dense().bool()  # test_sparse.py looks at what it should hold
    return Case(structure, p, p, units(mask), products=p, hessian=pattern)


@st.composite
def relation(draw: st.DrawFn) -> Case:
    """A random partial order that no tree need have."""
    p = draw(sizes())
    above = (random_matrix(draw, p) > 0.7).triu(1) | torch.eye(p, dtype=torch.bool)
    for _ in range(p):
        above = (above.double() @ above.double()) > 0
    shuffle = list(draw(st.permutations(range(p))))
    above = above[shuffle][:, shuffle]
    if draw(st.booleans()):
        return Case(ng.SparseCholesky.from_relation(above), p, p, units(above), products=p)
    hessian = above | above.mT
    return Case(ng.SparseCholesky.from_relation(above, hessian), p, p, units(above), products=p, hessian=hessian)


@st.composite
def kronecker(draw: st.DrawFn) -> Case:
    side = st.one_of(dense(), diagonal(), lower(), upper(), circulant()).filter(lambda case: case.p <= 4)
    left, right = draw(side), draw(side)
    eye_left, eye_right = torch.eye(left.p).double(), torch.eye(right.p).double()
    basis = [torch.kron(b, eye_right) for b in left.basis] + [torch.kron(eye_left, b) for b in right.basis]
    p = left.p * right.p
    return Case(
        ng.Kronecker(left.structure, right.structure),
        (left.p, right.p),
        p,
        torch.stack(basis) if basis else torch.zeros(0, p, p).double(),
        products=p,
    )


STRUCTURES: dict[str, Callable[[], st.SearchStrategy[Case]]] = {
    "Dense": dense,
    "Diagonal": diagonal,
    "BlockDiagonal": block_diagonal,
    "Lower": lower,
    "Upper": upper,
    "Toeplitz": toeplitz,
    "Circulant": circulant,
    "Conjugate by a permutation": permuted,
    "Conjugate by an orthogonal matrix": rotated,
    "SparseCholesky": sparse_cholesky,
    "SparseCholesky.from_relation": relation,
    "Kronecker": kronecker,
}
