"""The update of NGD: against dense matrices after the formulas of update.py, its invariances and its fixed points."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import natgrad as ng
from natgrad.optimization.update import signs
from tests import oracle
from tests.structures import Case, border, units

F64 = torch.float64


def eye(d: int) -> Tensor:
    return torch.eye(d, dtype=F64)


def h(M: Tensor) -> Tensor:
    return eye(len(M)) + M + M @ M / 2


def rms(X: Tensor) -> Tensor:
    return X.square().mean().sqrt()


# the reference: dense matrices, one side after the other


@dataclass
class Products:
    """S^-1 = P, with one step for all blocks of size s: P <- h(-b (E - gamma I)) P h(-b (E - gamma I))."""

    structure: ng.Structure
    P: Tensor
    s: int

    def inverse(self) -> Tensor:
        return self.P

    def scale(self) -> Tensor:
        return self.P.trace() / len(self.P)

    def rescale(self, c: Tensor | float) -> None:
        self.P = c * self.P

    def follow(self, E: Tensor, beta: float, gamma: float) -> None:
        H = torch.zeros_like(E)
        blocks = [slice(i, i + self.s) for i in range(0, len(E), self.s)]
        largest = max((E[block, block] @ E[block, block]).norm().sqrt() for block in blocks)
        for block in blocks:
            H[block, block] = h(-beta / largest.clamp(min=1) * (E[block, block] - gamma * eye(self.s)))
        self.P = H @ self.P @ H


@dataclass
class Factors:
    """S = B B^T with P() the least-squares projection: B <- h(b P(E - gamma I)) B."""

    structure: ng.Structure
    B: Tensor
    case: Case

    def inverse(self) -> Tensor:
        return torch.cholesky_inverse(torch.linalg.cholesky(self.B @ self.B.mT)).contiguous()

    def scale(self) -> Tensor:
        return self.inverse().det() ** (1 / len(self.B))

    def rescale(self, c: Tensor | float) -> None:
        self.B = self.B / c**0.5

    def follow(self, E: Tensor, beta: float, gamma: float) -> None:
        M = oracle.projection(self.case, E - gamma * eye(len(E)))
        self.B = h(M * beta / M.norm().clamp(min=1)) @ self.B


def products(structure: ng.Structure, s: int):
    return lambda d: Products(structure, eye(d), s or d)


def factors(structure: ng.Structure, mask):
    return lambda d: Factors(structure, eye(d), Case(structure, d, d, units(mask(d)), d))


REFERENCES = {
    "Dense": products(ng.Dense(), 0),
    "BlockDiagonal": products(ng.BlockDiagonal(2), 2),
    "Diagonal": products(ng.Diagonal(), 1),
    "Lower": factors(ng.Lower(1), lambda d: border(d, 1, 0)),
    "Lower, Heisenberg": factors(ng.Lower(1, 1), lambda d: border(d, 1, 1)),
    "Upper": factors(ng.Upper(2), lambda d: border(d, 0, 2).flip(0, 1)),
}


def half_power_reference(W: Tensor, gradients: list[Tensor], sides, o: dict[str, Any]):
    """Yields W after each step."""
    W, m = W.clone(), torch.zeros_like(W)
    vector = len(sides) == 1
    for t, G in enumerate(gradients):
        m = o["momentum"] * m + (1 - o["momentum"]) * G
        U = o["momentum"] * m + (1 - o["momentum"]) * G
        inverses = [side.inverse() for side in sides]
        S_inverse = inverses[0] if vector else torch.kron(*inverses)
        c = 1 / rms(U) if t == 0 else 1.0
        D = c * (S_inverse @ U.flatten()).reshape(U.shape)
        zs = [signs(torch.tensor(t // o["update_every"]), len(P)).double() for P in inverses]
        z = zs[0][:, None] if vector else zs[0][:, None] * zs[1]
        V = c * o["damping"] * rms(U) * (S_inverse @ z.flatten()).reshape(U.shape)  # the virtual gradient's direction
        if t % o["update_every"] == 0:
            mean = torch.stack([side.scale().log() for side in sides]).mean()
            balance = [(mean - side.scale().log()).exp() for side in sides]
            for side, X, virtual, factor in zip(sides, (D, D.mT), (V, V.mT), balance, strict=False):
                side.follow((X @ X.mT + virtual @ virtual.mT) / X.shape[1], o["beta"], o["gamma"])
                side.rescale(c ** (1 / len(sides)) * factor)
        rate = o["lr"] if vector else o["lr"] * (256 / U.shape[1]) ** 0.5
        W = (1 - o["lr"] * o["weight_decay"]) * W - rate * D / rms(D).clamp(min=1)
        yield W


def random_gradients(shape: tuple[int, ...], count: int, seed: int = 0) -> list[Tensor]:
    """Of very unequal directions and sizes."""
    random = oracle.generator(seed)
    left = torch.logspace(0, -2, shape[0], dtype=F64)[:, None]
    right = torch.logspace(-1, 1, shape[-1], dtype=F64) if len(shape) == 2 else 1.0
    return [
        3 * left * torch.randn(shape[0], shape[-1] if len(shape) == 2 else 1, dtype=F64, generator=random) * right
        for _ in range(count)
    ]


def trajectory(W: Tensor, gradients: list[Tensor], make=ng.NGD, **options) -> tuple[list[Tensor], ng.NGD]:
    p = nn.Parameter(W.clone())
    opt = make([p], **options)
    path = []
    for G in gradients:
        p.grad = G.reshape(p.shape).clone()
        opt.step()
        path.append(p.detach().clone())
    return path, opt


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {"momentum": 0.0, "damping": 0.0},
    "momentum": {"momentum": 0.8, "damping": 0.0},
    "damping": {"momentum": 0.0, "damping": 0.3},
    "everything": {"momentum": 0.9, "damping": 0.1, "weight_decay": 2.0, "gamma": 0.7, "beta": 0.8, "update_every": 2},
}
DEFAULTS = {"lr": 1e-2, "weight_decay": 0.0, "gamma": 1.0, "beta": 0.4, "update_every": 1}

SHAPES = [(4, 4), (10, 2), (2, 10), (10, 6), (6, 10), (8,)]  # on both sides of where thin matrices take another way


@pytest.mark.parametrize("name", REFERENCES)
@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_half_power_is_the_formulas_in_dense_matrices(name, options, shape):
    o = {**DEFAULTS, **OPTIONS[options]}
    sides = [REFERENCES[name](d) for d in shape]
    structure = sides[0].structure
    W = torch.randn(shape, dtype=F64, generator=oracle.generator(9))
    gradients = random_gradients(shape, 9)
    path, opt = trajectory(W, gradients, structure=structure if len(shape) == 2 else lambda _: structure, **o)
    reference = list(half_power_reference(W.reshape(shape[0], -1), gradients, sides, o))
    for ours, theirs in zip(path, reference, strict=True):
        oracle.close(ours, theirs.reshape(shape))
    (state,) = opt.state.values()
    for side, key in zip(sides, ("out_P", "in_P"), strict=False):
        if isinstance(side, Products):  # the scale of one side alone is seen nowhere else
            oracle.close(torch.block_diag(*state[key]) / side.P.norm(), side.P / side.P.norm())
    conditions = [float(torch.linalg.cond(side.inverse())) for side in sides]
    assert opt.diagnostics()[0]["condition"] == pytest.approx(conditions, rel=1e-6)


def test_two_structures_are_on_the_sides_that_they_are_given_for():
    """(out side, in side), and Kronecker(left, right) alike."""
    W, gradients = torch.zeros(6, 8, dtype=F64), random_gradients((6, 8), 6)
    o = {**DEFAULTS, **OPTIONS["everything"]}
    sides = [REFERENCES["Lower"](6), REFERENCES["Dense"](8)]
    reference = list(half_power_reference(W, gradients, sides, o))
    for structure in ((ng.Lower(1), ng.Dense()), ng.Kronecker(ng.Lower(1), ng.Dense())):
        path, _ = trajectory(W, gradients, structure=structure, **o)
        for ours, theirs in zip(path, reference, strict=True):
            oracle.close(ours, theirs)


def test_a_convolution_is_a_matrix_of_out_by_the_rest():
    W, gradients = torch.zeros(6, 8, dtype=F64), random_gradients((6, 8), 5)
    matrix, _ = trajectory(W, gradients)
    tensor, _ = trajectory(W.reshape(6, 2, 2, 2), gradients)
    assert all(torch.equal(a, b.reshape(6, 8)) for a, b in zip(matrix, tensor, strict=True))


def full_power_reference(W: Tensor, gradients: list[Tensor], cases: list[Case], o: dict[str, Any]):
    """The paper's rule with explicit factors and projections; yields W after each step."""
    W, m = W.clone(), torch.zeros_like(W)
    factors = [eye(case.p) for case in cases]
    delta = o["damping"] + o["weight_decay"]
    for t, G in enumerate(gradients):
        m = o["momentum"] * m + (1 - o["momentum"]) * G
        U = o["momentum"] * m + (1 - o["momentum"]) * G + o["weight_decay"] * W
        if t == 0:  # N is zero in the mean
            start = ((o["samples"] * rms(G) ** 2 + delta) / o["gamma"]) ** (1 / 4)
            factors = [start * B for B in factors]
        C, K = (torch.linalg.inv(B) for B in factors)
        D = (torch.kron(C.mT @ C, K.mT @ K) @ U.flatten()).reshape(U.shape)
        white = C @ G @ K.mT
        samples = o["samples"]
        N_C = (
            samples * white @ white.mT / len(K)
            + delta * (K.mT @ K).trace() / len(K) * C @ C.mT
            - o["gamma"] * eye(len(C))
        )
        N_K = (
            samples * white.mT @ white / len(C)
            + delta * (C.mT @ C).trace() / len(C) * K @ K.mT
            - o["gamma"] * eye(len(K))
        )
        factors = [
            B @ h(o["beta"] / 2 * oracle.projection(case, N))
            for B, case, N in zip(factors, cases, (N_C, N_K), strict=True)
        ]
        W = W - o["lr"] * D
        yield W


