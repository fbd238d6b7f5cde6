"""How far to go along a descent direction."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from natgrad.minimization.objective import Point
from natgrad.minimization.run import bounded

SUFFICIENT = 1e-4  # of the decrease that the slope promises
SHORTEST = 1e-10
TINY = 1e-9  # over steps so short l changes by rounding errors or by next to nothing
LONGEST = 1e10
STRAIGHT = 0.9  # a function that falls by this share of its slope is almost linear: a quadratic would fall by half


@dataclass(frozen=True)
class Failure:
    """No step was good enough."""

    change: float  # of |l|, the largest seen over tiny steps: its rounding error, if the direction does descend


def search(point: Point, d: Tensor, slope: float, reference: float) -> Point | Failure:
    """The point at x + a d, with l at most `reference` - a |slope| / 10,000 and a finite gradient.

    `reference` may lie above l(x). Longer steps are tried where l is nearly linear.
    """
    a, change = 1.0, 0.0
    while a > SHORTEST:
        trial = bounded(point.objective.at(point.x + a * d))
        if math.isfinite(trial.value) and trial.value <= reference + SUFFICIENT * a * slope:
            found = _further(point, d, slope, trial) if a == 1.0 else trial
            if torch.isfinite(found.gradient()).all():
                return found
        if a < TINY and math.isfinite(trial.value):
            change = max(change, abs(trial.value - point.value))
        # the minimum of the parabola through l(0), l'(0) and l(a), within safe bounds
        excess = trial.value - point.value - a * slope
        best = -slope * a * a / (2 * excess) if math.isfinite(excess) and excess > 0 else 0.0
        a = min(max(best, 0.1 * a), 0.5 * a)
    return Failure(change)


def _further(point: Point, d: Tensor, slope: float, reached: Point) -> Point:
    a = 2.0
    while reached.value <= point.value + STRAIGHT * (a / 2) * slope and a < LONGEST:
        trial = bounded(point.objective.at(point.x + a * d))
        if not trial.value < reached.value:
            break
        reached, a = trial, 2 * a
    return reached
