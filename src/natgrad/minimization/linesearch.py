"""How far to go along a descent direction."""

from __future__ import annotations

import math

from torch import Tensor

from natgrad.minimization.objective import Objective, Point

SUFFICIENT = 1e-4  # of the decrease that the slope promises
TRIALS = 60
STRAIGHT = 0.9  # a function that falls by this share of its slope is almost linear: a quadratic would fall by half


def search(objective: Objective, point: Point, d: Tensor, slope: float, reference: float) -> Point | None:
    """The point at x + a d, with l at most `reference` - a |slope| / 10,000, or None where no such a > 0 is found.

    `reference` is the largest of the last few values: a step may go uphill now and then, as Newton's steps along curved
    valleys must (Grippo, Lampariello and Lucidi 1986). Longer steps are tried where l is nearly linear.
    """
    a = 1.0
    for _ in range(TRIALS):
        trial = objective.at(point.x + a * d)
        if trial.value <= reference + SUFFICIENT * a * slope:
            return _further(objective, point, d, slope, trial) if a == 1.0 else trial
        # the minimum of the parabola through l(0), l'(0) and l(a), within safe bounds
        excess = trial.value - point.value - a * slope
        best = -slope * a * a / (2 * excess) if math.isfinite(excess) and excess > 0 else 0.0
        a = min(max(best, 0.1 * a), 0.5 * a)
    return None


def _further(objective: Objective, point: Point, d: Tensor, slope: float, reached: Point) -> Point:
    a = 2.0
    while reached.value <= point.value + STRAIGHT * (a / 2) * slope and a < 2.0**TRIALS:
        trial = objective.at(point.x + a * d)
        if not trial.value < reached.value:
            break
        reached, a = trial, 2 * a
    return reached
