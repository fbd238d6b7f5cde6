"""How runs end: at saddles, at rounding errors, from awkward starts and with awkward functions of the user."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.optimize as so
import scipy.sparse as sp
import torch

import natgrad as ng
from natgrad.experiments.functions import FUNCTIONS

F64 = torch.float64


def wells(x):
    """Pairs with saddles at 0 and minima -1/4 at (0, +- 1 / sqrt 2)."""
    a, b = x.reshape(-1, 2).T
    return (a**2 - b**2 + b**4).sum()


# ---- saddles


@pytest.mark.parametrize("p", [2, 4, 60, 400])
def test_every_pair_leaves_its_saddle(p):
    result = ng.minimize(wells, torch.zeros(p, dtype=F64))
    assert result.success
    assert result.fun == pytest.approx(-p / 8, rel=1e-12)


@pytest.mark.parametrize("structure", [ng.Lower(1), ng.Diagonal(), ng.Dense()])
def test_a_saddle_at_the_start_is_left_with_any_structure(structure):
    result = ng.minimize(wells, torch.zeros(2, dtype=F64), structure=structure)
    assert result.fun == pytest.approx(-0.25)


def test_a_saddle_at_the_start_is_left_by_conjugate_gradients():
    result = ng.minimize(lambda x: wells(x) + 0.1 * x.sum() ** 2, torch.zeros(120, dtype=F64))
    assert result.fun < -5


@pytest.mark.parametrize("p", [25, 64])
def test_the_lattice_leaves_zero(p):
    problem = FUNCTIONS["phi4"]
    result = ng.minimize(problem.value, torch.zeros(p, dtype=F64))
    assert result.success
    assert torch.linalg.eigvalsh(torch.func.hessian(problem.value)(result.x))[0] > -1e-8


# ---- rounding


RESTARTED = ["dixon-price", "chained-wood", "broyden-tridiagonal", "broyden-banded", "boundary-value", "arwhead"]


@pytest.mark.parametrize("name", RESTARTED)
def test_a_run_started_where_another_ended_is_a_success(name):
    problem = FUNCTIONS[name]
    first = ng.minimize(problem.value, problem.start(30))
    second = ng.minimize(problem.value, first.x)
    assert first.success
    assert second.success
    assert second.fun <= first.fun + 1e-14


def test_started_at_the_minimum():
    problem = FUNCTIONS["dixon-price"]
    result = ng.minimize(problem.value, problem.minimizer(30))
    assert result.success
    assert result.fun < 1e-30


@pytest.mark.parametrize("name", ["broyden-tridiagonal", "dixon-price", "broyden-banded", "arwhead", "wood"])
def test_float32_is_a_success_at_its_own_rounding_level(name):
    problem = FUNCTIONS[name]
    result = ng.minimize(problem.value, problem.start(20).float())
    assert result.success, result.message
    assert result.fun - problem.minimum(20) < 1e-5


@pytest.mark.parametrize("scale", [1e200, 1.0, 1e-200])
def test_conjugate_gradients_do_not_see_the_scale(scale):
    problem = FUNCTIONS["trigonometric"]
    result = ng.minimize(lambda x: scale * problem.value(x), problem.start(150))
    assert result.success
    assert result.nit < 40
    assert result.fun < 2e-6 * scale


@pytest.mark.parametrize("scale", [1e250, 1e-250])
def test_sparse_problems_do_not_see_the_scale(scale):
    problem = FUNCTIONS["extended-rosenbrock"]
    result = ng.minimize(lambda x: scale * problem.value(x), problem.start(150))
    assert result.success, result.message
    assert result.fun < 1e-9 * scale


# ---- ftol


def test_a_step_that_did_not_move_is_no_convergence():
    result = ng.minimize(
        lambda x: float(((x - 1) ** 2).sum()),
        np.zeros(4),
        jac=lambda x: -2 * (x - 1),
        hessp=lambda x, v: 2 * v,
        structure=ng.Lower(1),
        ftol=1e-8,
    )
    assert not result.success


# ---- arrays of the user


def test_functions_may_reuse_their_buffers():
    gradient, product = np.empty(6), np.empty(6)

    def jac(x):
        gradient[:] = so.rosen_der(x)
        return gradient

    def hessp(x, v):
        product[:] = so.rosen_hess_prod(x, v)
        return product

    for seed in range(10):
        x0 = 3 * np.random.default_rng(seed).standard_normal(6)
        plain = ng.minimize(so.rosen, x0, jac=so.rosen_der, hessp=so.rosen_hess_prod)
        reused = ng.minimize(so.rosen, x0, jac=jac, hessp=hessp)
        np.testing.assert_array_equal(plain.x, reused.x)


def test_arrays_may_be_read_only_or_reversed():
    def jac(x):
        g = so.rosen_der(x)
        g.flags.writeable = False
        return g

    result = ng.minimize(so.rosen, np.zeros(5), jac=jac, hess=lambda x: so.rosen_hess(x[::-1])[::-1, ::-1].T)
    assert result.nit > 0
    result = ng.minimize(so.rosen, np.zeros(5), jac=jac, hess=so.rosen_hess)
    assert result.success


def test_a_sparse_hess_may_store_zeros_at_x0():
    def hess(x):
        below = -400 * x[:-1]
        middle = np.r_[1200 * x[:-1] ** 2 - 400 * x[1:] + 2, 0] + np.r_[0, np.full(len(x) - 1, 200.0)]
        return sp.diags_array([below, middle, below], offsets=[-1, 0, 1], format="csr")

    result = ng.minimize(so.rosen, np.zeros(10), jac=so.rosen_der, hess=hess)
    assert result.success
    assert result.fun < 1e-12


# ---- errors of the user's own, and what each mode takes


def test_an_error_in_fun_is_told_as_it_is():
    def fun(x):
        raise RuntimeError("the simulator is down")

    with pytest.raises(RuntimeError, match="the simulator is down"):
        ng.minimize(fun, np.zeros(3))


@pytest.mark.parametrize("mode", ["paper", "stochastic"])
def test_modes_without_conjugate_gradients_find_a_structure_too(mode):
    problem = FUNCTIONS["penalty"]
    result = ng.minimize(problem.value, problem.start(150), mode=mode, beta=0.1, maxiter=5)
    assert result.nit == 5
    assert result.precision.structure == ng.Lower(2)


def test_functions_with_branches_are_minimised_without_their_sparsity():
    def fun(x):
        return (x**2).sum() if x[0] > 0 else ((x - 1) ** 2).sum()

    result = ng.minimize(fun, torch.full((50,), 3.0, dtype=F64))
    assert result.success
    assert result.fun < 1e-20


def test_tiny_constants_leave_their_entries_in_the_sparsity():
    pattern = ng.hessian_sparsity(lambda x: 1e-60 * x[0] * x[1], torch.ones(2, dtype=F64))
    assert pattern.nnz == 4


@pytest.mark.parametrize(
    ("precision", "message"),
    [
        (np.eye(3), "precision must be an element"),
        (ng.Lower(1).identity(4, dtype=F64), "precision must be 3 x 3"),
        (ng.Lower(1).identity(3, dtype=F64, batch=(2,)), "precision must be 3 x 3"),
        (ng.Lower(1).identity(3, dtype=torch.float32), "precision must be 3 x 3"),
        (ng.Dense().identity(3, dtype=F64), "precision must be an element of structure="),
    ],
)
def test_a_precision_that_does_not_fit_is_refused(precision, message):
    with pytest.raises(ValueError, match=message):
        ng.minimize(lambda x: (x**2).sum(), torch.ones(3, dtype=F64), structure=ng.Lower(1), precision=precision)


def test_a_run_goes_on_with_the_precision_of_the_last():
    problem = FUNCTIONS["powell"]
    first = ng.minimize(problem.value, problem.start(40), structure=ng.Lower(2), maxiter=20)
    again = ng.minimize(problem.value, first.x, precision=first.precision, maxiter=20)
    assert again.precision.structure == ng.Lower(2)
    assert again.fun < first.fun


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ng.minimize(lambda x: x.sum(), torch.zeros(0, dtype=F64)), "at least one number"),
        (lambda: ng.minimize(lambda x: x, {}), "x0 must hold tensors"),
        (lambda: ng.minimize(lambda x: None, np.zeros(2), jac=np.cos, hess=np.cos), "one real number, got NoneType"),
        (lambda: ng.minimize(lambda x: "1", torch.zeros(2)), "one real number, got str"),
        (lambda: ng.minimize(lambda x: 1.0, torch.zeros(2)), "does not depend on x"),
        (lambda: ng.minimize(lambda x: 1.0, np.zeros(2), jac=True, hess=np.cos), "must return \\(value, gradient\\)"),
        (lambda: ng.minimize(torch.sum, torch.zeros(2), jac=lambda x: np.zeros(2)), "jac must return tensors"),
        (lambda: ng.minimize(np.sum, np.zeros(2), jac=np.cos, hess=lambda x: None), "matrix of real numbers"),
        (lambda: ng.minimize(np.sum, np.zeros(2), jac=np.cos, hess=lambda x: np.eye(2) * 1j), "matrix of real numbers"),
        (
            lambda: ng.minimize(lambda x: (x**2).sum(), torch.zeros(2), structure=ng.SparseCholesky(np.eye(3))),
            "made for 3 variables, x0 has 2",
        ),
        (lambda: ng.minimize(torch.sum, torch.zeros(2), seed="a"), "seed must be"),
        (lambda: ng.minimize(torch.sum, torch.zeros(2), mode=["paper"]), "mode must be one of"),
        (
            lambda: so.minimize(
                so.rosen, np.zeros(3), jac=so.rosen_der, hess=so.rosen_hess, method=ng.scipy_method,
                constraints=so.LinearConstraint(np.eye(3), 0, 1),
            ),
            "without bounds and constraints",
        ),
    ],
)  # fmt: skip
def test_awkward_arguments_are_refused_with_a_reason(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# ---- indefinite Hessians, and S that is far too large


@pytest.mark.parametrize("p", [4, 10, 40, 100, 1000])
def test_coordinates_on_saddles_do_not_hold_up_the_others(p):
    def function(x):
        return (1e-3 * (x[: p // 2] - 5) ** 2).sum() + ((x[p // 2 :] ** 2 - 1) ** 2).sum()

    result = ng.minimize(function, torch.zeros(p, dtype=F64))
    assert result.success
    assert result.fun < 1e-12
    assert result.nit < 100 or p == 1000


@pytest.mark.parametrize("rates", [{"beta": 0.3}, {"beta": 0.5}, {"gamma": 0.5}])
def test_saddles_are_seen_at_any_rate(rates):
    result = ng.minimize(lambda x: x[0] ** 2 - 0.4 * x[1] ** 2 + x[1] ** 4, torch.zeros(2, dtype=F64), **rates)
    assert result.success
    assert result.fun == pytest.approx(-0.04)


def test_no_success_before_s_has_come_down():
    def function(x):
        return 5e11 * (x[0] - 1) ** 2 + 5e-7 * (x[1] - 1000) ** 2 + 1

    result = ng.minimize(function, torch.zeros(2, dtype=F64), structure=ng.Diagonal())
    assert result.success
    assert result.fun == pytest.approx(1, abs=1e-9)


def test_no_success_with_a_hessian_that_is_much_too_large():
    x0 = np.zeros(20)
    result = ng.minimize(so.rosen, x0, jac=so.rosen_der, hess=lambda x: 1e20 * np.eye(20), maxiter=50)
    assert not result.success


def test_a_minimum_with_a_flat_direction_is_not_left():
    result = ng.minimize(lambda x: 5 + x.sum() ** 2, torch.zeros(40, dtype=F64), structure=ng.Diagonal())
    assert result.success
    assert result.nit == 0
    assert not result.x.any()


def test_products_by_differences_are_good_enough_for_a_pattern():
    def hessp(x, v):
        return (so.rosen_der(x + 1e-7 * v) - so.rosen_der(x - 1e-7 * v)) / 2e-7

    chain = sp.diags_array([1.0, 1.0, 1.0], offsets=[-1, 0, 1], shape=(50, 50))
    with pytest.warns(RuntimeWarning, match="inexact, or not symmetric"):
        result = ng.minimize(so.rosen, np.zeros(50), jac=so.rosen_der, hessp=hessp, hess_sparsity=chain)
    assert result.success
    assert result.fun < 1e-12


# ---- functions that leave autograd


@pytest.mark.filterwarnings("ignore:Converting a tensor")
@pytest.mark.parametrize("x0", [np.array([1.0, 2.0]), torch.tensor([1.0, 2.0], dtype=F64)])
def test_a_function_half_in_numpy_is_refused(x0):
    with pytest.raises(ValueError, match="out of torch, by __float__"):
        ng.minimize(lambda x: (x**2).sum() + 10 * np.sin(float(x[0])), x0)


@pytest.mark.filterwarnings("ignore:Converting a tensor")
def test_a_function_may_print_what_it_sees():
    seen = []

    def function(x):
        value = ((x - 1) ** 2).sum()
        seen.append(value.item())
        return value

    result = ng.minimize(function, torch.zeros(3, dtype=F64))
    assert result.success
    assert len(seen) >= result.nfev


# ---- trees


def test_a_gradient_in_another_order_is_refused():
    x0 = {"a": torch.zeros(2), "b": torch.zeros(2)}
    with pytest.raises(ValueError, match="in the same tree"):
        ng.minimize(
            lambda t: (t["a"] ** 2 + t["b"]).sum(),
            x0,
            jac=lambda t: {"b": torch.ones(2), "a": 2 * t["a"]},
            structure=ng.Dense(),
        )


def test_a_precision_beyond_the_sparsity_is_refused():
    structure = ng.SparseCholesky(np.eye(40) + np.eye(40, k=1) + np.eye(40, k=-1))
    B = structure.identity(40, dtype=F64)
    v = torch.linspace(1, 2, 40, dtype=F64)
    B = B.retract(0.3 * B.project(v, v.flip(0)))
    with pytest.raises(ValueError, match="beyond the sparsity of the Hessian"):
        ng.minimize(FUNCTIONS["rosenbrock"].value, torch.zeros(40, dtype=F64), structure=structure, precision=B)


def test_stochastic_runs_have_no_tests_of_convergence():
    for option in ({"gtol": 1e-3}, {"ftol": 1e-3}):
        with pytest.raises(ValueError, match="pass maxiter"):
            ng.minimize(wells, torch.ones(2, dtype=F64), mode="stochastic", **option)
    assert not ng.minimize(wells, torch.ones(2, dtype=F64), mode="stochastic", maxiter=1).success


def test_the_diagonal_for_a_named_structure_comes_from_the_sparsity():
    problem = FUNCTIONS["rosenbrock"]  # no RuntimeWarning of an estimate, and few products
    result = ng.minimize(problem.value, problem.start(2000), structure=ng.Lower(1, 1), maxiter=10)
    assert result.nhvp <= 12 * 5
