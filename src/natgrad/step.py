"""The update: the only mathematics that all uses share.

For q = N(mu, S^-1) with S = B B^T, B in a group with tangent space m, and l with gradient g and Hessian H at mu:

    mu <- mu - beta S^-1 g
    B  <- B h( (beta/2) P(B^-1 H B^-T - gamma I) )         h(M) = I + M + M^2/2

The functions are pure and differentiable: pass g without a graph (`g.detach()`) unless you mean to unroll the steps.
Equation (8) of the paper is this for Dense, equation (11) for every other group: P is the projection onto m.
"""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import Tensor

from natgrad.groups import check
from natgrad.groups.base import HVP, Element

AnyElement = TypeVar("AnyElement", bound=Element)


def step_mean(mu: Tensor, B: Element, g: Tensor, beta: float) -> Tensor:
    """mu - beta S^-1 g."""
    check.vectors(B, mu, "step, as mu")
    check.vectors(B, g, "step, as g")
    if mu.shape != g.shape:
        raise ValueError(f"mu and g must be alike, got {check.shape(mu.shape)} and {check.shape(g.shape)}")
    for x, name in ((mu, "mu"), (g, "the gradient")):
        if not check.all_finite(x):
            raise check.NotFiniteError(f"{name} holds NaN or infinity; nothing has been changed")
    return mu - check.number(beta, "beta") * B.covariance(g)


def step_factor(
    B: AnyElement,
    hvp: HVP,
    *,
    beta: float,
    gamma: float = 1.0,
    diagonal: Tensor | None = None,
    cap: float | None = None,
) -> AnyElement:
    """B h( (beta/2) P(B^-1 H B^-T - gamma I) ), with H given as in `Element.pull`.

    `cap` takes a smaller beta where the argument of h would otherwise have a larger number than this: where S is far
    too small, one step would overshoot it by far (S grows with the fourth power of H), and take many to come down.
    """
    beta, gamma = check.number(beta, "beta"), check.number(gamma, "gamma")
    M = (beta / 2) * B.pull(hvp, diagonal).shift(-gamma)
    if cap is not None:
        largest = max((float(t.abs().max()) for t in M.tensors() if t.numel()), default=0.0)
        M = M * min(1.0, cap / largest) if largest > cap else M
    new = B.retract(M)
    if not all(check.all_finite(t) for t in new.tensors()):
        raise check.NotFiniteError(
            "the step overflowed: B^-1 H B^-T is too large for its number format; start from a larger S "
            "(B = I scaled by the root of the largest |H_ii|) or take a smaller beta. B is unchanged"
        )
    return new


def paper_step(
    mu: Tensor,
    B: AnyElement,
    g: Tensor,
    hvp: HVP,
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
    hvp: HVP,
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
