"""Shampoo: the inverse roots of Kronecker factors, with the length of Adam's step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from natgrad.benchmarks.optim.soap import Factors, TensorByTensor, accumulate, rotate


def inverse_root(L: Tensor, power: float, ridge: float = 1e-6) -> Tensor:
    """(L + ridge λ_max I)^-power; eigenvalues that rounding has made negative count as 0."""
    values, Q = torch.linalg.eigh(L)
    values = values.clamp(min=0) + ridge * values[-1].clamp(min=1e-30)
    return (Q * values**-power) @ Q.T


def inverse_roots(factors: Factors) -> Factors:
    return [None if L is None else inverse_root(L, 1 / (2 * len(factors))) for L in factors]


def graft(direction: Tensor, length_of: Tensor) -> Tensor:
    """`direction` with the length of the other one."""
    return direction * (length_of.norm() / direction.norm().clamp(min=1e-30))


class Shampoo(TensorByTensor):
    """For a tensor with d dimensions, and Adam's moments m and v of the gradient:

        L_i <- β₂ L_i + (1 - β₂) G_i G_iᵀ    where G_i has dimension i as its rows
        s = m̂ with L̂_i^(-1/2d) applied along each dimension i,    a = m̂ / (√v̂ + ε)
        θ <- (1 - ηλ) θ - η s |a| / |s|

    Roots are renewed at the first step and then every T. The moments' decay is SOAP's, so that what differs is the
    method. Dimensions beyond `max_precond_dim` are left alone; all others are kept whole.

    Vineet Gupta and others, 2018; Rohan Anil and others, Scalable second order optimization for deep learning, 2020;
    Hao-Jun Michael Shi and others, A distributed data-parallel PyTorch implementation of distributed Shampoo, 2023.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        precondition_frequency: int = 10,
        max_precond_dim: int = 8192,
    ):
        defaults = {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps}
        super().__init__(params, defaults | {"every": precondition_frequency, "largest": max_precond_dim})

    def _update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        if not state:
            factors = [g.new_zeros(n, n) if n <= group["largest"] else None for n in g.shape]
            state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p), factors=factors)
        beta1, beta2 = group["betas"]
        m, v, factors = state["m"], state["v"], state["factors"]
        m.lerp_(g, 1 - beta1)
        v.lerp_(g.square(), 1 - beta2)
        accumulate(factors, g, beta2)
        if state["step"] % group["every"] == 0:
            correction = 1 - beta2 ** (state["step"] + 1)
            state["roots"] = inverse_roots([None if L is None else L / correction for L in factors])
        state["step"] += 1
        t = state["step"]
        adam = m / (1 - beta1**t) / ((v / (1 - beta2**t)).sqrt() + group["eps"])
        p.mul_(1 - group["lr"] * group["weight_decay"])
        p.sub_(graft(rotate(m, state["roots"]), adam), alpha=group["lr"])  # the roots are symmetric
