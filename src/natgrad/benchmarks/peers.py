"""Minimisers side by side: each runs until the gradient is small, its time is over, or it gives up by itself.

All of them see the same torch function, and derivatives of it by the same operations: the gradient with the value in
one call, Hessian products on the graph that the gradient has left. The check of the gradient is the same too, and
stops a run at once: no method pays for a stopping rule that is stricter than another's.
"""

from __future__ import annotations

import time
import warnings
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.optimize
import torch
from torch import Tensor

import natgrad as ng

Function = Callable[[Tensor], Tensor]
GRADIENT = 1e-6  # solved: max |gradient| <= GRADIENT min(1, max |gradient at the start|)
UNLIMITED = 10**9


@dataclass
class Run:
    """What one method did on one function from one start."""

    solved: bool = False
    seconds: float = 0.0
    value: float = float("nan")  # the last one, or that at the solution
    iterations: int = 0
    values: int = 0  # evaluations of the function
    gradients: int = 0
    products: int = 0  # of the Hessian with vectors
    ending: str = ""

    def row(self) -> dict[str, Any]:
        return {**asdict(self), "seconds": round(self.seconds, 5), "value": float(f"{self.value:.9e}")}


class Over(Exception):  # noqa: N818
    """The gradient is small enough, or the time is over."""


class Oracle:
    """The function for NumPy methods, watched."""

    def __init__(self, function: Function, x0: Tensor, limit: float, products: bool = False):
        self.function, self.run, self.limit, self.products = function, Run(), limit, products
        leaf = x0.clone().requires_grad_()
        start = torch.autograd.grad(function(leaf), leaf)[0].abs().max().item()
        self.target = GRADIENT * min(1.0, start)
        self.graphs: deque[tuple[np.ndarray, Tensor, Tensor]] = deque(maxlen=2)  # a refused step goes back to the first
        self.began = time.perf_counter()

    def value_and_gradient(self, x: np.ndarray) -> tuple[float, np.ndarray]:
        value, g = self._evaluate(x)
        self.seen(value.item(), g)
        return value.item(), g.numpy()

    def product(self, x: np.ndarray, v: np.ndarray) -> np.ndarray:
        if not any(np.array_equal(at, x) for at, _, _ in self.graphs):
            self._evaluate(x)
        leaf, g = next((leaf, g) for at, leaf, g in self.graphs if np.array_equal(at, x))
        self.run.products += 1
        Hv = torch.autograd.grad(g, leaf, torch.as_tensor(v), retain_graph=True, materialize_grads=True)[0]
        if self._elapsed() > self.limit:
            raise Over
        return Hv.numpy()

    def seen(self, value: float, g: Tensor) -> None:
        """One evaluation more."""
        self.run.values += 1
        self.run.gradients += 1
        self.reached(value, g)

    def reached(self, value: float, g: Tensor) -> None:
        self.run.value, size = value, g.abs().max().item()
        self.run.solved = size <= self.target
        if self.run.solved or self._elapsed() > self.limit:
            raise Over

    def _elapsed(self) -> float:
        self.run.seconds = time.perf_counter() - self.began
        return self.run.seconds

    def _evaluate(self, x: np.ndarray) -> tuple[Tensor, Tensor]:
        leaf = torch.tensor(x, requires_grad=True)
        value = self.function(leaf)
        (g,) = torch.autograd.grad(value, leaf, create_graph=self.products)
        if self.products:
            self.graphs.append((x.copy(), leaf, g))
        return value.detach(), g.detach()


def natgrad(function: Function, x0: Tensor, oracle: Oracle) -> str:
    """`ng.minimize` without any option: finding the sparsity counts into its time."""
    run = oracle.run

    def follow(intermediate_result: Any) -> None:
        run.iterations += 1
        try:
            oracle.reached(intermediate_result.fun, intermediate_result.jac)
        except Over:
            raise StopIteration from None

    result = ng.minimize(function, x0, callback=follow, maxiter=UNLIMITED)
    run.value, run.values, run.gradients, run.products = result.fun, result.nfev, result.njev, result.nhvp
    if result.status == 0:  # at a start that is a solution there is no callback
        run.solved = bool(result.jac.abs().max() <= oracle.target)
    return "" if result.status == 99 else result.message


def scipy_minimizer(method: str, **options: Any) -> Callable[[Function, Tensor, Oracle], str]:
    def minimize(function: Function, x0: Tensor, oracle: Oracle) -> str:
        def follow(_: Any) -> None:
            oracle.run.iterations += 1

        products = {"hessp": oracle.product} if oracle.products else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            result = scipy.optimize.minimize(
                oracle.value_and_gradient,
                x0.numpy(),
                jac=True,
                method=method,
                callback=follow,
                options={"maxiter": UNLIMITED, **options},
                **products,
            )
        return str(result.message)

    return minimize


def torch_lbfgs(function: Function, x0: Tensor, oracle: Oracle) -> str:
    x = x0.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [x], max_iter=UNLIMITED, max_eval=UNLIMITED, tolerance_grad=0.0, tolerance_change=0.0,
        history_size=10, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = function(x)
        value.backward()
        assert x.grad is not None
        oracle.run.iterations = next(iter(optimizer.state.values()))["n_iter"] if optimizer.state else 0
        oracle.seen(value.item(), x.grad)
        return value

    optimizer.step(closure)
    return "stopped by itself"


METHODS: dict[str, Callable[[Function, Tensor, Oracle], str]] = {
    "natgrad": natgrad,
    "BFGS": scipy_minimizer("BFGS", gtol=0.0),
    "L-BFGS-B": scipy_minimizer("L-BFGS-B", gtol=0.0, ftol=0.0, maxfun=UNLIMITED),
    "Newton-CG": scipy_minimizer("Newton-CG", xtol=0.0),
    "trust-ncg": scipy_minimizer("trust-ncg", gtol=0.0),
    "trust-krylov": scipy_minimizer("trust-krylov", gtol=0.0),
    "torch LBFGS": torch_lbfgs,
}
WITH_PRODUCTS = ("Newton-CG", "trust-ncg", "trust-krylov")
LARGEST = {"BFGS": 1_000}  # variables; beyond that its dense matrix is no choice


def measure(method: str, function: Function, x0: Tensor, limit: float) -> Run:
    oracle = Oracle(function, x0, limit, method in WITH_PRODUCTS)
    oracle.began = time.perf_counter()
    try:
        oracle.run.ending = METHODS[method](function, x0, oracle)
    except Over:
        oracle.run.ending = ""
    except (ArithmeticError, np.linalg.LinAlgError, ValueError) as error:
        oracle.run.ending = f"{type(error).__name__}: {error}"
    oracle.run.seconds = time.perf_counter() - oracle.began
    return oracle.run
