"""Published test functions for minimisation, with any number p of variables.

MGH: Moré, Garbow and Hillstrom, Testing unconstrained optimization software, ACM TOMS 7 (1981). LV: Lukšan and Vlček,
Sparse and partially separable test problems, Report 767, Prague (1999). Capitals: the name in CUTEst. Indices count
from 1 in the formulas, and x_0 = x_{p+1} = 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

# ---- sizes and starts


def at_least(least: int) -> Callable[[int], int]:
    return lambda p: max(least, p)


def multiple(of: int, least: int) -> Callable[[int], int]:
    return lambda p: max(least, of * round(p / of))


def square(p: int) -> int:
    return max(1, round(max(p, 1) ** 0.5)) ** 2


def cycle(*pattern: float) -> Callable[[int], Tensor]:
    """x = (a, b, .., a, b, ..), cut after p."""
    return lambda p: torch.tensor(pattern, dtype=torch.float64).repeat(-(-p // len(pattern)))[:p]


def normal(p: int, *seed: int) -> Tensor:
    """p standard normal numbers, by NumPy: the same on every machine."""
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(p))


def count(p: int, like: Tensor | None = None) -> Tensor:
    """(1, 2, .., p)."""
    like = torch.empty((), dtype=torch.float64) if like is None else like
    return torch.arange(1, p + 1, dtype=like.dtype, device=like.device)


@dataclass(frozen=True)
class Problem:
    name: str
    value: Callable[[Tensor], Tensor]  # (p,) -> (), differentiable, for torch.func and make_fx
    start: Callable[[int], Tensor]  # p -> the usual start, (p,) float64
    minimizer: Callable[[int], Tensor] | None  # p -> one of the minimisers; None: no formula is known
    minimum: Callable[[int], float] = lambda p: 0.0  # p -> the least value
    size: Callable[[int], int] = lambda p: max(1, p)  # wanted p -> the nearest p there is
    sparse: bool = True  # rows of the Hessian have a bounded number of entries, but for one coordinate at most
    far: bool = False  # the paper starts far away


# ---- the paper's functions


def rosenbrock(x: Tensor) -> Tensor:
    """(1/p) sum_{i<p} 100 (x_{i+1} - x_i^2)^2 + (x_i - 1)^2, the chained Rosenbrock function, LV 1, over p.

    From p = 4 on it has a second, higher minimum near (-1, 1, .., 1).
    """
    return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (x[:-1] - 1) ** 2).sum() / x.shape[0]


def rosenbrock_printed(x: Tensor) -> Tensor:
    """(1/p) sum_{i<p} 100 (x_{i+1} - x_i)^2 + (x_i - 1)^2, as the paper prints it: a convex quadratic."""
    return (100 * (x[1:] - x[:-1]) ** 2 + (x[:-1] - 1) ** 2).sum() / x.shape[0]


def dixon_price(x: Tensor) -> Tensor:
    """(1/p) [(x_1 - 1)^2 + sum_{i>1} i (2 x_i^2 - x_{i-1})^2], Dixon and Price, JOTA 60 (1989), over p."""
    i = count(x.shape[0], like=x)
    return ((x[0] - 1) ** 2 + (i[1:] * (2 * x[1:] ** 2 - x[:-1]) ** 2).sum()) / x.shape[0]


def dixon_price_minimizer(p: int) -> Tensor:
    """x_i = 2^{-(2^i - 2) / 2^i}; the sign of x_p is free."""
    return torch.exp2(torch.exp2(1 - count(p)) - 1)


# ---- chains and separate groups


def extended_rosenbrock(x: Tensor) -> Tensor:
    """sum over pairs (a, b): 100 (b - a^2)^2 + (1 - a)^2, MGH 21, SROSENBR."""
    a, b = x.reshape(-1, 2).unbind(1)
    return (100 * (b - a**2) ** 2 + (1 - a) ** 2).sum()


def tridia(x: Tensor) -> Tensor:
    """(x_1 - 1)^2 + sum_{i>1} i (2 x_i - x_{i-1})^2, TRIDIA: a convex quadratic, ill-conditioned."""
    i = count(x.shape[0], like=x)
    return (x[0] - 1) ** 2 + (i[1:] * (2 * x[1:] - x[:-1]) ** 2).sum()


Four = tuple[Tensor, ...]  # a, b, c, d


def separate(x: Tensor) -> Four:
    """(x_1, x_2, x_3, x_4), (x_5, x_6, x_7, x_8), .."""
    return x.reshape(-1, 4).unbind(1)


def chained(x: Tensor) -> Four:
    """(x_1, x_2, x_3, x_4), (x_3, x_4, x_5, x_6), .."""
    pairs = x.reshape(-1, 2)
    return *pairs[:-1].unbind(1), *pairs[1:].unbind(1)


def powell(group: Callable[[Tensor], Four]) -> Callable[[Tensor], Tensor]:
    """sum over (a, b, c, d): (a + 10 b)^2 + 5 (c - d)^2 + (b - 2 c)^4 + 10 (a - d)^4.

    Separate: MGH 22, POWELLSG; chained: LV 3. The Hessian is singular at the minimiser.
    """

    def value(x: Tensor) -> Tensor:
        a, b, c, d = group(x)
        return ((a + 10 * b) ** 2 + 5 * (c - d) ** 2 + (b - 2 * c) ** 4 + 10 * (a - d) ** 4).sum()

    return value


def wood(group: Callable[[Tensor], Four]) -> Callable[[Tensor], Tensor]:
    """sum over (a, b, c, d): 100 (b - a^2)^2 + (1 - a)^2 + 90 (d - c^2)^2 + (1 - c)^2 + 10 (b + d - 2)^2
    + (b - d)^2 / 10.

    Separate: MGH 14, WOODS; chained: LV 2, CHAINWOO less its constant 1, with higher minima beside the least.
    """

    def value(x: Tensor) -> Tensor:
        a, b, c, d = group(x)
        valleys = 100 * (b - a**2) ** 2 + (1 - a) ** 2 + 90 * (d - c**2) ** 2 + (1 - c) ** 2
        return (valleys + 10 * (b + d - 2) ** 2 + (b - d) ** 2 / 10).sum()

    return value


def chained_wood_start(p: int) -> Tensor:
    """(-3, -1, -3, -1, -2, 0, -2, 0, ..)."""
    return torch.cat([cycle(-3, -1)(4), cycle(-2, 0)(p - 4)])


def broyden_tridiagonal(x: Tensor) -> Tensor:
    """sum_i ((3 - 2 x_i) x_i - x_{i-1} - 2 x_{i+1} + 1)^2, MGH 30, BROYDN3DLS."""
    z = pad(x, (1, 1))
    return (((3 - 2 * x) * x - z[:-2] - 2 * z[2:] + 1) ** 2).sum()


def broyden_banded(x: Tensor) -> Tensor:
    """sum_i (x_i (2 + 5 x_i^2) + 1 - sum_j x_j (1 + x_j))^2 with i - 5 <= j <= i + 1, j != i, MGH 31, BROYDNBDLS."""
    z = pad(x * (1 + x), (5, 1))  # z_{i+5} = x_i (1 + x_i)
    neighbors = sum(z[k : k + x.shape[0]] for k in (0, 1, 2, 3, 4, 6))
    return ((x * (2 + 5 * x**2) + 1 - neighbors) ** 2).sum()


def boundary_value(x: Tensor) -> Tensor:
    """sum_i (2 x_i - x_{i-1} - x_{i+1} + h^2 (x_i + i h + 1)^3 / 2)^2, h = 1 / (p + 1), MGH 28, MOREBV."""
    h, z = 1 / (x.shape[0] + 1), pad(x, (1, 1))
    return ((2 * x - z[:-2] - z[2:] + h**2 * (x + h * count(x.shape[0], like=x) + 1) ** 3 / 2) ** 2).sum()


def boundary_value_start(p: int) -> Tensor:
    """x_i = t (t - 1) with t = i h."""
    t = count(p) / (p + 1)
    return t * (t - 1)


def cosine(x: Tensor) -> Tensor:
    """sum_{i<p} cos(x_i^2 - x_{i+1} / 2), COSINE: p - 1 terms, all -1 on a curve of minimisers."""
    return torch.cos(x[:-1] ** 2 - x[1:] / 2).sum()


def cosine_minimizer(p: int) -> Tensor:
    """x_i = t with t^2 - t / 2 = pi."""
    return cycle(0.25 + math.sqrt(0.0625 + math.pi))(p)


# ---- one coordinate that meets all others


def arwhead(x: Tensor) -> Tensor:
    """sum_{i<p} (x_i^2 + x_p^2)^2 - 4 x_i + 3, ARWHEAD."""
    return ((x[:-1] ** 2 + x[-1] ** 2) ** 2 - 4 * x[:-1] + 3).sum()


def arwhead_minimizer(p: int) -> Tensor:
    """(1, .., 1, 0)."""
    return torch.cat([cycle(1)(p - 1), cycle(0)(1)])


def nondquar(x: Tensor) -> Tensor:
    """(x_1 - x_2)^2 + (x_{p-1} - x_p)^2 + sum_{i<p-1} (x_i + x_{i+1} + x_p)^4, NONDQUAR.

    Convex; at the minimiser the Hessian has rank 2.
    """
    return (x[0] - x[1]) ** 2 + (x[-2] - x[-1]) ** 2 + ((x[:-2] + x[1:-1] + x[-1]) ** 4).sum()


# ---- square grids of p = n^2 points


def plane(n: int, like: Tensor | None = None) -> Tensor:
    """1 + 4 s + 8 t over the unit square, boundary and all, (n + 2, n + 2)."""
    t = (count(n + 2, like=like) - 1) / (n + 1)
    return 1 + 4 * t.unsqueeze(1) + 8 * t


def minimal_surface(x: Tensor) -> Tensor:
    """sum over cells: h^2 sqrt(1 + (a^2 + b^2) / (2 h^2)), a and b the differences along diagonals, h = 1 / (n + 1).

    The area of a surface over the unit square that meets the plane 1 + 4 s + 8 t at the boundary. The plane itself has
    the least area, sqrt(1 + 4^2 + 8^2) = 9. LMINSURF, after Griewank and Toint, Numer. Math. 39 (1982); x without the
    boundary.
    """
    n = math.isqrt(x.shape[0])
    flat = plane(n, like=x)
    z = flat + pad(x.reshape(n, n) - flat[1:-1, 1:-1], (1, 1, 1, 1))
    a, b, cells = z[1:, 1:] - z[:-1, :-1], z[1:, :-1] - z[:-1, 1:], (n + 1) ** 2
    return torch.sqrt(1 + cells / 2 * (a**2 + b**2)).sum() / cells


def minimal_surface_minimizer(p: int) -> Tensor:
    return plane(math.isqrt(p))[1:-1, 1:-1].reshape(-1)


def phi4(x: Tensor) -> Tensor:
    """sum_i (x_i^2 - 1)^2 + sum over neighbours (x_i - x_j)^2: double wells on a grid with free boundaries.

    The lattice phi^4 model, up to constants as in Mehta, Hauenstein and Kastner, Phys. Rev. E 85, 061103 (2012). 0 is a
    saddle, a fifth of its directions down; besides the minimisers (1, .., 1) and (-1, .., -1) there are higher minima,
    domains of both signs with walls between.
    """
    n = math.isqrt(x.shape[0])
    z = x.reshape(n, n)
    return ((x**2 - 1) ** 2).sum() + ((z[1:] - z[:-1]) ** 2).sum() + ((z[:, 1:] - z[:, :-1]) ** 2).sum()


# ---- dense Hessians


def trigonometric(x: Tensor) -> Tensor:
    """sum_i (p - sum_j cos x_j + i (1 - cos x_i) - sin x_i)^2, MGH 26, with minima beside the least."""
    c = 1 - torch.cos(x)
    return ((c.sum() + count(x.shape[0], like=x) * c - torch.sin(x)) ** 2).sum()


def variably_dimensioned(x: Tensor) -> Tensor:
    """sum_i (x_i - 1)^2 + s^2 + s^4 with s = sum_j j (x_j - 1), MGH 25, VARDIM: identity plus rank one."""
    s = (count(x.shape[0], like=x) * (x - 1)).sum()
    return ((x - 1) ** 2).sum() + s**2 + s**4


def penalty(x: Tensor) -> Tensor:
    """1e-5 sum_i (x_i - 1)^2 + (sum_i x_i^2 - 1/4)^2, MGH 23 (penalty I), PENALTY1: diagonal plus rank one."""
    return 1e-5 * ((x - 1) ** 2).sum() + ((x**2).sum() - 0.25) ** 2


def penalty_minimizer(p: int) -> Tensor:
    """x_i = t, the positive root of 1e-5 (t - 1) + 2 t (p t^2 - 1/4) = 0."""
    return cycle(np.roots([2 * p, 0, 1e-5 - 0.5, -1e-5]).real.max())(p)


# ---- the table

ones, zeros, minus_ones = cycle(1), cycle(0), cycle(-1)
LIST = [
    Problem("rosenbrock", rosenbrock, cycle(-1.2, 1), ones, size=at_least(2), far=True),
    Problem("rosenbrock-printed", rosenbrock_printed, cycle(-1.2, 1), ones, size=at_least(2), far=True),
    Problem("dixon-price", dixon_price, ones, dixon_price_minimizer, size=at_least(2), far=True),
    Problem("extended-rosenbrock", extended_rosenbrock, cycle(-1.2, 1), ones, size=multiple(2, least=2)),
    Problem("tridia", tridia, ones, lambda p: torch.exp2(1 - count(p)), size=at_least(2)),
    Problem("powell", powell(separate), cycle(3, -1, 0, 1), zeros, size=multiple(4, least=4)),
    Problem("chained-powell", powell(chained), cycle(3, -1, 0, 1), zeros, size=multiple(2, least=4)),
    Problem("wood", wood(separate), cycle(-3, -1), ones, size=multiple(4, least=4)),
    Problem("chained-wood", wood(chained), chained_wood_start, ones, size=multiple(2, least=4)),
    Problem("broyden-tridiagonal", broyden_tridiagonal, minus_ones, None),
    Problem("broyden-banded", broyden_banded, minus_ones, None),
    Problem("boundary-value", boundary_value, boundary_value_start, None),
    Problem("cosine", cosine, ones, cosine_minimizer, minimum=lambda p: 1.0 - p, size=at_least(2)),
    Problem("arwhead", arwhead, ones, arwhead_minimizer, size=at_least(2)),
    Problem("nondquar", nondquar, cycle(1, -1), zeros, size=at_least(3)),
    Problem("minimal-surface", minimal_surface, zeros, minimal_surface_minimizer, minimum=lambda p: 9.0, size=square),
    Problem("phi4", phi4, lambda p: 0.01 * normal(p, 0), ones, size=square),
    Problem("trigonometric", trigonometric, lambda p: cycle(1 / p)(p), zeros, sparse=False),
    Problem("variably-dimensioned", variably_dimensioned, lambda p: 1 - count(p) / p, ones, sparse=False),
    Problem(
        "penalty",
        penalty,
        count,
        penalty_minimizer,
        minimum=lambda p: float(penalty(penalty_minimizer(p))),
        sparse=False,
    ),
]
FUNCTIONS = {problem.name: problem for problem in LIST}


def far_start(p: int, seed: int) -> Tensor:
    """15 |N(0, 1)|, from which the paper's curves come out."""
    return 15 * normal(p, seed).abs()


def starts(problem: Problem, p: int, n: int, seed: int = 0) -> list[Tensor]:
    """n starts: the usual one, x; `far_start(p, seed)` where the paper has one; then x + (1 + |x|) N(0, 1)."""
    if n < 1 or p < 1 or problem.size(p) != p:
        raise ValueError(
            f"expected n >= 1 and a number of variables that {problem.name} has, got n = {n} and p = {p}; "
            f"the nearest number of variables is {problem.size(p)}"
        )
    x = problem.start(p)
    first = [x, far_start(p, seed)] if problem.far else [x]
    return (first + [x + (1 + x.abs()) * normal(p, seed, k) for k in range(len(first), n)])[:n]
