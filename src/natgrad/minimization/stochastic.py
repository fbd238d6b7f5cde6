"""mode="stochastic": f, gradient and Hessian products from a new mini-batch in each iteration.

    rate_t = beta / (1 + t / 10)^(3/4)
    S      <- the step of S with rate_t: an average over the Hessians of many mini-batches
    mu     <- mu - rate_t S^-1 g
    x      <- x + 2 / (t + 2) (mu - x)      the result: an average of the iterates that forgets the early ones

A rate that falls more slowly than 1 / t and averaged iterates reach the accuracy of the best rate without knowing it
(Polyak and Juditsky 1992). No value of l is compared with another.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from natgrad.minimization.curvature import Curvature
from natgrad.minimization.objective import Point
from natgrad.minimization.run import LIMIT, NOT_FINITE, Ended, Method, is_finite

WARM_UP, DECAY = 10, 0.75


@dataclass
class Stochastic(Method):
    at_limit = (LIMIT, "ended after {} iterations (maxiter), their average taken; noise hides whether it converged")

    beta: float
    gamma: float

    iteration: int = field(init=False, default=0)
    average: Tensor | None = field(init=False, default=None)

    def step(self, point: Point, curvature: Curvature) -> tuple[Point, Curvature]:
        t, self.iteration = self.iteration, self.iteration + 1
        rate = self.beta / (1 + t / WARM_UP) ** DECAY
        curvature = curvature.follow(point, rate, self.gamma)
        new = point.objective.at(point.x - rate * curvature.covariance(point.gradient()))
        if not is_finite(new):
            raise Ended(NOT_FINITE, "diverged, take a smaller beta: f or its gradient is not finite")
        last = new.x if self.average is None else self.average
        self.average = last + 2 / (t + 2) * (new.x - last)
        return new, curvature

    def shown(self, point: Point) -> Tensor:
        return point.x if self.average is None else self.average

    def answer(self, best: Point) -> Point:
        return best if self.average is None else best.objective.at(self.average)
