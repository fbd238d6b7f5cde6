"""S from the curvature at a point: by its own recursion where S can hold the Hessian, else by the boxed update.

    Recursion   S <- (1 - beta gamma) S + beta H                       equation (4) of the paper, dense or sparse
    Boxed       B <- B h( (beta/2) P(B^-1 H B^-T - gamma I) )          equation (11), in every group

Equation (4) is the natural-gradient step of S itself. It reaches S = H / gamma in one step for one Cholesky
factorisation, but leaves the positive definite cone where H is indefinite and beta too large: then beta is halved
until it does not. The boxed update never leaves the cone. Both start from S = max |H_ii| I.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from natgrad.groups import Diagonal
from natgrad.groups.base import Element
from natgrad.groups.check import NotFiniteError
from natgrad.groups.scaled import scaled
from natgrad.minimization.objective import Point
from natgrad.minimization.symmetric import Solve, Symmetric
from natgrad.step import step_factor

HALVINGS = 40
CAP = 2.0  # h(2) = 5: one boxed step multiplies S by no more than about 25


class Curvature(ABC):
    """A positive definite S that follows the Hessian."""

    patience: ClassVar[int]  # steps at one point after which S changes little
    halvings: int = 0  # how far S was kept back from an indefinite Hessian: S lost as many powers of two there

    @abstractmethod
    def follow(self, point: Point, beta: float, gamma: float) -> Curvature:
        """S after one step with the Hessian at the point. A Hessian that is not finite leaves S as it is."""

    def indefinite(self, point: Point) -> bool | None:
        """Whether the Hessian has a negative eigenvalue at the point that S has just followed; None: not known."""
        return None

    @abstractmethod
    def covariance(self, x: Tensor) -> Tensor:
        """S^-1 x for a vector x."""

    @property
    @abstractmethod
    def factor(self) -> Element:
        """B in the structure's group, with S = B B^T."""


@dataclass(frozen=True)
class Recursion(Curvature):
    patience = 1

    space: Symmetric
    S: Tensor
    solve: Solve = field(repr=False)
    halvings: int = 0  # of beta, at the last point
    convex: bool = False  # whether S is the Hessian of the last point

    @classmethod
    def scaled_identity(cls, space: Symmetric, point: Point) -> Recursion:
        H = space.hessian(point)
        s = initial_scale(space.diagonal(H), H, point)
        return cls(space, s * space.identity(), lambda x: x / s)

    @classmethod
    def of(cls, space: Symmetric, B: Element) -> Recursion:
        return cls(space, space.product(B), B.covariance)

    def follow(self, point: Point, beta: float, gamma: float) -> Recursion:
        H = self.space.hessian(point)
        if torch.isfinite(H).all():
            for halvings in range(HALVINGS):
                S = (1 - beta * gamma) * self.S + beta * H
                solve = self.space.cholesky(S)
                if solve is not None:
                    return Recursion(self.space, S, solve, halvings, convex=beta * gamma == 1)
                beta /= 2
        return self

    def indefinite(self, point: Point) -> bool:
        if self.convex:
            return False
        H = self.space.hessian(point)
        rounding = torch.finfo(H.dtype).eps ** 0.5 * initial_scale(self.space.diagonal(H), H, point)
        return self.space.cholesky(H + rounding * self.space.identity()) is None

    def covariance(self, x: Tensor) -> Tensor:
        return self.solve(x)

    @property
    def factor(self) -> Element:
        return self.space.element(self.S)

    def __getstate__(self) -> dict[str, Any]:  # SuperLU's objects cannot be pickled
        return {"space": self.space, "S": self.S, "halvings": self.halvings, "convex": self.convex}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in {**state, "solve": state["space"].cholesky(state["S"])}.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Boxed(Curvature):
    patience = 4

    B: Element
    diagonal: Callable[[Point], Tensor | None]  # diag(H), or None where pull does without

    @classmethod
    def scaled_identity(cls, B: Element, diagonal: Callable[[Point], Tensor | None], point: Point) -> Boxed:
        known = diagonal(point)
        known = point.matrix().diagonal() if known is None else known
        return cls(scaled(B, initial_scale(known, known, point) ** 0.5), diagonal)

    def follow(self, point: Point, beta: float, gamma: float) -> Boxed:
        try:
            rates = {"beta": beta, "gamma": gamma, "cap": CAP}
            B = step_factor(self.B, point.products, diagonal=self.diagonal(point), **rates)
        except NotFiniteError:
            return self
        return self.with_factor(B)

    def with_factor(self, B: Element) -> Boxed:
        return replace(self, B=B)

    def covariance(self, x: Tensor) -> Tensor:
        return self.B.covariance(x)

    @property
    def factor(self) -> Element:
        return self.B

    def __getstate__(self) -> dict[str, Any]:  # the user's functions behind `diagonal` are not carried along
        return {"B": self.B, "diagonal": no_diagonal}


@dataclass(frozen=True)
class Isotropic(Curvature):
    """S = s I with s from one product: the scale of conjugate gradients, which need no more where S fits nothing."""

    patience = 1

    s: float
    like: Tensor

    def follow(self, point: Point, beta: float, gamma: float) -> Isotropic:
        s = along(point, point.gradient())
        return replace(self, s=abs(s)) if 0 < abs(s) < float("inf") else self

    def covariance(self, x: Tensor) -> Tensor:
        return x / self.s

    @property
    def factor(self) -> Element:
        one = Diagonal().identity(len(self.like), dtype=self.like.dtype, device=self.like.device)
        return scaled(one, self.s**0.5)


def no_diagonal(_: Point) -> None:
    """For structures that find all they need from products."""


def along(point: Point, v: Tensor) -> float:
    """u^T H u for the unit vector u along v."""
    u = v / v.abs().max()
    u = u / u.norm()
    return float(u @ point.products(u.unsqueeze(-1)).squeeze(-1))


def initial_scale(diagonal: Tensor, entries: Tensor, point: Point) -> float:
    """max |H_ii|, or what comes nearest to it where the diagonal is zero or not finite."""
    for candidate in (diagonal, entries, point.gradient()):
        s = float(candidate.abs().max())
        if 0 < s < float("inf"):
            return s
    return 1.0
