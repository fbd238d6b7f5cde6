"""The loop that all modes share: a method's steps, until something ends them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from natgrad.minimization.curvature import Curvature
from natgrad.minimization.monitor import Monitor
from natgrad.minimization.objective import Point

CONVERGED, LIMIT, STUCK, NOT_FINITE, STOPPED = 0, 1, 2, 3, 99


@dataclass(frozen=True)
class Limits:
    maxiter: int
    gtol: float
    ftol: float


@dataclass(frozen=True)
class Outcome:
    point: Point
    curvature: Curvature
    status: int
    message: str


class Ended(Exception):  # noqa: N818
    """Raised by a step after which there can be no other; the best point so far is the result unless one is given."""

    def __init__(self, status: int, message: str, point: Point | None = None, curvature: Curvature | None = None):
        self.status, self.message, self.point, self.curvature = status, message, point, curvature


class Method(ABC):
    at_limit: ClassVar = (LIMIT, "not converged after {} iterations (maxiter)")

    @abstractmethod
    def step(self, point: Point, curvature: Curvature) -> tuple[Point, Curvature]: ...

    def stationary(self, point: Point, curvature: Curvature) -> tuple[Point, Curvature]:
        """Called in place of `step` where the gradient is as small as gtol asks for."""
        message = f"converged: max |gradient| = {largest(point.gradient()):.2g}, within gtol"
        raise Ended(CONVERGED, message, point)

    def shown(self, point: Point) -> Tensor:
        """x as the callback sees it."""
        return point.x

    def answer(self, best: Point) -> Point:
        """The result where no test of convergence has chosen one."""
        return best


def run(method: Method, point: Point, curvature: Curvature, limits: Limits, monitor: Monitor) -> Outcome:
    best = point
    scale = 0.0  # of the gradient: the largest so far, up to 1
    while True:
        scale = max(scale, min(1.0, largest(point.gradient())))
        if monitor.nit >= limits.maxiter:
            status, message = method.at_limit
            return Outcome(method.answer(best), curvature, status, message.format(limits.maxiter))
        before = point
        try:
            if largest(point.gradient()) <= limits.gtol * scale:
                point, curvature = method.stationary(point, curvature)
            else:
                point, curvature = method.step(point, curvature)
        except Ended as end:
            return Outcome(end.point or method.answer(best), end.curvature or curvature, end.status, end.message)
        best = point if point.value <= best.value else best
        if monitor.stopped_at(method.shown(point), point):
            return Outcome(method.answer(point), curvature, STOPPED, "`callback` raised `StopIteration`.")
        fall = (before.value - point.value) / max(abs(before.value), abs(point.value), 1.0)
        if limits.ftol and point is not before and 0 <= fall <= limits.ftol:
            return Outcome(point, curvature, CONVERGED, f"converged: f fell by a share of {fall:.2g} <= ftol")


def bounded(point: Point) -> Point:
    """The point, unless it ends the search for a minimum."""
    if point.value == -math.inf:
        raise Ended(NOT_FINITE, "f falls to -infinity: it has no minimum")
    return point


def is_finite(point: Point) -> bool:
    return math.isfinite(point.value) and bool(torch.isfinite(point.gradient()).all())


def largest(g: Tensor) -> float:
    return float(g.abs().max())
