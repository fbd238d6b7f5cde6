"""The boxed updates: against the formulas as printed, their invariance, and the recursion of S that they amount to."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import natgrad as ng
from natgrad.groups.base import symmetric
from natgrad.step import precision_recursion, step_factor
from tests import oracle
from tests.structures import STRUCTURES, Case

everything = pytest.mark.parametrize("name", STRUCTURES)


def valley(p: int) -> Callable[[Tensor], Tensor]:
    """A smooth function with a bounded, indefinite Hessian."""
    A = torch.randn(p + 2, p, dtype=torch.float64, generator=oracle.generator(5))
    c = torch.linspace(-1, 2, p + 2, dtype=torch.float64)
    return lambda w: torch.log1p((A @ w - c) ** 2).sum() + torch.sin(w).sum()


def for_any_hessian(case: Case) -> Case:
    """A sparse Cholesky group has a Hessian's sparsity in mind; this is the group of the same matrices without."""
    if case.hessian is None:
        return case
    return replace(case, structure=ng.SparseCholesky.from_relation(case.basis.sum(0) != 0), hessian=None)


def run(function, mu: Tensor, B, steps: int, step=ng.paper_step, beta: float = 0.2) -> tuple[list[Tensor], object]:
    gradient, hessian = torch.func.grad(function), torch.func.hessian(function)
    path = [mu]
    for _ in range(steps):
        H = hessian(mu)
        mu, B = step(mu, B, gradient(mu), lambda V, H=H: H @ V, beta=beta)
        path.append(mu)
    return path, B


@everything
@settings(max_examples=8)
@given(data=st.data(), seed=st.integers(0, 99), step=st.sampled_from([ng.paper_step, ng.curvature_first_step]))
def test_whole_trajectories_are_invariant_under_the_group(name, data, seed, step):
    """f(y) = l(K y) with K^T in the group and B_0 moved to K^T B_0: mu_t = K y_t at every step."""
    case = data.draw(STRUCTURES[name]().filter(lambda case: case.p > 0), label="case")
    case = for_any_hessian(case)  # K^T H K leaves the pattern of H
    KT = oracle.element(case, seed=seed)
    K = KT.dense().mT
    B = oracle.element(case, seed=seed + 1)
    B = B.retract((0 * oracle.tangent(case, (), torch.float64, seed)).shift(2.0))  # h(2) = 5: S_0 above the curvature
    y = torch.randn(case.p, dtype=torch.float64, generator=oracle.generator(seed))
    function = valley(case.p)
    mus, B_end = run(function, K @ y, B, 20, step)
    ys, C_end = run(lambda y: function(K @ y), y, KT @ B, 20, step)
    for mu, y in zip(mus, ys, strict=True):
        assert float((mu - K @ y).norm()) <= 1e-8 * float(mu.norm())
    D, E = (KT @ B_end).dense(), C_end.dense()
    assert float((D - E).norm()) <= 1e-8 * float(E.norm())


def matching_hessian(case: Case, B, seed: int, gamma: float) -> Tensor:
    """An H for which X = B^-1 H B^-T - gamma I lies in sym(m), so that the projection loses nothing."""
    X = symmetric(oracle.tangent(case, (), torch.float64, seed, size=1.0).dense())
    D = B.dense()
    return D @ (X + gamma * torch.eye(case.p)) @ D.mT


def recursion_error(case: Case, B, H: Tensor, beta: float, gamma: float) -> float:
    D = step_factor(B, lambda V: H @ V, beta=beta, gamma=gamma).dense()
    S = B.dense() @ B.dense().mT
    return float((D @ D.mT - precision_recursion(S, H, beta=beta, gamma=gamma)).norm())


@pytest.mark.parametrize("name", ["Dense", "Diagonal", "BlockDiagonal", "Circulant"])
@pytest.mark.parametrize("gamma", [0.0, 1.0])
@given(data=st.data(), seed=st.integers(0, 99))
def test_S_follows_the_recursion_to_third_order(name, gamma, data, seed):
    """Groups with symmetric tangents: halving beta divides the distance to equation (5) by 8."""
    case = data.draw(STRUCTURES[name]().filter(lambda case: case.p > 0), label="case")
    B = oracle.element(case, seed=seed)
    H = matching_hessian(case, B, seed, gamma)
    order = math.log2(recursion_error(case, B, H, 4e-2, gamma) / recursion_error(case, B, H, 2e-2, gamma))
    assert 2.9 < order < 3.1


@everything
@given(data=st.data(), seed=st.integers(0, 99))
def test_S_follows_the_recursion_to_second_order(name, data, seed):
    """All groups: the commutator of M and M^T stands between, of order beta^2."""
    case = for_any_hessian(data.draw(STRUCTURES[name]().filter(lambda case: case.p > 0), label="case"))
    B = oracle.element(case, seed=seed)
    H = matching_hessian(case, B, seed, 1.0)
    small, large = (recursion_error(case, B, H, beta, 1.0) for beta in (1e-3, 2e-3))
    assert small < 1e-4
    assert large / small > 3.7 or large < 1e-9


@given(seed=st.integers(0, 99), beta=st.sampled_from([0.1, 0.5, 1.0]), gamma=st.sampled_from([0.0, 0.7, 1.0]))
def test_equation_8_as_printed(seed, beta, gamma):
    """B h((beta/2) B^-1 (H - gamma S) B^-T), mu - beta S^-1 g, both with the old S."""
    random = oracle.generator(seed)
    g, H, B = (torch.randn(size, dtype=torch.float64, generator=random) for size in ((5,), (5, 5), (5, 5)))
    B = B + 3 * torch.eye(5)
    H = H + H.mT
    element = from_dense(ng.Dense(), B)
    mu, new = ng.paper_step(torch.zeros(5).double(), element, g, lambda V: H @ V, beta=beta, gamma=gamma)
    S = B @ B.mT
    M = beta / 2 * torch.linalg.inv(B) @ (H - gamma * S) @ torch.linalg.inv(B).mT
    oracle.close(mu, -beta * torch.linalg.solve(S, g))
    oracle.close(new.dense(), B @ (torch.eye(5) + M + M @ M / 2))


