"""The update: the only mathematics that all uses share.

For q = N(mu, S^-1) with S = B B^T, B in a group with tangent space m, and l with gradient g and Hessian H at mu:

    mu <- mu - beta S^-1 g
    B  <- B h( (beta/2) P(B^-1 H B^-T - gamma I) )         h(M) = I + M + M^2/2

Equation (8) of the paper is this for Dense, equation (11) for every other group: P is the projection onto m.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from natgrad.groups import check
from natgrad.groups.base import Element, Product

AnyElement = TypeVar("AnyElement", bound=Element)


def step_mean(mu: Tensor, B: Element, g: Tensor, beta: float) -> Tensor:
    """mu - beta S^-1 g."""
    if not check.all_finite(g):
        raise ValueError("the gradient holds NaN or infinity; mu and B are unchanged")
    return mu - beta * B.covariance(g)


def step_factor(
    B: AnyElement, hvp: Product, *, beta: float, gamma: float = 1.0, diagonal: Tensor | None = None
) -> AnyElement:
    """B h( (beta/2) P(B^-1 H B^-T - gamma I) ), with H given as in `Element.pull`."""
    return B.retract((beta / 2) * B.pull(hvp, diagonal).shift(-gamma))


def paper_step(
    mu: Tensor,
    B: AnyElement,
    g: Tensor,
    hvp: Product,
    *,
    beta: float,
    gamma: float = 1.0,
    diagonal: Tensor | None = None,
) -> tuple[Tensor, AnyElement]:
    """Both lines with the old B, as the paper has them: (mu, B) after one step."""
    return step_mean(mu, B, g, beta), step_factor(B, hvp, beta=beta, gamma=gamma, diagonal=diagonal)


def curvature_first_step(
    mu: Tensor,
    B: AnyElement,
    g: Tensor,
    hvp: Product,
    *,
    beta: float,
    gamma: float = 1.0,
    diagonal: Tensor | None = None,
) -> tuple[Tensor, AnyElement]:
    """B first, then mu with the new S: for beta = gamma = 1 a Newton step that needs no positive definite H."""
    B = step_factor(B, hvp, beta=beta, gamma=gamma, diagonal=diagonal)
    return step_mean(mu, B, g, beta), B


def precision_recursion(S: Tensor, H: Tensor, *, beta: float, gamma: float = 1.0, corrected: bool = True) -> Tensor:
    """The update of S itself, dense, for readers and tests: what the step of B amounts to, up to O(beta^3).

    S <- (1 - beta gamma) S + beta H                            equation (4), may leave the positive definite cone
    ... + (beta^2 / 2) G S^-1 G,    G = H - gamma S             equation (5), the correction that keeps S in it
    """
    S_next = (1 - beta * gamma) * S + beta * H
    if not corrected:
        return S_next
    G = H - gamma * S
    return S_next + beta**2 / 2 * G @ torch.linalg.solve(S, G)