def case_of(structure: ng.Structure, mask: Tensor) -> Case:
    return Case(structure, len(mask), len(mask), units(mask), len(mask))


FULL = {
    "Dense": (ng.Dense(), lambda d: torch.ones(d, d, dtype=torch.bool)),
    "BlockDiagonal": (
        ng.BlockDiagonal(2),
        lambda d: torch.eye(d // 2).repeat_interleave(2, 0).repeat_interleave(2, 1) > 0,
    ),
    "Diagonal": (ng.Diagonal(), lambda d: torch.eye(d, dtype=torch.bool)),
    "Lower": (ng.Lower(2), lambda d: border(d, 2, 0)),
    "Upper": (ng.Upper(1, 1), lambda d: border(d, 1, 1).flip(0, 1)),
}


@pytest.mark.parametrize("name", FULL)
@pytest.mark.parametrize("shape", [(4, 6), (8, 2)], ids=str)
@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_full_power_is_the_formulas_in_dense_matrices(name, shape, momentum):
    structure, mask = FULL[name]
    o = {"lr": 1e-2, "beta": 0.1, "gamma": 0.8, "damping": 0.2, "weight_decay": 0.3, "samples": 5.0}
    o["momentum"] = momentum
    W = torch.randn(shape, dtype=F64, generator=oracle.generator(9))
    gradients = random_gradients(shape, 8)
    path, _ = trajectory(W, gradients, structure=structure, power=1, **o)
    cases = [case_of(structure, mask(d)) for d in shape]
    for ours, theirs in zip(path, full_power_reference(W, gradients, cases, o), strict=True):
        oracle.close(ours, theirs)


@pytest.mark.parametrize("k", [0, 1, 3, 9])
def test_the_papers_method_as_printed(k):
    """Tri-low on both sides: B <- B h(beta C (.) kappa(N)), beta = lr, gamma = 1, and no momentum."""
    lr, decay, samples, shape = 0.05, 0.1, 8.0, (5, 4)
    W = torch.randn(shape, dtype=F64, generator=oracle.generator(9))
    gradients = random_gradients(shape, 8)
    path, _ = trajectory(W, gradients, ng.NGD.paper, lr=lr, k=k, weight_decay=decay, samples=samples)
    start = (samples * rms(gradients[0]) ** 2 + decay) ** (1 / 4)
    C, K = start * eye(5), start * eye(4)

    def kappa(N: Tensor) -> Tensor:
        """Half of what is symmetric in the group, the k x k block and the diagonal, and all of the columns below."""
        weights = eye(len(N)) / 2
        weights[:, :k] = 1.0
        weights[:k, k:], weights[:k, :k] = 0.0, 0.5
        return weights * N

    for G, ours in zip(gradients, path, strict=True):
        C_inverse, K_inverse = torch.linalg.inv(C), torch.linalg.inv(K)
        white = C_inverse @ G @ K_inverse.mT
        N_C = samples * white @ white.mT / 4 + decay * (K_inverse @ K_inverse.mT).trace() / 4 * C_inverse @ C_inverse.mT
        N_K = samples * white.mT @ white / 5 + decay * (C_inverse @ C_inverse.mT).trace() / 5 * K_inverse @ K_inverse.mT
        W = W - lr * torch.linalg.solve(C @ C.mT, (G + decay * W) @ torch.linalg.inv(K @ K.mT))
        C, K = C @ h(lr * kappa(N_C - eye(5))), K @ h(lr * kappa(N_K - eye(4)))
        oracle.close(ours, W)
