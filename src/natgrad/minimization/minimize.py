"""The public functions: `minimize`, and `scipy_method` for scipy.optimize.minimize."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

from natgrad.groups import check
from natgrad.groups.base import Element, Structure
from natgrad.minimization.choose import plan, start
from natgrad.minimization.curvature import Isotropic
from natgrad.minimization.descent import Descent
from natgrad.minimization.exits import Exits
from natgrad.minimization.exits import check as check_derivative
from natgrad.minimization.layout import Layout
from natgrad.minimization.monitor import Monitor
from natgrad.minimization.objective import Objective
from natgrad.minimization.paper import Paper
from natgrad.minimization.result import Covariance, MinimizeResult
from natgrad.minimization.run import CONVERGED, NOT_FINITE, Limits, Outcome, is_finite, run
from natgrad.minimization.stochastic import Stochastic

RATES = {"linesearch": 1.0, "paper": 0.4, "stochastic": 0.5}  # beta, by mode


def minimize(
    fun: Callable[..., Any],
    x0: Any,
    *,
    args: tuple[Any, ...] = (),
    structure: Structure | str = "auto",
    jac: Callable[..., Any] | bool | None = None,
    hess: Callable[..., Any] | None = None,
    hessp: Callable[..., Any] | None = None,
    hess_diag: Callable[..., Any] | None = None,
    hess_sparsity: Any = None,
    mode: str = "linesearch",
    beta: float | None = None,
    gamma: float = 1.0,
    cg_steps: int | None = None,
    precision: Element | None = None,
    maxiter: int | None = None,
    gtol: float | None = None,
    ftol: float = 0.0,
    seed: int = 0,
    callback: Callable[..., Any] | None = None,
    disp: bool = False,
) -> MinimizeResult:
    """Minimise a smooth function of many variables with a structured precision S = B B^T that follows its Hessian.

    >>> def rosen(x):
    ...     return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()
    >>> res = ng.minimize(rosen, torch.zeros(1000, dtype=torch.float64))
    >>> res.x, res.fun, res.nit, res.message

    x0: a torch tensor of any shape or a tree (dict, list, tuple) of tensors, for a function written in torch, whose
        derivatives come by themselves; or a NumPy array, with jac and hess or hessp as scipy.optimize.minimize takes
        them (hess may return a dense array, a SciPy sparse matrix or a LinearOperator), or with a torch function of a
        flat tensor.
    structure: where S lives. "auto" chooses (see natgrad.minimization.choose; disp=True prints the choice).
    hess_sparsity: the pattern of the Hessian, symmetric, p x p: with it the Hessian costs a few products and a sparse
        factorisation. hess_diag: a function of x, the exact diagonal of the Hessian, for Lower, Upper and Diagonal.
    mode: "linesearch" takes S from the curvature at x first, then a safeguarded step along -S^-1 gradient.
        "paper" is the paper's update with a fixed beta, without safeguards. "stochastic" is for functions that see
        another mini-batch in every call: no line search, decreasing rates, averages of S and x; pass maxiter.
    beta: the rate, 1 by default with the line search, 0.4 in paper mode, 0.5 at the start in stochastic mode.
    gamma: the temperature: S tends to the Hessian / gamma.
    cg_steps: solve H d = -gradient by so many steps of conjugate gradients with S as the preconditioner.
    precision: the element B to start from, of the structure's group; by default B B^T = max |H_ii| I. With "auto" its
        structure is taken, so that precision=res.precision goes on where a run has ended.
    gtol: stops at max |gradient| <= gtol min(1, the largest one so far), 1e-8 by default (never in stochastic mode).
    ftol: stops when an iteration lowers f by a share of no more than this; 0 leaves that test out.
        Whatever they are, a run also ends where no step can change f beyond its rounding errors.
    callback: called after each iteration as callback(intermediate_result=OptimizeResult) or callback(x), as SciPy
        does; StopIteration ends the run.

    Returns an OptimizeResult with x in the form of x0, `precision` (the final B), `nhvp` (the number of products with
    the Hessian) and `hess_inv` (S^-1, a LinearOperator). status: 0 converged, 1 maxiter, 2 no step helps, 3 not
    finite, 99 stopped by the callback. Where the function is NaN at x0 the result says so; it is no exception.
    """
    if not isinstance(mode, str) or mode not in RATES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, RATES))}, got {mode!r}")
    beta, gamma = _positive(RATES[mode] if beta is None else beta, "beta"), _positive(gamma, "gamma")
    if cg_steps is not None and check.count(cg_steps, "cg_steps") and mode != "linesearch":
        raise ValueError(f'cg_steps belongs to mode="linesearch", got mode={mode!r}')
    check.count(seed, "seed")
    if isinstance(precision, Element) and structure == "auto":
        structure = precision.structure
    layout = Layout(x0)
    if layout.p == 0:
        raise ValueError(f"x0 must hold at least one number, got {x0!r}")
    limits = _limits(mode, layout.p, maxiter, gtol, ftol)
    objective = Objective(layout, fun, args, jac, hess, hessp, hess_diag)
    monitor = Monitor(layout, callback, disp)
    with Exits() as exits:
        point = objective.at(layout.start)
    if not is_finite(point):
        what = "its gradient" if math.isfinite(point.value) else "f"
        return _result(
            Outcome(point, Isotropic(1.0, point.x), NOT_FINITE, f"{what} is not finite at x0"), objective, monitor
        )

    if exits.seen and objective.by_torch and objective.jac is None and mode != "stochastic":
        check_derivative(point, exits.seen)
    chosen = plan(structure, objective, point, hess_sparsity, mode, cg_steps)
    if disp:
        monitor.say(f"structure: {chosen}")
    unproved = None if chosen.proved or mode == "stochastic" else chosen.compressed
    if unproved is not None:
        unproved.check(point, seed)
    curvature = start(chosen, objective, point, precision, mode == "paper", seed)
    methods = {
        "linesearch": Descent(beta, gamma, chosen.cg_steps),
        "paper": Paper(beta, gamma),
        "stochastic": Stochastic(beta, gamma),
    }
    outcome = run(methods[mode], point, curvature, limits, monitor)
    if unproved is not None:
        unproved.check(outcome.point, seed)
    return _result(outcome, objective, monitor)


def scipy_method(
    fun: Callable[..., Any],
    x0: Any,
    args: tuple[Any, ...] = (),
    jac: Any = None,
    hess: Any = None,
    hessp: Any = None,
    bounds: Any = None,
    constraints: Any = (),
    callback: Callable[..., Any] | None = None,
    **options: Any,
) -> MinimizeResult:
    """`minimize` for scipy.optimize.minimize(fun, x0, jac=.., hessp=.., method=ng.scipy_method, options={..}).

    options are the keyword arguments of `minimize`; SciPy's tol is gtol.
    """
    if bounds is not None or not (constraints is None or (isinstance(constraints, (tuple, list)) and not constraints)):
        raise ValueError("natgrad minimises without bounds and constraints; leave them out, or take another method")
    tol = options.pop("tol", None)
    if tol is not None:
        options.setdefault("gtol", tol)
    unknown_ones = sorted(set(options) - OPTIONS)
    if unknown_ones:
        raise ValueError(f"unknown options {', '.join(unknown_ones)}; natgrad knows {', '.join(sorted(OPTIONS))}")
    return minimize(fun, x0, args=args, jac=jac, hess=hess, hessp=hessp, callback=callback, **options)


OPTIONS = set(inspect.signature(minimize).parameters) - set(inspect.signature(scipy_method).parameters)


def _limits(mode: str, p: int, maxiter: int | None, gtol: float | None, ftol: float) -> Limits:
    if maxiter is None:
        maxiter = 1000 if mode == "stochastic" else max(2000, 10 * p)
    if mode == "stochastic" and (gtol is not None or ftol):
        raise ValueError('gtol and ftol test for convergence, which noise hides: in mode="stochastic" pass maxiter')
    if gtol is None:
        gtol = 0.0 if mode == "stochastic" else 1e-8
    for value, name in ((gtol, "gtol"), (ftol, "ftol")):
        if check.number(value, name) < 0:
            raise ValueError(f"{name} must not be negative, got {value}")
    return Limits(check.count(maxiter, "maxiter"), float(gtol), float(ftol))


def _positive(value: Any, name: str) -> float:
    if check.number(value, name) <= 0:
        raise ValueError(f"{name} must be positive, got {value}")
    return float(value)


def _result(outcome: Outcome, objective: Objective, monitor: Monitor) -> MinimizeResult:
    point, curvature, layout = outcome.point, outcome.curvature, objective.layout
    monitor.say(outcome.message)
    return MinimizeResult(
        curvature,
        x=layout.user(point.x),
        fun=point.value,
        jac=layout.user(point.gradient()),
        success=outcome.status == CONVERGED,
        status=outcome.status,
        message=outcome.message,
        nit=monitor.nit,
        **vars(objective.counts),
        hess_inv=Covariance(curvature, point.x),
    )
