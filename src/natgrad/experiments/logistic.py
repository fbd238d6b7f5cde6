"""`natgrad reproduce logistic`: a finite sum seen through mini-batches.

l(x) = (1/n) sum_i log(1 + exp(-y_i a_i^T x)) + |x|^2 / (2n), with correlated features of very different scales. Every
call of the function draws another mini-batch. The loss that is shown is that of all examples, less its minimum.
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.optimize
import torch
from torch import Tensor
from torch.nn.functional import softplus

import natgrad as ng
from natgrad.experiments.curves import Curve, draw, progress, save, table
from natgrad.plots import BLUE, GREY, ORANGE, PALE, pyplot

EXAMPLES, FEATURES, BATCH, CONDITION = 50_000, 100, 500, 1e4
STYLES = {
    "stochastic, Dense": {"color": BLUE},
    "stochastic, Lower(5)": {"color": BLUE, "ls": "--"},
    "stochastic, Diagonal": {"color": PALE},
    "Adam": {"color": GREY},
    "SGD": {"color": GREY, "ls": "--"},
    "BFGS": {"color": ORANGE},
    "torch L-BFGS": {"color": ORANGE, "ls": "--"},
}
TARGETS = (1e-3, 1e-4, 1e-5)
Tick = Callable[[float], None]


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--epochs", type=int, default=10, help="passes over the examples (default 10)")


class Problem:
    def __init__(self, seed: int):
        random = np.random.default_rng(seed)
        scales = CONDITION ** (-np.arange(FEATURES) / (2 * FEATURES))  # of the features' covariance
        rotation = np.linalg.qr(random.standard_normal((FEATURES, FEATURES)))[0]
        A = random.standard_normal((EXAMPLES, FEATURES)) * scales @ rotation
        truth = rotation.T @ (random.standard_normal(FEATURES) / scales**0.5)
        probability = 1 / (1 + np.exp(-A @ truth))
        self.A = torch.tensor(A)
        self.y = torch.tensor(np.where(random.random(EXAMPLES) < probability, 1.0, -1.0))
        self.start = torch.zeros(FEATURES, dtype=torch.float64)
        self.minimum = ng.minimize(self.all, self.start, hess=lambda x: self.hessian(x, self.A), gtol=1e-10).fun
        self.seed = seed
        self.begin()

    def begin(self) -> None:
        """Every method sees the same mini-batches."""
        self.batches = torch.Generator().manual_seed(self.seed)

    def loss(self, x: Tensor, A: Tensor, y: Tensor) -> Tensor:
        return softplus(-y * (A @ x)).mean() + (x @ x) / (2 * EXAMPLES)

    def hessian(self, x: Tensor, A: Tensor) -> Tensor:
        """sum_i s_i (1 - s_i) a_i a_i^T / n + I / n, with s_i = sigmoid(a_i^T x) whatever y_i."""
        s = torch.sigmoid(A @ x)
        return (A.mT * (s * (1 - s))) @ A / len(A) + torch.eye(len(x), dtype=x.dtype) / EXAMPLES

    def all(self, x: Tensor) -> Tensor:
        return self.loss(x, self.A, self.y)

    def batch(self, x: Tensor) -> Tensor:
        """The loss of a mini-batch, another one in every call."""
        self.current = torch.randint(EXAMPLES, (BATCH,), generator=self.batches)
        return self.loss(x, self.A[self.current], self.y[self.current])

    def batch_hessian(self, x: Tensor) -> Tensor:
        """That of the mini-batch drawn last."""
        return self.hessian(x, self.A[self.current])

    def excess(self, x: Tensor) -> float:
        with torch.no_grad():
            return max(self.all(x).item() - self.minimum, 0.0)


class Watch:
    """Records the excess loss ten times in an epoch."""

    def __init__(self, problem: Problem, tick: Tick, note: str = ""):
        self.problem, self.tick, self.calls = problem, tick, 0
        problem.begin()
        self.curve = Curve("", [problem.excess(problem.start)], note=note)

    def __call__(self, x: Tensor) -> None:
        self.calls += 1
        if self.calls % max(1, EXAMPLES // BATCH // 10) == 0:
            with self.curve.pause():
                excess = self.problem.excess(x)
                self.tick(excess)
            self.curve.add(excess, self.calls * BATCH / EXAMPLES)


def stochastic(problem: Problem, structure: ng.Structure, beta: float, steps: int, tick: Tick) -> Curve:
    watch = Watch(problem, tick, f", beta {beta:g}")
    ng.minimize(
        problem.batch,
        problem.start,
        hess=problem.batch_hessian,
        structure=structure,
        mode="stochastic",
        beta=beta,
        maxiter=steps,
        callback=lambda intermediate_result: watch(intermediate_result.x),
    )
    return watch.curve


def first_order(make: Any, problem: Problem, lr: float, averaged: bool, steps: int, tick: Tick) -> Curve:
    """SGD or Adam with the decay and the average of the stochastic mode, or with a cosine decay and no average."""
    watch = Watch(problem, tick, f", step size {lr:.2g}, {'averaged' if averaged else 'cosine'}")
    x = problem.start.clone().requires_grad_()
    average = problem.start.clone()
    optimizer = make([x], lr=lr)
    cosine = lambda t: 0.5 * (1 + np.cos(np.pi * t / steps))  # noqa: E731
    decay = (lambda t: 1 / (1 + t / 10) ** 0.75) if averaged else cosine
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, decay)
    for t in range(steps):
        optimizer.zero_grad()
        problem.batch(x).backward()
        optimizer.step()
        schedule.step()
        average += 2 / (t + 2) * (x.detach() - average)
        watch(average if averaged else x.detach())
    return watch.curve


def bfgs(problem: Problem, steps: int, tick: Tick) -> Curve:
    """SciPy's BFGS on the noisy function, started again from where it stopped, until the budget is spent."""
    watch = Watch(problem, tick)
    x, best = problem.start.numpy(), problem.start

    def value_and_gradient(x: np.ndarray) -> tuple[float, np.ndarray]:
        if watch.calls >= steps:
            raise StopIteration
        leaf = torch.tensor(x, requires_grad=True)
        value = problem.batch(leaf)
        watch(best)
        return value.item(), torch.autograd.grad(value, leaf)[0].numpy()

    def follow(xk: np.ndarray) -> None:
        nonlocal best
        best = torch.tensor(xk)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        while watch.calls < steps:
            try:
                x = scipy.optimize.minimize(value_and_gradient, x, jac=True, method="BFGS", callback=follow).x
            except StopIteration:
                break
    return watch.curve


