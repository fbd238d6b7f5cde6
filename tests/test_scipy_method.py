"""`scipy_method` inside scipy.optimize: the protocol of custom methods."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy.optimize
from scipy.optimize import (
    Bounds,
    LinearConstraint,
    basinhopping,
    minimize,
    rosen,
    rosen_der,
    rosen_hess,
    rosen_hess_prod,
)
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, aslinearoperator

import natgrad as ng
from natgrad.experiments.structures import chain

x0 = np.linspace(1.5, 2.5, 40)


def counted(function):
    def calls(*args):
        calls.n += 1
        return function(*args)

    calls.n = 0
    return calls


def by_us(fun=rosen, x0=x0, *, jac=rosen_der, **options):
    if "hess" not in options and "hessp" not in options:
        options["hessp"] = rosen_hess_prod
    return minimize(fun, x0, jac=jac, method=ng.scipy_method, **options)


@pytest.mark.parametrize(
    "derivatives",
    [
        {"hess": rosen_hess},
        {"hess": lambda x: csr_array(rosen_hess(x))},
        {"hess": lambda x: aslinearoperator(rosen_hess(x))},
        {"hessp": rosen_hess_prod},
    ],
    ids=["dense", "csr", "LinearOperator", "products"],
)
def test_the_minimum_is_found_with_the_derivatives_that_scipy_takes(derivatives):
    result = by_us(**derivatives)
    assert result.success
    np.testing.assert_allclose(result.x, 1, atol=1e-6)
    theirs = minimize(rosen, x0, jac=rosen_der, hessp=rosen_hess_prod, method="trust-ncg", options={"gtol": 1e-8})
    np.testing.assert_allclose(result.x, theirs.x, atol=1e-6)


def test_it_is_minimize():
    here = by_us(options={"maxiter": 5, "hess_sparsity": chain(40)})
    there = ng.minimize(rosen, x0, jac=rosen_der, hessp=rosen_hess_prod, maxiter=5, hess_sparsity=chain(40))
    np.testing.assert_array_equal(here.x, there.x)
    assert (here.nit, here.nfev, here.njev, here.nhvp) == (there.nit, there.nfev, there.njev, there.nhvp)


def test_every_field_of_scipys_methods_is_there():
    """Those that BFGS and trust-ncg give."""
    result = by_us(hess=rosen_hess)
    assert isinstance(result, scipy.optimize.OptimizeResult)
    for theirs in (
        minimize(rosen, np.full(3, 2.0), jac=rosen_der, method="BFGS"),
        minimize(rosen, np.full(3, 2.0), jac=rosen_der, hess=rosen_hess, method="trust-ncg"),
    ):
        assert set(theirs) - {"hess"} <= set(result)
    for name in ("status", "nit", "nfev", "njev", "nhev"):
        assert isinstance(result[name], int)
    assert isinstance(result.hess_inv, LinearOperator)
    np.testing.assert_allclose(result.hess_inv @ (rosen_hess(result.x) @ x0), x0, rtol=1e-6)
    np.testing.assert_array_equal(result.jac, rosen_der(result.x))
    assert result.fun == rosen(result.x)


def test_args_reach_every_function():
    def fun(x, a, b):
        return float(a * ((x - b) ** 2).sum())

    for derivatives in (
        {"hess": lambda x, a, b: 2 * a * np.eye(len(x))},
        {"hessp": lambda x, v, a, b: 2 * a * v},
    ):
        result = by_us(fun, np.zeros(3), args=(2.0, 3.0), jac=lambda x, a, b: 2 * a * (x - b), **derivatives)
        assert result.success
        np.testing.assert_allclose(result.x, 3.0)
    one = minimize(
        lambda x, b: float(((x - b) ** 2).sum()),
        np.zeros(3),
        args=5.0,  # SciPy makes it a tuple
        jac=lambda x, b: 2 * (x - b),
        hessp=lambda x, v, b: 2 * v,
        method=ng.scipy_method,
    )
    np.testing.assert_allclose(one.x, 5.0)


def test_jac_true_costs_one_evaluation_a_point():
    fun = counted(lambda x: (rosen(x), rosen_der(x)))
    result = by_us(fun, jac=True, hess=rosen_hess)
    assert result.success
    plain = counted(rosen)
    assert result.nit == by_us(plain, hess=rosen_hess).nit
    assert fun.n == plain.n == result.nfev


def test_counts_are_those_of_the_users_functions():
    fun, jac, hessp = counted(rosen), counted(rosen_der), counted(rosen_hess_prod)
    result = by_us(fun, jac=jac, hessp=hessp)
    assert (result.nfev, result.njev, result.nhvp) == (fun.n, jac.n, hessp.n)
    hess = counted(rosen_hess)
    assert by_us(hess=hess).nhev == hess.n


def test_tol_is_gtol():
    loose, tight = by_us(tol=1e-1), by_us(tol=1e-9)
    assert loose.success
    assert tight.success
    assert loose.nit < tight.nit
    assert np.abs(loose.jac).max() <= 1e-1
    assert np.abs(tight.jac).max() <= 1e-9
    assert loose.nit == by_us(options={"gtol": 1e-1}).nit
    both = by_us(tol=1e-1, options={"gtol": 1e-9})  # the option speaks of one method, tol of all
    assert both.nit == tight.nit


def test_options_are_the_arguments_of_minimize(capsys):
    limited = by_us(options={"maxiter": 2})
    assert (limited.nit, limited.success, limited.status) == (2, False, 1)
    banded = by_us(options={"structure": ng.SparseCholesky(chain(40)), "disp": True})
    assert banded.success
    assert isinstance(banded.precision.structure, ng.SparseCholesky)
    assert "SparseCholesky" in capsys.readouterr().out
    paper = by_us(options={"mode": "paper", "structure": ng.Lower(1), "beta": 0.1, "maxiter": 3})
    assert paper.nit == 3
    assert by_us(options={"cg_steps": 30, "structure": ng.Diagonal()}).success


def test_options_are_left_as_they_are():
    options = {"maxiter": 2, "gtol": 1e-3}
    by_us(options=options, tol=1e-2)
    assert options == {"maxiter": 2, "gtol": 1e-3}


def test_unknown_options_are_named():
    with pytest.raises(ValueError, match="unknown options eps, max_iter; natgrad knows ") as caught:
        by_us(options={"max_iter": 5, "eps": 1e-3})
    for known in ("maxiter", "gtol", "structure", "mode", "cg_steps", "hess_sparsity"):
        assert known in str(caught.value)
    assert "jac" not in str(caught.value).split("knows")[1]


@pytest.mark.parametrize(
    "limits",
    [
        {"bounds": [(0, 2)] * 40},
        {"bounds": Bounds(0, 2)},
        {"constraints": {"type": "eq", "fun": lambda x: x[0]}},
        {"constraints": [LinearConstraint(np.eye(40), 0, 1)]},
    ],
    ids=["bounds", "Bounds", "dict", "list"],
)
def test_bounds_and_constraints_are_refused(limits):
    with pytest.raises(ValueError, match="without bounds and constraints"):
        by_us(**limits)


def test_no_bounds_and_no_constraints_are_fine():
    assert by_us(bounds=None, constraints=()).success
    assert by_us(constraints=[]).success


@pytest.mark.parametrize("jac", [None, False, "2-point", "3-point"])
def test_differences_are_refused(jac):
    message = "fun takes NumPy arrays, so its derivatives must be given: jac is missing"
    with pytest.raises(ValueError, match=re.escape(message)):
        by_us(jac=jac)


def test_missing_products_are_asked_for():
    with pytest.raises(ValueError, match="hessp is missing"):
        minimize(rosen, x0, jac=rosen_der, method=ng.scipy_method)


def test_a_torch_function_needs_no_derivatives():
    result = minimize(lambda x: ((x - 1) ** 2).sum(), np.zeros(3), method=ng.scipy_method)
    assert result.success
    np.testing.assert_allclose(result.x, 1)


def test_callbacks_of_both_kinds():
    seen, results = [], []

    def take(intermediate_result):
        results.append(intermediate_result)

    by_x, by_result = by_us(callback=seen.append), by_us(callback=take)
    assert len(seen) == by_x.nit
    assert len(results) == by_result.nit == by_x.nit
    np.testing.assert_array_equal(seen[-1], by_x.x)
    for x, result in zip(seen, results, strict=True):
        assert isinstance(result, scipy.optimize.OptimizeResult)
        np.testing.assert_array_equal(x, result.x)
        assert result.fun == rosen(x)


def test_stop_iteration_ends_the_run_with_status_99():
    shown = []

    def stop(intermediate_result):
        shown.append(intermediate_result)
        if len(shown) == 2:
            raise StopIteration

    result = by_us(callback=stop)
    assert result.status == 99
    assert not result.success
    assert result.nit == 2
    np.testing.assert_array_equal(result.x, shown[-1].x)
    theirs = minimize(
        rosen, x0, jac=rosen_der, hessp=rosen_hess_prod, method="trust-ncg", callback=lambda x: next(iter(()))
    )
    assert (result.status, result.message) == (theirs.status, theirs.message)


def test_what_a_callback_raises_comes_through():
    def broken(x):
        raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        by_us(callback=broken)


def test_integers_and_numbers_as_x0():
    """SciPy makes them arrays of floats."""
    for start in ([2, 3, 4], np.array([2, 3, 4]), (2.0, 3.0, 4.0)):
        np.testing.assert_allclose(by_us(x0=start, hess=rosen_hess).x, 1, atol=1e-6)
    one = minimize(
        lambda x: float((x[0] - 1) ** 2),
        5,
        jac=lambda x: 2 * (x - 1),
        hess=lambda x: 2 * np.eye(1),
        method=ng.scipy_method,
    )
    np.testing.assert_allclose(one.x, [1.0])


def test_inside_basinhopping():
    """x^2 with waves: many minima, the least at 0."""

    def fun(x):
        return float((x**2 + 10 * (1 - np.cos(3 * x))).sum())

    options = {
        "method": ng.scipy_method,
        "jac": lambda x: 2 * x + 30 * np.sin(3 * x),
        "hess": lambda x: np.diag(2 + 90 * np.cos(3 * x)),
    }
    result = basinhopping(fun, np.array([4.0, -6.0]), minimizer_kwargs=options, niter=60, stepsize=2.5, rng=0)
    assert result.lowest_optimization_result.success
    assert result.minimization_failures == 0
    np.testing.assert_allclose(result.x, 0, atol=1e-7)
