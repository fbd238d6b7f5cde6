"""NGD as a whole: what its trajectories do not depend on, and what its S comes to."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

import natgrad as ng
from natgrad.optimization.update import signs
from tests import oracle
from tests.networks import CHOICES, SIDES, on_sides
from tests.structures import border

F64 = torch.float64


def eye(d: int) -> Tensor:
    return torch.eye(d, dtype=F64)


def random_gradients(shape: tuple[int, ...], count: int, seed: int = 0) -> list[Tensor]:
    """With a covariance of each side whose condition is about 100."""
    random = oracle.generator(seed)
    root = [mixing(d) for d in shape]
    for_each = (torch.randn(shape, dtype=F64, generator=random) for _ in range(count))
    return [root[0] @ Z @ root[1].mT if len(shape) == 2 else root[0] @ Z for Z in for_each]


def orthogonal(d: int, seed: int) -> Tensor:
    return torch.linalg.qr(torch.randn(d, d, dtype=F64, generator=oracle.generator(seed)))[0]


@functools.lru_cache
def mixing(d: int) -> Tensor:
    """A root of a covariance."""
    Q = orthogonal(d, d)
    return Q @ torch.diag(torch.logspace(0, -1, d, dtype=F64)) @ Q.mT


def trajectory(W: Tensor, gradients: list[Tensor], **options) -> list[Tensor]:
    p = nn.Parameter(W.clone())
    opt = ng.NGD([p], **options)
    path = []
    for G in gradients:
        p.grad = G.to(p.dtype)
        opt.step()
        path.append(p.detach().clone())
    return path


# invariance


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("c", [1e-6, 1e6, 2.0**30, -1.0])
@pytest.mark.parametrize("shape", [(6, 4), (5,)], ids=str)
def test_half_power_does_not_see_the_scale_of_the_gradient(choice, c, shape):
    W = torch.zeros(shape, dtype=F64)
    gradients = random_gradients(shape, 6)
    scaled = [c * G for G in gradients]
    there, here = (trajectory(W, given, structure=CHOICES[choice], lr=1e-2) for given in (scaled, gradients))
    for a, b in zip(there, here, strict=True):
        torch.testing.assert_close(a if c > 0 else -a, b, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("c", [1e-12, 1e12, 2.0**-30, 2.0**30])
def test_nor_in_single_precision(c):
    W = torch.zeros(6, 4)
    gradients = random_gradients((6, 4), 12)
    there, here = (trajectory(W, given, lr=1e-2) for given in ([c * G for G in gradients], gradients))
    for a, b in zip(there, here, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("power", [0.5, 1])
@pytest.mark.parametrize("shape", [(4, 6), (12, 3), (3, 12), (5, 5)], ids=str)
def test_dense_sides_turn_with_the_coordinates(power, shape):
    """W -> Q W R with the gradients alike: the trajectory turned. The virtual signs of damping would not turn."""
    Q, R = orthogonal(shape[0], 1), orthogonal(shape[1], 2)
    W = torch.randn(shape, dtype=F64, generator=oracle.generator(3))
    gradients = random_gradients(shape, 12)
    options = {"structure": ng.Dense(), "power": power, "damping": 0.0, "weight_decay": 0.1, "lr": 1e-2}
    turned = trajectory(Q @ W @ R, [Q @ G @ R for G in gradients], **options)
    for a, b in zip(turned, trajectory(W, gradients, **options), strict=True):
        oracle.close(a, Q @ b @ R)


@pytest.mark.parametrize("power", [0.5, 1])
@pytest.mark.parametrize("name", ["Dense", "Diagonal"])
def test_transposing_exchanges_the_sides(power, name):
    """At half power but for lr, which goes with the number of inputs."""
    W, gradients = torch.zeros(4, 6, dtype=F64), random_gradients((4, 6), 12)
    options = {"structure": SIDES[name](0), "power": power, "lr": 1e-2, "beta": 0.1, "damping": 0.1}
    there = trajectory(W.mT, [G.mT for G in gradients], **options)
    for a, b in zip(there, trajectory(W, gradients, **options), strict=True):
        oracle.close(a.mT * (4 / 6) ** 0.5 if power == 0.5 else a.mT, b)


# fixed points


def inverse_factor(opt: ng.NGD, p: Tensor, axis: int, structure: ng.Structure) -> Tensor:
    """An R with S^-1 = R^T R: B^-1 where B is what is kept, a root of S^-1 where that is."""
    name, d = ("out", "in")[axis], p.shape[axis]
    stored = [t for key, t in opt.state[p].items() if key.startswith(f"{name}_")]
    if opt.param_groups[0]["power"] == 0.5 and type(structure) in (ng.Dense, ng.Diagonal, ng.BlockDiagonal):
        return torch.linalg.cholesky(torch.block_diag(*stored[0])).mT
    waiting = iter(stored)
    return torch.linalg.inv(structure.identity(d, dtype=F64).map(lambda _: next(waiting)).dense())


def stationary(name: str, count: int, **options) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """G and both R in the later half of the steps, with gradients of one distribution."""
    shape = (6, 8)
    p = nn.Parameter(torch.zeros(shape, dtype=F64))
    structures = on_sides(shape, name)
    opt = ng.NGD([p], lr=1e-3, momentum=0.0, damping=0.0, structure=structures, **options)
    for i, G in enumerate(random_gradients(shape, count, seed=4)):
        if 2 * i >= count:
            yield G, *(inverse_factor(opt, p, axis, structures[axis]) for axis in (0, 1))
        p.grad = G
        opt.step()


MASKS = {  # where the group sees a symmetric matrix
    "Dense": lambda d: torch.ones(d, d),
    "BlockDiagonal": lambda d: torch.eye(d // 2).repeat_interleave(2, 0).repeat_interleave(2, 1),
    "Diagonal": lambda d: torch.eye(d),
    "Lower": lambda d: (border(d, 2, 0) | border(d, 2, 0).mT).float(),
}


def average(pairs: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return sum(a for a, _ in pairs) / len(pairs), sum(b for _, b in pairs) / len(pairs)


@pytest.mark.parametrize("name", MASKS)
def test_directions_become_white(name):
    """At half power the means of D D^T / in and D^T D / out are I, where the group sees them.

    Their size is a little more than one, as long steps of S are cut: it is the mean of N / ||N|| that is zero.
    """
    D = [R_C.mT @ R_C @ G @ R_K.mT @ R_K for G, R_C, R_K in stationary(name, 600, power=0.5, beta=0.05)]
    for mean in average([(X @ X.mT / 8, X.mT @ X / 6) for X in D]):
        size = float(mean.trace()) / len(mean)
        assert 1 <= size < 1.5
        torch.testing.assert_close(mean / size * MASKS[name](len(mean)), eye(len(mean)), rtol=0, atol=0.1)


@pytest.mark.parametrize("name", MASKS)
def test_whitened_gradients_become_white_at_full_power(name):
    """S follows samples E[g g^T]: the means of N are zero, where the group sees them."""
    white = [R_C @ G @ R_K.mT for G, R_C, R_K in stationary(name, 600, power=1, beta=0.05, samples=7.0, gamma=0.5)]
    for mean in average([(X @ X.mT / 8, X.mT @ X / 6) for X in white]):
        torch.testing.assert_close(7.0 * mean * MASKS[name](len(mean)), 0.5 * eye(len(mean)), rtol=0, atol=0.05)


def test_a_diagonal_S_of_a_vector_is_the_second_moment():
    """At half power S^2, at full power S follows E[g^2], each with signs for gradients, so that there is no noise."""
    a = torch.logspace(-2, 2, 5, dtype=F64)
    for power, exponent in ((0.5, 1), (1, 2)):
        p = nn.Parameter(torch.zeros(5, dtype=F64))
        opt = ng.NGD([p], momentum=0.0, damping=0.0, power=power, beta=0.4)
        for t in range(300):
            p.grad = a * (-1) ** t
            opt.step()
        R = inverse_factor(opt, p, 0, ng.Diagonal())
        torch.testing.assert_close(1 / R.diagonal() ** 2, a**exponent, rtol=1e-6, atol=0)


@pytest.mark.parametrize("damping", [0.1, 0.5])
def test_damping_stands_beside_the_second_moment(damping):
    """S^2 follows E[u u^T] + (damping rms(u))^2 I."""
    a = torch.logspace(-3, 1, 5, dtype=F64)
    p = nn.Parameter(torch.zeros(5, dtype=F64))
    opt = ng.NGD([p], momentum=0.0, damping=damping)
    for t in range(300):
        p.grad = a * (-1) ** t
        opt.step()
    size = a.square().mean().sqrt()
    R = inverse_factor(opt, p, 0, ng.Diagonal())
    torch.testing.assert_close(1 / R.diagonal() ** 4, a**2 + (damping * size) ** 2, rtol=1e-5, atol=0)


@pytest.mark.parametrize("k", [0, 1, 3, 5, 7])
@pytest.mark.parametrize("start", [0, 1, 37, 100_003])
def test_signs_are_white_over_powers_of_two(k, start):
    """Over 2^k steps in a row the mean of z z^T is exactly I, for up to 2^k numbers."""
    Z = torch.stack([signs(torch.tensor(float(start + t)), 2**k) for t in range(2**k)]).double()
    assert bool((Z.abs() == 1).all())
    assert torch.equal(Z.mT @ Z / 2**k, eye(2**k))


def test_signs_of_fewer_numbers_are_the_first_of_more():
    t = torch.tensor(77.0)
    assert torch.equal(signs(t, 5), signs(t, 300)[:5])