def lbfgs(problem: Problem, lr: float, steps: int, tick: Tick) -> Curve:
    """torch.optim.LBFGS, one iteration for each mini-batch."""
    watch = Watch(problem, tick, f", step size {lr:.2g}")
    x = problem.start.clone().requires_grad_()
    optimizer = torch.optim.LBFGS([x], lr=lr, max_iter=1)

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = problem.batch(x)
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)
        watch(x.detach())
    return watch.curve


def run(arguments: argparse.Namespace) -> int:
    if arguments.epochs < 1:
        raise ValueError(f"--epochs must be at least 1, got {arguments.epochs}")
    pyplot()
    problem = Problem(arguments.seed)
    steps = arguments.epochs * EXAMPLES // BATCH
    sgd, adam = torch.optim.SGD, torch.optim.Adam
    grid = [10.0**e for e in np.arange(-3, 2.1, 0.5)]
    methods: dict[str, list[Callable[[Tick], Curve]]] = {}
    for name, structure in (("Dense", ng.Dense()), ("Lower(5)", ng.Lower(5)), ("Diagonal", ng.Diagonal())):
        methods[f"stochastic, {name}"] = [
            lambda tick, s=structure, b=b: stochastic(problem, s, b, steps, tick) for b in (0.25, 0.5, 1.0)
        ]
    for name, make in (("Adam", adam), ("SGD", sgd)):
        methods[name] = [
            lambda tick, m=make, lr=lr, a=a: first_order(m, problem, lr, a, steps, tick)
            for lr in grid
            for a in (True, False)
        ]
    methods["BFGS"] = [lambda tick: bfgs(problem, steps, tick)]
    methods["torch L-BFGS"] = [
        lambda tick, lr=lr: lbfgs(problem, lr, steps, tick) for lr in (0.01, 0.03, 0.1, 0.3, 1.0)
    ]

    curves = []
    with progress() as bar:
        for name, variants in methods.items():
            task = bar.add_task(name, total=len(variants), loss="")
            tried = []
            for variant in variants:
                tried.append(variant(lambda loss, task=task: bar.update(task, loss=f"{loss:.2e}")))
                bar.advance(task)
            best = min(tried, key=lambda curve: (not np.isfinite(curve.losses[-1]), curve.losses[-1]))
            best.name = name
            bar.update(task, loss=f"{best.losses[-1]:.2e}")
            curves.append(best)

    about = {"examples": EXAMPLES, "features": FEATURES, "batch": BATCH, "condition": CONDITION, "seed": arguments.seed}
    save(curves, arguments.out / "logistic.json", **about)
    title = f"logistic regression, {EXAMPLES:,} examples, batches of {BATCH}"
    for x in ("epochs", "seconds"):
        path = arguments.out / f"logistic-{x}.png"
        draw(curves, path, x=x, y="loss less its minimum", title=title, floor=1e-8, styles=STYLES)
        print(f"wrote {path}")
    print(f"wrote {arguments.out / 'logistic.json'}; losses are those of all examples, less the minimum")
    table(curves, TARGETS, unit="epochs")
    return 0
