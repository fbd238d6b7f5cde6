"""Muon: momentum with its singular values set to about one."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

SCALINGS: dict[str, Callable[[int, int], float]] = {  # of a matrix with so many rows and columns
    "original": lambda rows, columns: max(1.0, rows / columns) ** 0.5,
    "match_rms": lambda rows, columns: 0.2 * max(rows, columns) ** 0.5,
}


def orthogonalize(G: Tensor, iterations: int = 5) -> Tensor:
    """About U Vᵀ for G = U D Vᵀ: X <- a X + b X Xᵀ X + c X Xᵀ X Xᵀ X, which takes (0, 1] to about 0.7 to 1.2.

    In bfloat16, as published, where that is faster than the precision of G.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    X = (G / G.norm().clamp(min=1e-7)).to(torch.bfloat16 if bfloat16_is_faster(G) else G.dtype)
    wide = G.shape[0] <= G.shape[1]
    X = X if wide else X.T
    for _ in range(iterations):
        A = X @ X.T  # of the smaller side
        X = torch.addmm(X, torch.addmm(A, A, A, beta=b, alpha=c), X, beta=a)
    return (X if wide else X.T).to(G.dtype)


def bfloat16_is_faster(G: Tensor) -> bool:
    """On GPUs; on CPUs that have it in hardware for all but small matrices (measured: three times at 128 rows)."""
    if G.dtype != torch.float32 or G.is_cuda:
        return G.is_cuda
    large = min(G.shape) >= 96
    return large and torch.backends.mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported()


def muon_direction(g: Tensor, m: Tensor, momentum: float, scaling: str) -> Tensor:
    """m <- μ m + (1 - μ) g in place; the answer is scale * orthogonalize((1 - μ) g + μ m), in the shape of g."""
    m.lerp_(g, 1 - momentum)
    O = orthogonalize(g.lerp(m, momentum).flatten(1))  # noqa: E741, a convolution as (out, in * k * k)
    return (SCALINGS[scaling](*O.shape) * O).view_as(g)


def split(network: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """The weights of all linear layers and convolutions but the last one, and all other parameters."""
    weights: list[Tensor] = [layer.weight for layer in network.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    matrices = weights[:-1]
    taken = {id(p) for p in matrices}
    return matrices, [p for p in network.parameters() if id(p) not in taken]


class Muon(torch.optim.Optimizer):
    """Muon for `matrices`, AdamW for `others`, both with decoupled weight decay:

        m <- μ m + (1 - μ) g,    θ <- (1 - ηλ) θ - η scale NewtonSchulz((1 - μ) g + μ m)

    The two published scales: "original" is √max(1, rows / columns), where AdamW's learning rate is η times
    `adam_ratio` (0.015 as published: 0.02 and 3e-4); "match_rms" is 0.2 √max(rows, columns), about the size of AdamW's
    step, so that both have the same learning rate.

    Keller Jordan and others, Muon: an optimizer for hidden layers in neural networks, 2024; Jingyuan Liu and others,
    Muon is scalable for LLM training, 2025.
    """

    def __init__(
        self,
        matrices: Iterable[Tensor],
        others: Iterable[Tensor] = (),
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
        scaling: str = "match_rms",
        adam_ratio: float = 1.0,
        betas: tuple[float, float] = (0.9, 0.95),
    ):
        if scaling not in SCALINGS:
            raise ValueError(f"scaling must be one of {', '.join(SCALINGS)}, got {scaling!r}")
        groups: list[dict[str, Any]] = [
            {"params": list(matrices), "muon": True, "lr": lr},
            {"params": list(others), "muon": False, "lr": lr * adam_ratio},
        ]
        defaults = {"weight_decay": weight_decay, "momentum": momentum, "scaling": scaling, "betas": betas}
        super().__init__([group for group in groups if group["params"]], defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None if closure is None else torch.enable_grad()(closure)()
        for group in self.param_groups:
            parameters = [p for p in group["params"] if p.grad is not None]
            if group["muon"]:
                self._muon(parameters, group)
            else:
                self._adamw(parameters, group)
        return loss

    def _muon(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for p in parameters:
            assert p.grad is not None
            state = self.state[p]
            if not state:
                state["m"] = torch.zeros_like(p)
            direction = muon_direction(p.grad, state["m"], group["momentum"], group["scaling"])
            p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(direction, alpha=group["lr"])

    def _adamw(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        for p in parameters:
            if not self.state[p]:
                self.state[p].update(m=torch.zeros_like(p), v=torch.zeros_like(p), step=torch.tensor(0.0))
        states = [self.state[p] for p in parameters]
        beta1, beta2 = group["betas"]
        adamw(
            parameters, [p.grad for p in parameters if p.grad is not None],
            [s["m"] for s in states], [s["v"] for s in states], [], [s["step"] for s in states],
            foreach=True, amsgrad=False, beta1=beta1, beta2=beta2, lr=group["lr"],
            weight_decay=group["weight_decay"], eps=1e-10, maximize=False,
        )  # fmt: skip
