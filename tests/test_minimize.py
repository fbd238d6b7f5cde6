"""`minimize`: what it finds, in how many steps, and the laws that whole runs obey."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, aslinearoperator
from torch import Tensor

import natgrad as ng
from natgrad.experiments.functions import FUNCTIONS, far_start
from natgrad.experiments.structures import chain, grid
from natgrad.groups.base import Structure
from tests import oracle
from tests.structures import STRUCTURES, Case
from tests.test_step import for_any_hessian, valley

F64 = torch.float64
CONVERGED, LIMIT, STUCK, NOT_FINITE, STOPPED = 0, 1, 2, 3, 99
seeds = st.integers(0, 99)
conditions = st.sampled_from([1.0, 1e2, 1e4, 1e6])


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=F64, generator=oracle.generator(seed))


def orthogonal(p: int, seed: int) -> Tensor:
    return torch.linalg.qr(normal(p, p, seed=seed))[0]


def spectrum(p: int, condition: float) -> Tensor:
    return torch.logspace(0, math.log10(condition), p, dtype=F64)


def definite(p: int, condition: float, seed: int) -> Tensor:
    Q = orthogonal(p, seed)
    return Q * spectrum(p, condition) @ Q.mT


def on_pattern(pattern: csr_array, condition: float, seed: int) -> Tensor:
    """A positive definite matrix with the pattern, its rows of very different sizes."""
    present = torch.as_tensor(pattern.toarray() != 0)
    p = len(present)
    A = oracle.symmetric(normal(p, p, seed=seed)) * present
    A = A - A.diagonal().diag() + (A.abs().sum(0) + 1).diag()
    scale = spectrum(p, condition).sqrt()[torch.randperm(p, generator=oracle.generator(seed))]
    return scale[:, None] * A * scale


def tree(p: int, seed: int = 0) -> csr_array:
    parents = [int(np.random.default_rng((seed, i)).integers(0, i)) for i in range(1, p)]
    edges = csr_array((np.ones(p - 1), (np.arange(1, p), parents)), shape=(p, p))
    return csr_array(edges + edges.T + csr_array(np.eye(p)))


def scattered(p: int, seed: int = 0) -> csr_array:
    edges = np.random.default_rng(seed).random((p, p)) < 2 / p
    return csr_array((edges | edges.T | np.eye(p, dtype=bool)).astype(float))


def quadratic(H: Tensor, minimizer: Tensor) -> Callable[[Tensor], Tensor]:
    def value(x: Tensor) -> Tensor:
        e = x.reshape(-1) - minimizer
        return e @ H @ e / 2

    return value


def solved(result: scipy.optimize.OptimizeResult, f0: float) -> bool:
    """Quadratics of this file are 0 at their minimum."""
    return bool(result.success) and result.status == CONVERGED and result.fun <= 1e-10 * max(1.0, f0)


def path_of(function, x0, **options) -> list[Tensor]:
    """x0 and all iterates, flat."""
    path = [x0.reshape(-1)]
    ng.minimize(function, x0, callback=lambda x: path.append(x.reshape(-1)), **options)
    return path


# ---- quadratics, with every structure that can hold the Hessian


@given(p=st.integers(1, 12), condition=conditions, seed=seeds)
def test_dense_takes_the_hessian_in_one_step(p, condition, seed):
    """S = H at once, so that the first step is Newton's; another one at most, for rounding errors."""
    H, minimizer = definite(p, condition, seed), normal(p, seed=seed + 1)
    function, x0 = quadratic(H, minimizer), 3 * normal(p, seed=seed + 2)
    result = ng.minimize(function, x0, structure=ng.Dense())
    assert solved(result, float(function(x0)))
    assert result.nit <= 2
    oracle.close(result.precision.precision(torch.eye(p, dtype=F64)), H)


PATTERNS: dict[str, Callable[[int, int], csr_array]] = {
    "chain": lambda p, seed: chain(p),
    "tree": tree,
    "grid": lambda p, seed: grid(p),
    "scattered": scattered,
}


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("given_as", ["hess_sparsity", "structure", "detected"])
@settings(max_examples=6)
@given(condition=conditions, seed=seeds)
def test_sparse_cholesky_takes_the_hessian_in_one_step(name, given_as, condition, seed):
    p = 49
    pattern = PATTERNS[name](p, seed)
    H, minimizer = on_pattern(pattern, condition, seed), normal(p, seed=seed + 1)
    i, j = H.nonzero().unbind(1)
    function, x0 = (lambda x: (H[i, j] * (x - minimizer)[i] * (x - minimizer)[j]).sum() / 2), normal(p, seed=seed + 2)
    how = {
        "hess_sparsity": {"hess_sparsity": pattern},
        "structure": {"structure": ng.SparseCholesky(pattern)},
        "detected": {},
    }[given_as]
    result = ng.minimize(function, x0, **how)
    assert solved(result, float(function(x0)))
    assert result.nit <= 2
    assert "SparseCholesky" in str(result.precision.structure)
    oracle.close(result.precision.precision(torch.eye(p, dtype=F64)), H)
    assert result.nhvp < 4 * p  # p would be one Hessian in full: there are no more than three


