"""mode="linesearch": S from the curvature first, then a safeguarded step along -S^-1 g.

Newton's steps along a curved valley must go uphill now and then, so a step need only end below the largest of the last
ten values (Grippo, Lampariello and Lucidi 1986). Three steps that find nothing lower than before were wasted, though:
the run goes back, and takes one monotone step, after the next such failure four, then sixteen (the watchdog of
Chamberlain, Powell, Lemarechal and Pedersen 1982).
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

import torch
from torch import Tensor

from natgrad.minimization.cg import truncated_cg
from natgrad.minimization.curvature import Curvature, along
from natgrad.minimization.linesearch import Failure, search
from natgrad.minimization.objective import Point
from natgrad.minimization.run import CONVERGED, STUCK, Ended, Method, bounded, largest
from natgrad.minimization.saddle import downhill, lower_along, way_down

MEMORY, PATIENCE = 10, 3
STALLED = 15  # halvings of beta: S has become so small across a saddle that it follows nothing else any more
WAIT = 100
ROUNDING = 4  # values of l are known to about so many units of the last place


@dataclass
class Descent(Method):
    beta: float
    gamma: float
    cg_steps: int

    recent: deque[float] = field(init=False, default_factory=lambda: deque(maxlen=MEMORY))
    lowest: tuple[Point, Curvature] | None = field(init=False, default=None)
    vain: int = field(init=False, default=0)  # steps since then
    monotone: int = field(init=False, default=0)  # steps to come that must go down
    penalty: int = field(init=False, default=1)
    wait: int = field(init=False, default=0)  # before looking for a way down again
    still: int = field(init=False, default=0)  # steps without any progress
    decrement0: float = field(init=False, default=math.nan)  # g^T S^-1 g at the start

    def step(self, point: Point, curvature: Curvature) -> tuple[Point, Curvature]:
        point, curvature = self._followed(point, curvature)
        self.wait = max(0, self.wait - 1)
        if curvature.halvings >= STALLED and not self.wait:
            if (lower := way_down(point)) is not None:
                return lower, curvature
            self.wait = WAIT
        d, slope = self._direction(point, curvature)
        noise = rounding(point, d, -slope)
        new = Failure(0.0) if -slope <= noise else search(point, d, slope, max(self.recent))
        if isinstance(new, Failure) and -slope > 2 * noise:  # S may be all but singular; the gradient is never wrong
            d, slope = steepest(point)
            new = search(point, d, slope, point.value)
        if isinstance(new, Point):
            self.still = 0
            return new, curvature

        noise = max(noise, 2 * new.change)
        settled = settle(point, d, noise)
        better = largest(settled.gradient()) < largest(point.gradient()) / 2
        self.still, self.vain = (0, 0) if better else (self.still + 1, self.vain)
        if self.still == curvature.patience:
            if -slope <= 2 * noise:
                if (further := overlooked(point, d, slope, noise)) is not None:  # S was much too large
                    self.still = 0
                    return further, curvature
                return self._end(settled, curvature, "no step changes f beyond its rounding errors")
            if gradient_is_noise(point):
                return self._end(settled, curvature, "the gradient is nothing but rounding errors")
            raise Ended(STUCK, "no step along -S^-1 gradient lowers f: are the derivatives right?")
        return settled, curvature

    def stationary(self, point: Point, curvature: Curvature) -> tuple[Point, Curvature]:
        return self._end(point, curvature, f"max |gradient| = {largest(point.gradient()):.2g}, within gtol")

    def _end(self, point: Point, curvature: Curvature, reason: str) -> tuple[Point, Curvature]:
        """The end, unless the point is a saddle and there is a way down from it."""
        curvature = curvature.follow(point, self.beta, self.gamma)
        saddle, unmoved = curvature.indefinite(point), self.lowest is None
        # where S cannot tell, it is worth a look only at the start: a descent meets saddles by accident
        found = downhill(point) if saddle or (saddle is None and unmoved) else None
        lower = None if found is None else lower_along(point, *found)
        if lower is not None:
            self.still = 0
            return lower, curvature
        if saddle and found is None:
            raise Ended(STUCK, f"a saddle, and no way down was found: {reason}", point, curvature)
        raise Ended(CONVERGED, f"converged: {reason}", point, curvature)

    def _followed(self, point: Point, curvature: Curvature) -> tuple[Point, Curvature]:
        """S with the Hessian at the point; or back to the lowest point and its S."""
        down = self.lowest is None or point.value < self.lowest[0].value
        self.vain = 0 if down else self.vain + 1
        if self.lowest is not None and self.vain == PATIENCE:
            point, curvature = self.lowest
            self.vain, self.monotone, self.penalty = 0, self.penalty, 4 * self.penalty
        else:
            curvature = curvature.follow(point, self.beta, self.gamma)
            self.lowest = (point, curvature) if down else self.lowest
        if self.monotone:
            self.monotone -= 1
            self.recent.clear()
        self.recent.append(point.value)
        return point, curvature

    def _direction(self, point: Point, curvature: Curvature) -> tuple[Tensor, float]:
        """A descent direction and its slope g^T d."""
        g = point.gradient()
        d = -curvature.covariance(g)
        slope = float(g @ d)
        if self.cg_steps and slope < 0:
            self.decrement0 = -slope if math.isnan(self.decrement0) else self.decrement0
            forcing = min(0.5, (-slope / self.decrement0) ** 0.25)
            d = truncated_cg(point, curvature.covariance, g, self.cg_steps, forcing)
            slope = float(g @ d)
        return (d, slope) if slope < 0 and math.isfinite(slope) else steepest(point)


def steepest(point: Point) -> tuple[Tensor, float]:
    """-g, as long as the curvature along it makes right, and its slope."""
    g = point.gradient()
    curvature = abs(along(point, g))
    d = -g / curvature if 0 < curvature < math.inf else -g / largest(g)
    return d, float(g @ d)


def rounding(point: Point, d: Tensor, fall: float) -> float:
    """How well l is known: to a few units in the last place; where the expected `fall` is so small that more may
    matter, as well as a third difference over very short steps along d tells, to which smooth changes add little."""
    eps = torch.finfo(d.dtype).eps
    noise = ROUNDING * eps * abs(point.value)
    if noise < fall <= eps**0.4 * abs(point.value):
        a = min(1e-4, 1e-7 * (1 + largest(point.x)) / largest(d))
        l1, l2, l3 = (point.objective.at(point.x + k * a * d).value for k in (1, 2, 3))
        noise = max(noise, abs(l3 - 3 * l2 + 3 * l1 - point.value))
    return noise


def overlooked(point: Point, d: Tensor, slope: float, noise: float) -> Point | None:
    """The point as far along d as the slope alone would lower l by four times its noise, if l does fall there."""
    trial = bounded(point.objective.at(point.x - 4 * noise / slope * d)) if slope < 0 < noise else point
    falls = trial.value < point.value - noise and bool(torch.isfinite(trial.gradient()).all())
    return trial if falls else None


def gradient_is_noise(point: Point) -> bool:
    """Whether changes of x in the last place change the gradient as much as it is large."""
    x, g = point.x, point.gradient()
    other = point.objective.at(x + 2 * torch.finfo(x.dtype).eps * x * alternating(x)).gradient()
    return largest(g) <= 4 * largest(other - g)


def alternating(x: Tensor) -> Tensor:
    return 1 - 2 * (torch.arange(len(x), device=x.device) % 2).to(x)


def settle(point: Point, d: Tensor, noise: float) -> Point:
    """Where rounding hides what l does, the gradient decides: the full step if it makes that smaller, else none."""
    trial = point.objective.at(point.x + d)
    good = trial.value <= point.value + noise and largest(trial.gradient()) < largest(point.gradient())
    return trial if good else point
