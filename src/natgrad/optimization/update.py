"""One step of a matrix W (out x in) with S = S_C (x) S_K, for L equal ones at once: nothing but mathematics.

Half power, the default. With D = S_C^-1 U S_K^-1 the direction, U the gradient averaged by Nesterov's momentum:

    S_C <- h S_C h^T,  h = h(b P(N_C)),  N_C = D D^T / in - gamma I
    S_K <- h S_K h^T,  h = h(b P(N_K)),  N_K = D^T D / out - gamma I                S^2 follows E[u u^T]

so that D is white: of size 1 in all directions, whatever the scale of the gradient. The statistics are those of the
very direction that is stepped along, which cost no product of their own, and are the better ones besides.

Full power, the paper's. With S_C = B_C B_C^T, S_K = B_K B_K^T and W = B_C^-1 G B_K^-T the whitened gradient:

    B_C <- B_C h(b/2 P(N_C)),  N_C = samples W W^T / in + delta tr(S_K^-1)/in B_C^-1 B_C^-T - gamma I
    B_K <- likewise                                                 S follows samples E[g g^T] + delta I
    D = B_C^-T W B_K^-1
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from natgrad.groups.base import beside
from natgrad.optimization.sides import Factor, Side, Tensors, finite, only

Scales = Tensor  # one number for each of the L, (L,)


@dataclass(frozen=True)
class Moved:
    """What a step does."""

    D: Tensor  # (L, out, in): the direction, up to
    c: Scales  # its factor: the direction is c D
    good: Scales  # whether it may be taken; where not, D is finite and all else as it was
    sides: list[Tensors]


def half_power(
    U: Tensor,
    sides: Sequence[Side],
    stored: Sequence[Tensors],
    *,
    fresh: Scales,
    good: Scales,
    signs: Tensor | None,
    beta: float | Tensor,
    gamma: float,
    damping: float,
) -> Moved:
    """The direction, of root mean square at most one, and both sides after it if there are `signs`.

    At a fresh start S is scaled so that D has the size one at once.
    `damping` is the size of a virtual gradient z of random signs beside the real one, in units of U's root mean square:
    as E[z z^T] = I, S^2 follows E[u u^T] + damping^2 I. This step's z for a side are the first of `signs`.
    """
    size = rms(U)
    D = U
    for axis, (side, tensors) in enumerate(zip(sides, stored, strict=True)):
        D = _turn(side.covariance(tensors, _turn(D, axis)), axis)
    length = rms(D)
    good = good & torch.isfinite(length) & torch.isfinite(1 / size**2)
    D = torch.nan_to_num_(D.mul_(beside(good, D)), 0.0, 0.0, 0.0)
    c = torch.where(fresh & good, 1 / size, 1.0)  # what S^-1 is to be multiplied by
    longer = (c * length).clamp(min=1.0)
    direction = torch.where(good, c / longer, 0.0)
    if signs is None:
        return Moved(D, direction, good, [list(t) for t in stored])

    z = signs.to(D)[:, None].expand(len(D), -1, 1)
    probes = [side.covariance(tensors, z[:, : side.d]) for side, tensors in zip(sides, stored, strict=True)]
    scales = [side.scale(tensors) for side, tensors in zip(sides, stored, strict=True)]
    mean = _product(scales, torch.ones_like(size)) ** (1 / len(sides))
    unit = torch.where(good, longer, 1.0).square()  # the size of D D^T / in and of D^T D / out, in the mean
    strength = torch.where(good, damping * size * c / longer, 0.0)
    part = c ** (1 / len(sides))  # of c, each side's
    beta = beta * good.to(D.dtype)
    new = []
    for axis, (side, tensors) in enumerate(zip(sides, stored, strict=True)):
        v = probes[axis] * beside(_product([rms(y) for y in probes[:axis] + probes[axis + 1 :]], strength), D)
        w = c**2 * (side.d / D[0].numel()) / unit
        balanced = torch.where(good, part * mean / scales[axis], 1.0)  # both sides carry equal parts of the scale
        new.append(side.follow(tensors, _turn(D, axis), v, w, unit, beta, gamma, balanced))
    return Moved(D, direction, good, new)


def full_power(
    U: Tensor,
    G: Tensor,
    sides: Sequence[Factor],
    stored: Sequence[Tensors],
    *,
    fresh: Scales,
    good: Scales,
    due: bool,
    beta: float | Tensor,
    gamma: float,
    delta: float,
    samples: float,
) -> Moved:
    """D from U, and if due both factors after G. At a fresh start S is scaled so that the mean of N is zero."""
    s = ((samples * rms(G) ** 2 + delta) / gamma) ** (1 / (2 * len(sides)))
    s = torch.where(fresh & good, s, 1.0)
    scaled = [[t * beside(s, t) for t in tensors] for tensors in stored]

    def whitened(X: Tensor, transpose: bool = False) -> Tensor:
        for axis, (side, tensors) in enumerate(zip(sides, scaled, strict=True)):
            X = _turn(side.whiten(tensors, _turn(X, axis), transpose), axis)
        return X

    W = whitened(G)
    D = whitened(W if U is G else whitened(U), transpose=True)
    good = good & torch.isfinite(rms(D)) & torch.isfinite(rms(W))
    D, W = (torch.nan_to_num(X, 0.0, 0.0, 0.0) for X in (D, W))
    if not due:
        return Moved(D, good.to(D.dtype), good, [list(t) for t in stored])

    ridges = [side.ridge(tensors) for side, tensors in zip(sides, scaled, strict=True)]
    new = []
    for axis, (side, tensors) in enumerate(zip(sides, scaled, strict=True)):
        A = _turn(W, axis) * math.sqrt(samples * side.d / W[0].numel())
        means = [M.trace() / sides[other].d for other, M in enumerate(ridges) if other != axis]
        ridge = ridges[axis] * _product(means, torch.full_like(rms(D), delta))
        after = side.follow_paper(tensors, A, ridge, beta, gamma)
        new.append(only(good & finite(after), after, stored[axis]))
    return Moved(D, good.to(D.dtype), good, new)


def signs(t: Tensor, length: int) -> Tensor:
    """A vector of -1 and 1 for step t, without random numbers: Walsh functions, z_i = (-1)^popcount(i & code).

    Over 2^k steps in a row all codes of k bits occur, so that for i, j < 2^k the mean of z_i z_j is 1 if i = j, else 0.
    The odd factor scatters the codes, so that short stretches are nearly as good.
    """
    x = torch.arange(length, device=t.device) & (t.to(torch.int64) * 0x9E3779B1)
    for shift in (32, 16, 8, 4, 2, 1):
        x = x ^ (x >> shift)
    return 1.0 - 2.0 * (x & 1)


def rms(X: Tensor) -> Scales:
    """The root mean square of each."""
    return torch.linalg.vector_norm(X, dim=(1, 2)) / X[0].numel() ** 0.5


def _turn(X: Tensor, axis: int) -> Tensor:
    """The side of this axis first: X, or X^T."""
    return X.mT if axis else X


def _product(factors: Sequence[Tensor], one: Tensor) -> Tensor:
    return functools.reduce(operator.mul, factors, one)