@pytest.mark.parametrize("p", [64, 2500])  # a band for LAPACK; a grid too wide for that
def test_a_grid_takes_as_few_products_as_it_has_colors(p):
    pattern = grid(p)
    i, j = (torch.as_tensor(index) for index in pattern.nonzero())
    values = torch.where(i == j, 5.0, -1.0).to(F64)

    def function(x):
        return (values * x[i] * x[j]).sum() / 2 - x.sum()

    result = ng.minimize(function, torch.zeros(p, dtype=F64), hess_sparsity=pattern)
    assert result.status == CONVERGED
    assert result.nit <= 2
    assert result.nhvp < 100
    assert float(result.jac.abs().max()) < 1e-8


def circulant_matrix(p: int, condition: float, seed: int) -> Tensor:
    frequency = torch.fft.fftfreq(p, dtype=F64).abs()
    column = torch.fft.ifft(condition ** (frequency / frequency.max())).real
    return torch.stack([column.roll(k) for k in range(p)], 1)


def from_group(structure: Structure) -> Callable[[int, float, int], Tensor]:
    def matrix(p: int, condition: float, seed: int) -> Tensor:
        B = structure.identity(p, dtype=F64)
        B = B.retract(B.project(normal(p, 2, seed=seed), normal(p, 2, seed=seed + 1)) / p**0.5)
        D = B.dense() * spectrum(p, condition).sqrt()[torch.randperm(p, generator=oracle.generator(seed))]
        return D @ D.mT

    return matrix