def from_dense(structure: ng.Dense, B: Tensor):
    return structure.identity(len(B), dtype=B.dtype).map(lambda _: B.unsqueeze(0))


@given(seed=st.integers(0, 99), k=st.integers(0, 6), is_upper=st.booleans(), beta=st.sampled_from([0.1, 1.0]))
def test_equation_11_as_printed(seed, k, is_upper, beta):
    """B h(beta C (.) kappa(B^-1 H B^-T - gamma I)) with C of one half on the symmetric part and one beside it."""
    p, gamma, eye = 6, 0.8, torch.eye(6).double()
    structure = ng.Upper(k) if is_upper else ng.Lower(k)
    case = Case(structure, p, p, torch.zeros(0, p, p), k)
    B, H = oracle.element(case, seed=seed), oracle.hessian(case, seed=seed)
    C = eye / 2  # C_up: half ones in the k x k block and on the diagonal, ones beside
    C[:k, k:] = 1.0
    C[:k, :k] = 0.5
    C = C if is_upper else C.mT
    D = B.dense()
    kappa = C * (torch.linalg.solve(D, torch.linalg.solve(D, H).mT) - gamma * eye)
    M = beta * kappa
    expected = D @ (eye + M + M @ M / 2)
    new = step_factor(B, lambda V: H @ V, beta=beta, gamma=gamma, diagonal=H.diagonal())
    oracle.close(new.dense(), expected)


def rotated(*eigenvalues: float) -> Tensor:
    p = len(eigenvalues)
    Q = torch.linalg.qr(torch.randn(p, p, dtype=torch.float64, generator=oracle.generator(1)))[0]
    return Q @ torch.diag(torch.tensor(eigenvalues, dtype=torch.float64)) @ Q.mT


def test_S_becomes_a_positive_definite_hessian():
    H = rotated(4.0, 2.0, 0.5)
    B = ng.Dense().identity(3, dtype=torch.float64)
    for _ in range(60):
        B = step_factor(B, lambda V: H @ V, beta=1.0)
    oracle.close(B.dense() @ B.dense().mT, H)


def test_the_recursion_goes_to_the_absolute_hessian():
    """S <- (S + H S^-1 H)/2 for beta = gamma = 1: a saddle-free Newton method that factorises nothing indefinite."""
    H = rotated(4.0, -2.0, 0.5)
    S = torch.eye(3, dtype=torch.float64)
    for _ in range(60):
        S = precision_recursion(S, H, beta=1.0)
    values, vectors = torch.linalg.eigh(H)
    oracle.close(S, vectors @ torch.diag(values.abs()) @ vectors.mT)


@pytest.mark.parametrize("beta", [0.5, 1.0])
def test_S_stays_positive_definite_and_bounded_at_a_saddle(beta):
    """The truncated h lets an eigenvalue of S rest at c / (4/beta - 1) against curvature -c: h((beta/2)(x - 1)) = 1."""
    c = 2.0
    s = c / (4 / beta - 1)
    B = from_dense(ng.Dense(), torch.tensor([[s**0.5]], dtype=torch.float64))
    H = torch.tensor([[-c]], dtype=torch.float64)
    oracle.close(step_factor(B, lambda V: H @ V, beta=beta).dense(), B.dense())
    B = ng.Dense().identity(3, dtype=torch.float64)
    H = rotated(4.0, -2.0, 0.5)
    for _ in range(200):
        B = step_factor(B, lambda V: H @ V, beta=beta)
        values = torch.linalg.eigvalsh(B.dense() @ B.dense().mT)
        assert float(values.min()) > 1e-3
        assert float(values.max()) < 1e2


def test_curvature_first_uses_the_new_precision():
    H, g = torch.diag(torch.tensor([2.0, 8.0])).double(), torch.tensor([1.0, 1.0]).double()
    B = ng.Dense().identity(2, dtype=torch.float64)
    mu, new = ng.curvature_first_step(torch.zeros(2).double(), B, g, lambda V: H @ V, beta=1.0)
    oracle.close(mu, -torch.linalg.solve(new.dense() @ new.dense().mT, g))
    old, _ = ng.paper_step(torch.zeros(2).double(), B, g, lambda V: H @ V, beta=1.0)
    oracle.close(old, -g)


@everything
@given(data=st.data(), seed=st.integers(0, 99))
def test_an_exact_hessian_is_left_alone(name, data, seed):
    """For H = gamma S nothing moves B: a fixed point in every group."""
    case = for_any_hessian(data.draw(STRUCTURES[name](), label="case"))
    B = oracle.element(case, seed=seed)
    H = 0.7 * B.dense() @ B.dense().mT
    oracle.close(step_factor(B, lambda V: H @ V, beta=0.9, gamma=0.7).dense(), B.dense())


@pytest.mark.parametrize("step", [ng.paper_step, ng.curvature_first_step])
def test_steps_use_the_diagonal(step):
    H = ng.Hessian(lambda V: 2 * V)
    x = torch.ones(9, dtype=torch.float64)
    step(x, ng.Lower(2).identity(9, dtype=torch.float64), x, H, beta=0.1, diagonal=2 * x)
    assert H.products == 2
