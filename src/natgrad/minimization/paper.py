"""mode="paper": both lines with the old S and a fixed beta, exactly as printed. Nothing guards the steps."""

from __future__ import annotations

from dataclasses import dataclass

from natgrad.groups.check import NotFiniteError
from natgrad.minimization.curvature import Boxed, Curvature
from natgrad.minimization.objective import Point
from natgrad.minimization.run import NOT_FINITE, Ended, Method, is_finite
from natgrad.step import paper_step


@dataclass(frozen=True)
class Paper(Method):
    beta: float
    gamma: float

    def step(self, point: Point, curvature: Curvature) -> tuple[Point, Curvature]:
        assert isinstance(curvature, Boxed)
        rates = {"beta": self.beta, "gamma": self.gamma, "diagonal": curvature.diagonal(point)}
        try:
            mu, B = paper_step(point.x, curvature.B, point.gradient(), point.products, **rates)
        except NotFiniteError as error:
            raise Ended(NOT_FINITE, f"diverged, take a smaller beta: {error}") from None
        new = point.objective.at(mu)
        if not is_finite(new):
            raise Ended(NOT_FINITE, "diverged, take a smaller beta: f or its gradient is not finite")
        return new, curvature.with_factor(B)
