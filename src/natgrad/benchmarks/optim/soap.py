"""SOAP: Adam in the eigenbasis of Shampoo's factors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

Factors = list[Tensor | None]  # one a dimension; None where it is left alone


def empty_factors(g: Tensor, largest: int) -> Factors:
    """A zero matrix for each dimension. A vector is left alone, and so is a dimension beyond `largest`."""
    if g.ndim < 2:
        return [None] * g.ndim
    return [g.new_zeros(n, n) if n <= largest else None for n in g.shape]


def accumulate(factors: Factors, g: Tensor, beta: float) -> None:
    """L_i <- β L_i + (1 - β) G_i G_iᵀ in place, where G_i is g as a matrix with dimension i as its rows."""
    for i, L in enumerate(factors):
        if L is not None:
            G = g.movedim(i, 0).reshape(len(L), -1)
            L.lerp_(G @ G.T, 1 - beta)


def rotate(x: Tensor, matrices: Factors) -> Tensor:
    """Q_iᵀ applied along each dimension i: Q_1ᵀ x Q_2 for a matrix."""
    for Q in matrices:
        x = x.movedim(0, -1)  # each dimension comes first once, and at the end all are in place again
        if Q is not None:
            x = x @ Q
    return x


def transposed(matrices: Factors) -> Factors:
    return [None if Q is None else Q.T for Q in matrices]


def eigenbases(factors: Factors) -> Factors:
    """Eigenvectors, those of the largest eigenvalues first."""
    return [None if L is None else torch.linalg.eigh(L).eigenvectors.flip(1) for L in factors]


def follow(factors: Factors, bases: Factors, v: Tensor) -> tuple[Factors, Tensor]:
    """The bases after one power iteration, Q <- qr(L Q), and the second moment in the same order.

    Columns are sorted by their estimated eigenvalues before, so that the iteration cannot swap them.
    """
    new: Factors = []
    for i, (L, Q) in enumerate(zip(factors, bases, strict=True)):
        if L is None or Q is None:
            new.append(None)
            continue
        LQ = L @ Q
        order = (Q * LQ).sum(0).argsort(descending=True)  # by diag(Qᵀ L Q)
        v = v.index_select(i, order)
        new.append(torch.linalg.qr(LQ[:, order]).Q)
    return new, v


class TensorByTensor(torch.optim.Optimizer):
    """An optimizer whose tensors do not know of each other."""

    def _update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        raise NotImplementedError

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad, self.state[p], group)
        return loss


class SOAP(TensorByTensor):
    """With g' = Q_1ᵀ g Q_2, the gradient in the bases of before this step:

        m' <- β₁ m' + (1 - β₁) g',    v <- β₂ v + (1 - β₂) g'²
        θ <- θ - η Q_1 (m̂' / (√v̂ + ε)) Q_2ᵀ,    θ <- (1 - ηλ) θ
        L <- β₂ L + (1 - β₂) g gᵀ,    R <- β₂ R + (1 - β₂) gᵀ g,    and every T steps Q_1 <- qr(L Q_1), Q_2 <- qr(R Q_2)

    The first step only makes the factors and the bases. Tensors of higher order have a factor for each dimension,
    vectors none. m' is kept in the bases and turned with them, which saves a rotation a step and gives the same.

    Nikhil Vyas and others, SOAP: improving and stabilizing Shampoo using Adam, 2024.
    """

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float = 3e-3,
        weight_decay: float = 0.0,
        betas: tuple[float, float] = (0.95, 0.95),
        eps: float = 1e-8,
        precondition_frequency: int = 10,
        max_precond_dim: int = 10_000,
    ):
        defaults = {"lr": lr, "weight_decay": weight_decay, "betas": betas, "eps": eps}
        super().__init__(params, defaults | {"every": precondition_frequency, "largest": max_precond_dim})

    def _update(self, p: Tensor, g: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        beta1, beta2 = group["betas"]
        if not state:
            factors = empty_factors(g, group["largest"])
            accumulate(factors, g, beta2)
            state.update(step=0, m=torch.zeros_like(p), v=torch.zeros_like(p))
            state.update(factors=factors, bases=eigenbases(factors))
            return
        state["step"] += 1
        m, v, t, bases = state["m"], state["v"], state["step"], state["bases"]
        rotated = rotate(g, bases)
        m.lerp_(rotated, 1 - beta1)
        v.lerp_(rotated.square(), 1 - beta2)
        lr = group["lr"] * (1 - beta2**t) ** 0.5 / (1 - beta1**t)  # the corrections of m and v for their start at 0
        p.sub_(rotate(m / v.sqrt().add_(group["eps"]), transposed(bases)), alpha=lr)
        p.mul_(1 - group["lr"] * group["weight_decay"])
        accumulate(state["factors"], g, beta2)
        if t % group["every"] == 0:
            state["bases"], state["v"] = follow(state["factors"], bases, v)
            state["m"] = rotate(rotate(m, transposed(bases)), state["bases"])