ROTATION = orthogonal(12, seed=7)
BOXED: dict[str, tuple[Structure, tuple[int, ...], Callable[[int, float, int], Tensor]]] = {
    "Diagonal": (ng.Diagonal(), (12,), lambda p, condition, seed: spectrum(p, condition).diag()),
    "BlockDiagonal": (
        ng.BlockDiagonal(4),
        (12,),
        lambda p, condition, seed: torch.block_diag(*[definite(4, condition, seed + k) for k in range(p // 4)]),
    ),
    "Circulant": (ng.Circulant(), (12,), circulant_matrix),
    "Conjugate": (
        ng.Conjugate(ng.Diagonal(), ROTATION),
        (12,),
        lambda p, condition, seed: ROTATION * spectrum(p, condition) @ ROTATION.mT,
    ),
    "Kronecker": (
        ng.Kronecker(ng.Dense(), ng.Dense()),
        (3, 4),
        lambda p, condition, seed: torch.kron(
            definite(3, condition**0.5, seed).contiguous(), definite(4, condition**0.5, seed + 1).contiguous()
        ),
    ),
    **{
        str(structure): (structure, (12,), from_group(structure))
        for structure in (ng.Lower(2), ng.Upper(2), ng.Lower(2, 3), ng.Upper(1, 2))
    },
}


@pytest.mark.parametrize("name", BOXED)
@settings(max_examples=8)
@given(condition=conditions, seed=seeds)
def test_boxed_structures_find_quadratic_minima(name, condition, seed):
    """In 8 + log(condition of H) / log(1 / 0.39) steps.

    S starts at max |H_ii| I and no step leaves less than h(-1/2)^2 = 0.39 of it; once it is near, S converges to H
    quadratically, and Newton's steps with it: 8 covers that, and that max |H_ii| may be a few times the curvature.
    """
    structure, shape, matrix = BOXED[name]
    p = math.prod(shape)
    H, minimizer = matrix(p, condition, seed), normal(p, seed=seed + 1)
    function, x0 = quadratic(H, minimizer), 3 * normal(*shape, seed=seed + 2)
    result = ng.minimize(function, x0, structure=structure)
    assert solved(result, float(function(x0)))
    eigenvalues = torch.linalg.eigvalsh(H)
    assert result.nit <= 8 + math.log(float(eigenvalues[-1] / eigenvalues[0])) / math.log(1 / 0.39)
    assert result.precision.structure == structure


@pytest.mark.parametrize("name", BOXED)
def test_boxed_structures_end_with_the_hessian(name):
    """S = H after as many steps as S needs, whatever x does: here all end by gtol = 0, where nothing moves f."""
    structure, shape, matrix = BOXED[name]
    p = math.prod(shape)
    H = matrix(p, 100.0, 3)
    result = ng.minimize(quadratic(H, normal(p)), torch.zeros(shape, dtype=F64), structure=structure, gtol=0.0)
    eye = torch.eye(p, dtype=F64)
    torch.testing.assert_close(result.precision.precision(eye), H, rtol=0, atol=1e-4 * float(H.abs().max()))
    inverse = torch.as_tensor(result.hess_inv @ np.eye(p))
    torch.testing.assert_close(inverse @ H, eye, rtol=0, atol=1e-2)


# ---- the paper's updates


def drawn(name: str, data: st.DataObject) -> Case:
    return for_any_hessian(data.draw(STRUCTURES[name]().filter(lambda case: case.p > 0), label="case"))


def start_of(case: Case, seed: int) -> tuple[Tensor, ng.Element]:
    """x0 in the shape that the structure wants, and a B_0 with S_0 above the curvature."""
    B = oracle.element(case, seed=seed)
    B = B.retract((0 * oracle.tangent(case, (), F64, seed)).shift(2.0))
    return normal(*(case.size if isinstance(case.size, tuple) else (case.p,)), seed=seed), B


def flat(function: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda x: function(x.reshape(-1))


PAPER = {"mode": "paper", "beta": 0.2, "maxiter": 12, "gtol": 0.0}


@pytest.mark.parametrize("name", STRUCTURES)
@settings(max_examples=5)
@given(data=st.data(), seed=seeds)
def test_paper_runs_are_invariant_under_the_group(name, data, seed):
    """f(y) = l(K y) with K^T in the group, from K^T B_0: the iterates satisfy mu = K y."""
    case = drawn(name, data)
    KT = oracle.element(case, seed=seed + 1)
    K = KT.dense().mT
    y0, B = start_of(case, seed)
    function = valley(case.p)
    x0 = (K @ y0.reshape(-1)).reshape(y0.shape)
    mus = path_of(flat(function), x0, structure=case.structure, precision=B, **PAPER)
    ys = path_of(lambda y: function(K @ y.reshape(-1)), y0, structure=case.structure, precision=KT @ B, **PAPER)
    assert len(mus) == len(ys) == 13
    for mu, y in zip(mus, ys, strict=True):
        assert float((mu - K @ y).norm()) <= 1e-8 * float(mu.norm())


@pytest.mark.parametrize("name", STRUCTURES)
@settings(max_examples=4)
@given(data=st.data(), seed=seeds)
def test_paper_runs_are_invariant_under_translations(name, data, seed):
    case = drawn(name, data)
    x0, B = start_of(case, seed)
    c = 5 * normal(*x0.shape, seed=seed + 1)
    function = flat(valley(case.p))
    options = {"structure": case.structure, "precision": B, **PAPER}
    here = path_of(function, x0, **options)
    there = path_of(lambda x: function(x - c), x0 + c, **options)
    for x, moved in zip(here, there, strict=True):
        oracle.close(moved, x + c.reshape(-1))


@pytest.mark.parametrize("name", STRUCTURES)
@settings(max_examples=4)
@given(data=st.data(), seed=seeds, gamma=st.sampled_from([0.5, 1.0]))
def test_paper_runs_are_paper_steps(name, data, seed, gamma):
    case = drawn(name, data)
    x0, B = start_of(case, seed)
    function = valley(case.p)
    options = {"structure": case.structure, **PAPER, "maxiter": 6, "gamma": gamma}
    path = path_of(flat(function), x0, precision=B, **options)
    mu = x0.reshape(-1)
    for x in path:
        oracle.close(x, mu)
        H = torch.func.hessian(function)(mu)
        g = torch.func.grad(function)(mu)
        mu, B = ng.paper_step(mu, B, g, lambda V, H=H: H @ V, beta=0.2, gamma=gamma)


@given(seed=seeds, beta=st.sampled_from([0.1, 0.4]))
def test_paper_runs_of_dense_are_the_printed_formulas(seed, beta):
    """B h((beta/2) (B^-1 H B^-T - I)) and mu - beta S^-1 g with matrices alone, from S_0 = max |H_ii| I."""
    p, eye = 5, torch.eye(5, dtype=F64)
    function, mu = valley(p), normal(p, seed=seed)
    path = path_of(function, mu, structure=ng.Dense(), mode="paper", beta=beta, maxiter=8, gtol=0.0)
    B = torch.func.hessian(function)(mu).diagonal().abs().max().sqrt() * eye
    for x in path:
        oracle.close(x, mu)
        H, g = torch.func.hessian(function)(mu), torch.func.grad(function)(mu)
        M = beta / 2 * (torch.linalg.solve(B, torch.linalg.solve(B, H).mT) - eye)
        mu, B = mu - beta * torch.linalg.solve(B @ B.mT, g), B @ (eye + M + M @ M / 2)


@pytest.mark.parametrize("structure", [ng.Dense(), ng.Lower(1, 1), ng.Upper(2), ng.SparseCholesky(chain(20))])
def test_paper_runs_from_far_come_down(structure):
    rosenbrock = FUNCTIONS["rosenbrock"].value
    x0 = far_start(20, 0)
    result = ng.minimize(rosenbrock, x0, structure=structure, mode="paper", maxiter=400)
    assert result.status in (CONVERGED, LIMIT)
    assert result.success == (result.status == CONVERGED)
    assert result.fun < 1e-6 * float(rosenbrock(x0))


@pytest.mark.parametrize("structure", [ng.Dense(), ng.Lower(1), ng.Diagonal()])
def test_diverging_paper_runs_say_so(structure):
    x0 = torch.linspace(-30, 20, 12, dtype=F64)
    for function in (FUNCTIONS["rosenbrock"].value, lambda x: -(x**2).sum()):
        result = ng.minimize(function, x0, structure=structure, mode="paper", beta=1.0)
        assert result.status == NOT_FINITE
        assert not result.success
        assert "smaller beta" in result.message
        assert torch.isfinite(result.x).all()
        assert result.fun == float(function(result.x))
        assert result.fun <= float(function(x0))


# ---- the line search: published problems


BEST = {  # iterations to f <= 1e-10 at p = 200 that a plain prototype needed
    "rosenbrock, far": ("rosenbrock", far_start(200, 0), 42),
    "rosenbrock, zeros": ("rosenbrock", torch.zeros(200, dtype=F64), 485),
    "dixon-price, far": ("dixon-price", far_start(200, 0), 24),
    "dixon-price, ones": ("dixon-price", torch.ones(200, dtype=F64), 12),
}


@pytest.mark.parametrize("structure", ["auto", ng.Dense()], ids=str)
@pytest.mark.parametrize("case", BEST)
def test_iterations_to_the_minimum(case, structure):
    name, x0, bound = BEST[case]

    def until_small(intermediate_result):
        if intermediate_result.fun <= 1e-10:
            raise StopIteration

    result = ng.minimize(FUNCTIONS[name].value, x0, structure=structure, callback=until_small, maxiter=bound)
    assert result.fun <= 1e-10
    assert result.nit <= bound
    assert isinstance(result.precision.structure, ng.SparseCholesky if structure == "auto" else ng.Dense)


MANY_MINIMA = {"rosenbrock", "chained-wood", "phi4", "trigonometric"}


@pytest.mark.parametrize("p", [30, 50])  # Dense; what "auto" takes from p = 33 on
@pytest.mark.parametrize("name", FUNCTIONS)
def test_published_functions_are_minimized(name, p):
    problem = FUNCTIONS[name]
    p = problem.size(p)
    x0 = problem.start(p)
    result = ng.minimize(problem.value, x0)
    assert result.success
    assert result.status == CONVERGED
    assert result.fun == float(problem.value(result.x))
    g = torch.func.grad(problem.value)(result.x)
    oracle.close(result.jac, g)
    assert float(g.abs().max()) <= 1e-7 * max(1.0, float(torch.func.grad(problem.value)(x0).abs().max()))
    eigenvalues = torch.linalg.eigvalsh(torch.func.hessian(problem.value)(result.x))
    assert float(eigenvalues[0]) >= -1e-6 * float(eigenvalues[-1])
    assert result.fun >= problem.minimum(p) - 1e-12 * max(1.0, abs(problem.minimum(p)))
    if name not in MANY_MINIMA:
        assert result.fun <= problem.minimum(p) + 1e-9


SMALL = {
    "rosenbrock": 3,
    "wood": 4,
    "broyden-tridiagonal": 5,
    "broyden-banded": 7,
    "boundary-value": 6,
    "minimal-surface": 9,
    "variably-dimensioned": 5,
    "penalty": 4,
}


@pytest.mark.parametrize("name", SMALL)
def test_the_minimum_is_that_of_scipys_trust_exact(name):
    problem, p = FUNCTIONS[name], SMALL[name]
    x0 = problem.start(p)
    theirs = scipy.optimize.minimize(
        lambda x: float(problem.value(torch.as_tensor(x))),
        x0.numpy(),
        jac=lambda x: torch.func.grad(problem.value)(torch.as_tensor(x)).numpy(),
        hess=lambda x: torch.func.hessian(problem.value)(torch.as_tensor(x)).numpy(),
        method="trust-exact",
        options={"gtol": 1e-9},
    )
    ours = ng.minimize(problem.value, x0)
    assert ours.success
    assert ours.fun <= theirs.fun + 1e-12
    np.testing.assert_allclose(ours.x.numpy(), theirs.x, atol=1e-5)


@pytest.mark.parametrize(
    "structure", ["auto", ng.Dense(), ng.Lower(2), ng.Upper(1, 1), ng.Diagonal(), ng.BlockDiagonal(5)]
)
def test_curved_valleys_with_structures_that_hold_the_hessian_or_not(structure):
    problem = FUNCTIONS["broyden-banded"]
    result = ng.minimize(problem.value, problem.start(20), structure=structure)
    assert result.success
    assert result.fun < 1e-10


def test_float32_runs_end_where_the_numbers_do():
    for name in ("rosenbrock-printed", "extended-rosenbrock", "arwhead", "variably-dimensioned"):
        problem = FUNCTIONS[name]
        result = ng.minimize(problem.value, problem.start(20).float())
        assert result.success
        assert result.x.dtype == torch.float32
        assert result.fun < 1e-6


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e-12, 1.0, 1e12, 1e200, 1e300])
def test_the_scale_of_the_function_does_not_matter(scale):
    problem = FUNCTIONS["extended-rosenbrock"]
    result = ng.minimize(lambda x: scale * problem.value(x), problem.start(20), gtol=1e-10)
    assert result.success
    assert result.fun <= 1e-10 * scale
    oracle.close(result.x, problem.minimizer(20), torch.float32)


# ---- saddles, degenerate minima, and functions without a minimum


def wells(x: Tensor) -> Tensor:
    """x_i^2 - y_i^2 + y_i^4: at 0 a saddle, with minima of -1/4 at y_i = +-1/sqrt(2)."""
    a, b = x.reshape(-1, 2).unbind(1)
    return (a**2 - b**2 + b**4).sum()


@pytest.mark.parametrize(("p", "structure"), [(2, "auto"), (2, ng.SparseCholesky(np.eye(2))), (400, "auto")])
def test_a_saddle_is_left_for_a_minimum(p, structure):
    result = ng.minimize(wells, torch.zeros(p, dtype=F64), structure=structure)
    assert result.success
    assert result.fun == pytest.approx(-p / 8, rel=1e-9)


@pytest.mark.parametrize("structure", ["auto", ng.Dense(), ng.Lower(1), ng.Diagonal()])
@pytest.mark.parametrize("p", [1, 5, 60])
def test_degenerate_minima_are_success(p, structure):
    if p == 1 and structure == ng.Lower(1):
        structure = ng.Lower(0)
    result = ng.minimize(lambda x: (x**4).sum(), torch.linspace(1, 2, p, dtype=F64), structure=structure)
    assert result.success
    assert float(result.x.abs().max()) < 1e-2


def test_a_minimizer_is_left_alone():
    for name in ("rosenbrock", "tridia", "powell", "cosine", "arwhead", "minimal-surface", "penalty"):
        problem = FUNCTIONS[name]
        p = problem.size(40)
        result = ng.minimize(problem.value, problem.minimizer(p))
        assert result.success
        assert result.nit <= 2
        oracle.close(result.x, problem.minimizer(p))


def test_a_constant_has_its_minimum_everywhere():
    x0 = normal(4)
    for structure in ("auto", ng.Lower(1), ng.Diagonal()):
        result = ng.minimize(lambda x: 0 * x.sum() + 3, x0, structure=structure)
        assert result.success
        assert result.fun == 3
        assert torch.equal(result.x, x0)


UNBOUNDED = {
    "x": lambda x: x.sum(),
    "-x^2": lambda x: -(x**2).sum(),
    "-x^4": lambda x: -(x**4).sum(),
    "-x^3": lambda x: -(x**3).sum(),
    "-(sum x)^2 - |x|^2": lambda x: -(x.sum() ** 2) - (x**2).sum(),
    "-exp": lambda x: -torch.exp(x).sum(),
}


@pytest.mark.parametrize("p", [1, 3, 130])
@pytest.mark.parametrize("name", UNBOUNDED)
def test_unbounded_functions_end_and_never_with_success(name, p):
    result = ng.minimize(UNBOUNDED[name], torch.full((p,), 0.5, dtype=F64))
    assert not result.success
    assert result.status in (LIMIT, STUCK, NOT_FINITE)
    assert math.isfinite(result.fun)
    assert result.fun <= UNBOUNDED[name](torch.full((p,), 0.5, dtype=F64))


@pytest.mark.parametrize("structure", [ng.Lower(2), ng.Diagonal(), ng.Dense(), ng.SparseCholesky(np.ones((9, 9)))])
@pytest.mark.parametrize("name", UNBOUNDED)
def test_unbounded_functions_with_a_chosen_structure(name, structure):
    result = ng.minimize(UNBOUNDED[name], torch.full((9,), 0.5, dtype=F64), structure=structure)
    assert not result.success


def test_one_variable():
    def function(x):
        return ((x - 3) ** 2 + (x - 3) ** 4 / 2).sum()

    for x0 in (torch.tensor(0.0, dtype=F64), torch.zeros(1, dtype=F64), torch.zeros(1, 1, 1, dtype=F64)):
        result = ng.minimize(function, x0)
        assert result.success
        assert result.x.shape == x0.shape
        assert result.x.item() == pytest.approx(3, abs=1e-8)
    result = ng.minimize(function, np.array(0.0))
    assert result.x == pytest.approx([3.0])


# ---- the result


FIELDS = {"x", "fun", "jac", "success", "status", "message", "nit", "nfev", "njev", "nhev", "nhvp", "hess_inv"}
STRUCTURED = ["auto", ng.Dense(), ng.Lower(2), ng.Diagonal(), ng.SparseCholesky(chain(40))]


@pytest.mark.parametrize("structure", STRUCTURED)
@pytest.mark.parametrize("mode", ["linesearch", "paper", "stochastic"])
def test_the_result_has_every_field(mode, structure):
    problem = FUNCTIONS["broyden-tridiagonal"]
    if isinstance(structure, ng.SparseCholesky):
        problem = FUNCTIONS["rosenbrock"]  # whose Hessian is that chain
    result = ng.minimize(problem.value, problem.start(40), structure=structure, mode=mode, maxiter=5)
    assert isinstance(result, scipy.optimize.OptimizeResult)
    assert set(result) >= FIELDS
    assert isinstance(result.fun, float)
    assert isinstance(result.success, bool)
    assert isinstance(result.message, str)
    assert all(type(result[name]) is int for name in ("status", "nit", "nfev", "njev", "nhev", "nhvp"))
    assert result.success == (result.status == CONVERGED)
    assert isinstance(result.precision, ng.Element)
    assert result["precision"].shape == (40, 40)
    assert isinstance(result.hess_inv, LinearOperator)
    assert result.hess_inv.shape == (40, 40)
    assert result.fun == float(problem.value(result.x))
    v = np.linspace(1, 2, 40)
    np.testing.assert_allclose(result.precision.precision(torch.as_tensor(result.hess_inv @ v)), v, rtol=1e-6)
    for text in ("x", "fun", "hess_inv", "nhvp"):
        assert text in repr(result)


def test_dense_and_sparse_end_with_the_hessian_at_the_minimum():
    problem = FUNCTIONS["extended-rosenbrock"]
    for structure in ("auto", ng.Dense(), ng.SparseCholesky(chain(40))):
        result = ng.minimize(problem.value, problem.start(40), structure=structure)
        H = torch.func.hessian(problem.value)(result.x)
        eye = torch.eye(40, dtype=F64)
        torch.testing.assert_close(result.precision.precision(eye), H, rtol=1e-6, atol=1e-6)
        inverse = torch.as_tensor(result.hess_inv @ np.eye(40))
        torch.testing.assert_close(inverse @ H, eye, rtol=0, atol=1e-5)
        torch.testing.assert_close(torch.as_tensor(result.hess_inv.T @ np.eye(40)), inverse)


def split(x: Tensor) -> list[Tensor]:
    return [x[:2].reshape(1, 2), x[2:].reshape(2, 2)]


FORMS: dict[str, Callable[[Tensor], object]] = {
    "vector": lambda x: x,
    "matrix": lambda x: x.reshape(2, 3),
    "not contiguous": lambda x: x.reshape(3, 2).mT,
    "dict": lambda x: {"a": split(x)[0], "b": split(x)[1]},
    "tuple": lambda x: tuple(split(x)),
    "nested": lambda x: [{"a": (split(x)[0],)}, split(x)[1]],
}


@pytest.mark.parametrize("dtype", [F64, torch.float32])
@pytest.mark.parametrize("form", FORMS)
def test_x_comes_back_in_the_form_of_x0(form, dtype):
    x0 = FORMS[form](torch.linspace(-1, 1, 6, dtype=dtype))
    leaves, form_of_x0 = torch.utils._pytree.tree_flatten(x0)
    before = [leaf.clone() for leaf in leaves]
    seen = []

    def function(x):
        seen.append(torch.utils._pytree.tree_structure(x))
        return sum(((leaf - 1) ** 2).sum() for leaf in torch.utils._pytree.tree_leaves(x))

    result = ng.minimize(function, x0, callback=lambda x: seen.append(torch.utils._pytree.tree_structure(x)))
    assert result.success
    assert set(map(str, seen)) == {str(form_of_x0)}
    for answer in (result.x, result.jac):
        got, form_of_x = torch.utils._pytree.tree_flatten(answer)
        assert form_of_x == form_of_x0
        assert [(t.shape, t.dtype) for t in got] == [(t.shape, t.dtype) for t in leaves]
    for leaf in torch.utils._pytree.tree_leaves(result.x):
        torch.testing.assert_close(leaf, torch.ones_like(leaf))
    assert all(torch.equal(a, b) for a, b in zip(before, leaves, strict=True))
    assert result.hess_inv.dtype == (np.float64 if dtype == F64 else np.float32)


def test_numpy_x0_gives_numpy_results():
    for dtype in (np.float64, np.float32):
        result = ng.minimize(lambda x: ((x - 1) ** 2).sum(), np.zeros(4, dtype=dtype))
        assert isinstance(result.x, np.ndarray)
        assert isinstance(result.jac, np.ndarray)
        assert result.x.dtype == result.jac.dtype == dtype
        np.testing.assert_allclose(result.x, 1)


def test_x0_may_want_gradients_and_stays_as_it_is():
    x0 = torch.zeros(3, dtype=F64, requires_grad=True)
    result = ng.minimize(lambda x: ((x - 1) ** 2).sum(), x0)
    assert x0.grad is None
    assert not result.x.requires_grad
    assert torch.equal(x0, torch.zeros(3, dtype=F64))


PICKLED = [
    ("rosenbrock", "auto"),
    ("rosenbrock", ng.SparseCholesky(chain(150))),
    ("rosenbrock", ng.Lower(2)),
    ("trigonometric", "auto"),
    ("trigonometric", ng.Dense()),
]


@pytest.mark.parametrize(("name", "structure"), PICKLED)
def test_results_can_be_pickled(name, structure):
    problem = FUNCTIONS[name]
    result = ng.minimize(problem.value, problem.start(150), structure=structure, maxiter=3)
    copy = pickle.loads(pickle.dumps(result))
    assert torch.equal(copy.x, result.x)
    assert (copy.fun, copy.nit, copy.message) == (result.fun, result.nit, result.message)
    v = np.linspace(0, 1, 150)
    np.testing.assert_array_equal(copy.hess_inv @ v, result.hess_inv @ v)
    x = torch.as_tensor(v)
    assert torch.equal(copy.precision.precision(x), result.precision.precision(x))


@pytest.mark.parametrize("structure", [ng.Dense(), ng.Lower(2), ng.Kronecker(ng.Lower(1), ng.Dense())])
@pytest.mark.parametrize("mode", ["linesearch", "paper", "stochastic"])
def test_runs_repeat_bit_by_bit(mode, structure):
    def function(x):
        return FUNCTIONS["trigonometric"].value(x.reshape(-1))

    x0 = FUNCTIONS["trigonometric"].start(120).reshape(10, 12)
    first, second = (ng.minimize(function, x0, structure=structure, mode=mode, maxiter=5) for _ in range(2))
    assert torch.equal(first.x, second.x)
    assert (first.fun, first.nfev, first.nhvp) == (second.fun, second.nfev, second.nhvp)
    v = np.linspace(0, 1, 120)
    np.testing.assert_array_equal(first.hess_inv @ v, second.hess_inv @ v)


def test_an_estimated_diagonal_is_announced_and_seeded():
    problem = FUNCTIONS["trigonometric"]
    results = []
    for seed in (0, 0, 1):
        with pytest.warns(RuntimeWarning, match="estimated from 8 random Hessian products") as caught:
            results.append(ng.minimize(problem.value, problem.start(600), structure=ng.Lower(2), seed=seed, maxiter=4))
        assert len(caught) == 1
    assert torch.equal(results[0].x, results[1].x)
    assert not torch.equal(results[0].x, results[2].x)


# ---- where derivatives come from


def counted(function):
    def calls(*args):
        calls.n += 1
        return function(*args)

    calls.n = 0
    return calls


def rosen_hess_diag(x: np.ndarray) -> np.ndarray:
    return scipy.optimize.rosen_hess(x).diagonal()


rosen, rosen_der = scipy.optimize.rosen, scipy.optimize.rosen_der
rosen_hess, rosen_hess_prod = scipy.optimize.rosen_hess, scipy.optimize.rosen_hess_prod
WAYS = {
    "dense": {"jac": rosen_der, "hess": rosen_hess},
    "list": {"jac": lambda x: rosen_der(x).tolist(), "hess": lambda x: rosen_hess(x).tolist()},
    "csr": {"jac": rosen_der, "hess": lambda x: csr_array(rosen_hess(x))},
    "csr with a pattern": {
        "jac": rosen_der,
        "hess": lambda x: csr_array(rosen_hess(x)),
        "hess_sparsity": chain(40),
    },
    "LinearOperator": {"jac": rosen_der, "hess": lambda x: aslinearoperator(rosen_hess(x))},
    "LinearOperator, Dense": {
        "jac": rosen_der,
        "hess": lambda x: aslinearoperator(rosen_hess(x)),
        "structure": ng.Dense(),
    },
    "products": {"jac": rosen_der, "hessp": rosen_hess_prod},
    "products, Dense": {"jac": rosen_der, "hessp": rosen_hess_prod, "structure": ng.Dense()},
    "products with a pattern": {"jac": rosen_der, "hessp": rosen_hess_prod, "hess_sparsity": chain(40)},
    "products with a diagonal": {"jac": rosen_der, "hessp": rosen_hess_prod, "hess_diag": rosen_hess_diag},
    "SparseCholesky": {"jac": rosen_der, "hessp": rosen_hess_prod, "structure": ng.SparseCholesky(chain(40))},
    "Lower with a diagonal": {
        "jac": rosen_der,
        "hessp": rosen_hess_prod,
        "hess_diag": rosen_hess_diag,
        "structure": ng.Lower(2),
        "cg_steps": 20,
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_numpy_functions_with_their_derivatives(way):
    """The counts are those of the user's own functions."""
    options = {name: counted(f) if callable(f) and name != "structure" else f for name, f in WAYS[way].items()}
    fun = counted(rosen)
    x0 = np.linspace(1.5, 2.5, 40)
    result = ng.minimize(fun, x0, **options)
    assert result.success
    assert isinstance(result.x, np.ndarray)
    np.testing.assert_allclose(result.x, 1, atol=1e-6)
    assert result.nfev == fun.n
    assert result.njev == options["jac"].n
    assert result.nhev == (options["hess"].n if "hess" in options else 0)
    if "hessp" in options:
        assert result.nhvp == options["hessp"].n
    np.testing.assert_array_equal(x0, np.linspace(1.5, 2.5, 40))


def test_jac_true_takes_value_and_gradient_from_one_call():
    fun = counted(lambda x: (rosen(x), rosen_der(x)))
    result = ng.minimize(fun, np.full(6, 2.0), jac=True, hess=rosen_hess)
    assert result.success
    assert result.nfev == fun.n
    np.testing.assert_allclose(result.x, 1, atol=1e-6)


def test_products_with_a_pattern_are_one_for_each_color():
    """A chain has three colours: three products for a Hessian, and one more for each check, at both ends."""
    result = ng.minimize(rosen, np.full(40, 2.0), jac=rosen_der, hessp=rosen_hess_prod, hess_sparsity=chain(40))
    assert result.nhvp <= 3 * (result.nit + 5) + 2


@pytest.mark.parametrize("structure", [ng.Dense(), ng.Lower(1), ng.SparseCholesky(chain(20))])
def test_calls_of_a_torch_function_are_counted(structure):
    fun = counted(FUNCTIONS["rosenbrock"].value)
    result = ng.minimize(fun, torch.full((20,), 2.0, dtype=F64), structure=structure)
    assert result.nfev == fun.n
    assert result.nit < result.njev <= result.nfev
    assert result.nhvp > 0


def test_hessian_products_of_lower_with_a_diagonal_are_k_a_step():
    problem = FUNCTIONS["broyden-banded"]
    result = ng.minimize(
        problem.value,
        problem.start(50),
        structure=ng.Lower(3),
        hess_diag=lambda x: torch.func.hessian(problem.value)(x).diagonal(),
    )
    assert result.success
    assert result.nhvp <= 3 * (result.nit + 1)


def test_a_torch_function_may_start_at_an_array():
    problem = FUNCTIONS["broyden-banded"]
    for p in (20, 60):
        result = ng.minimize(problem.value, problem.start(p).numpy())
        assert result.success
        assert isinstance(result.x, np.ndarray)
        np.testing.assert_allclose(result.x, ng.minimize(problem.value, problem.start(p)).x.numpy(), atol=1e-9)


def test_torch_functions_with_derivatives_of_their_own():
    problem = FUNCTIONS["extended-rosenbrock"]
    x0, value = problem.start(20), problem.value
    gradient, hessian = torch.func.grad(value), torch.func.hessian(value)
    plain = ng.minimize(value, x0)
    for options in (
        {"jac": gradient},
        {"jac": gradient, "hess": hessian},
        {"jac": gradient, "hessp": lambda x, v: hessian(x) @ v},
        {"hess": hessian},
        {"hessp": lambda x, v: hessian(x) @ v},
    ):
        result = ng.minimize(value, x0, **options)
        assert result.success
        oracle.close(result.x, plain.x)


def test_args_go_to_every_function():
    def f(x, a, b):
        return a * ((x - b) ** 2).sum()

    a, b = 2.0, 3.0
    result = ng.minimize(f, torch.zeros(3, dtype=F64), args=(a, b))
    oracle.close(result.x, torch.full((3,), b))
    result = ng.minimize(f, torch.zeros(40, dtype=F64), args=(a, b))  # with the sparsity detected
    oracle.close(result.x, torch.full((40,), b))
    for options in (
        {"hess": lambda x, a, b: 2 * a * np.eye(len(x))},
        {"hessp": lambda x, v, a, b: 2 * a * v},
        {"hessp": lambda x, v, a, b: 2 * a * v, "structure": ng.Lower(1), "hess_diag": lambda x, a, b: 0 * x + 2 * a},
    ):
        result = ng.minimize(f, np.zeros(3), args=(a, b), jac=lambda x, a, b: 2 * a * (x - b), **options)
        assert result.success
        np.testing.assert_allclose(result.x, b)


# ---- conjugate gradients


def test_conjugate_gradients_with_a_diagonal_preconditioner():
    """Newton's steps to a forced accuracy, where the Hessian fits no structure: a few steps, not hundreds."""
    p = 60
    H = definite(p, 1e4, 3)
    function = quadratic(H, normal(p))
    x0 = torch.zeros(p, dtype=F64)
    result = ng.minimize(function, x0, structure=ng.Diagonal(), cg_steps=2 * p)
    assert solved(result, float(function(x0)))
    assert result.nit <= 10
    plain = ng.minimize(function, x0, structure=ng.Diagonal(), maxiter=50)
    assert plain.fun > result.fun


def test_zero_cg_steps_are_the_plain_method():
    problem = FUNCTIONS["broyden-banded"]
    plain, zero = (
        path_of(problem.value, problem.start(30), structure=ng.Lower(2), **options) for options in ({}, {"cg_steps": 0})
    )
    assert len(plain) == len(zero)
    assert all(torch.equal(a, b) for a, b in zip(plain, zero, strict=True))


@pytest.mark.parametrize("name", ["variably-dimensioned", "trigonometric", "penalty"])
def test_large_dense_hessians_go_to_conjugate_gradients(name):
    problem = FUNCTIONS[name]
    result = ng.minimize(problem.value, problem.start(300))
    assert result.success
    assert result.nhvp < 40 * (result.nit + 1)
    if name != "trigonometric":
        assert result.fun <= problem.minimum(300) + 1e-6


# ---- stochastic functions


class Noisy:
    """A quadratic whose gradient carries new noise, of standard deviation sigma, in every call."""

    def __init__(self, sigma: float, seed: int, p: int = 6):
        self.H, self.minimizer, self.p = definite(p, 30.0, 1), normal(p, seed=2), p
        self.sigma, self.random, self.seen = sigma, oracle.generator(seed), []

    def __call__(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach().clone())
        noise = self.sigma * torch.randn(self.p, dtype=F64, generator=self.random)
        return quadratic(self.H, self.minimizer)(x) + noise @ x

    def excess(self, x: Tensor) -> float:
        return float(quadratic(self.H, self.minimizer)(x))

    def run(self, **options):
        return ng.minimize(self, torch.zeros(self.p, dtype=F64), mode="stochastic", **options)


@pytest.mark.parametrize("structure", ["auto", ng.Dense(), ng.Lower(2)])
def test_averages_come_within_the_statistical_error(structure):
    """n noisy gradients leave f at least sigma^2 tr(H^-1) / 2n above its minimum on average; we allow ten times that
    to the mean of six runs. The last iterates are worse than the averages."""
    n, sigma = 300, 0.5
    averages, lasts = [], []
    for seed in range(6):
        noisy = Noisy(sigma, seed)
        result = noisy.run(structure=structure, maxiter=n)
        assert result.nit == n
        averages.append(noisy.excess(result.x))
        lasts.append(noisy.excess(noisy.seen[-2]))  # the last call is the one at the average
    least = sigma**2 * float(torch.linalg.inv(noisy.H).trace()) / (2 * n)
    assert np.mean(averages) < 10 * least
    assert np.mean(averages) < np.mean(lasts)


@pytest.mark.parametrize("structure", ["auto", ng.Lower(2)])
def test_stochastic_runs_without_noise_reach_the_minimum(structure):
    noisy = Noisy(0.0, 0)
    result = noisy.run(structure=structure, maxiter=1000)
    assert noisy.excess(result.x) < 1e-3 * noisy.excess(torch.zeros(6, dtype=F64))
    assert result.nit == 1000 or result.success


def test_stochastic_runs_repeat_with_the_noise():
    first, second, third = (Noisy(0.3, seed).run(maxiter=50).x for seed in (0, 0, 1))
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_stochastic_runs_say_that_they_cannot_tell():
    result = Noisy(0.3, 0).run(maxiter=50)
    assert "50 iterations" in result.message
    assert "noise" in result.message


def test_the_callback_of_a_stochastic_run_sees_the_average():
    noisy, shown = Noisy(0.3, 0), []
    result = noisy.run(maxiter=20, callback=lambda x: shown.append(x))
    assert len(shown) == 20
    assert torch.equal(shown[-1], result.x)
