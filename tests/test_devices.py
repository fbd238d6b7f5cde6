"""Every structure gives on an accelerator what it gives on the CPU. Skipped where there is none."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import natgrad as ng

P = 12
CHAIN = np.eye(P) + np.eye(P, k=1) + np.eye(P, k=-1)
RELATION = np.eye(P)
RELATION[0] = RELATION[1, 5:] = 1
STRUCTURES = {
    "dense": (ng.Dense(), P),
    "diagonal": (ng.Diagonal(), P),
    "block diagonal": (ng.BlockDiagonal(3), P),
    "lower": (ng.Lower(2, 3), P),
    "upper": (ng.Upper(2, 3), P),
    "toeplitz": (ng.Toeplitz(), P),
    "upper toeplitz": (ng.Toeplitz(upper=True), P),
    "circulant": (ng.Circulant(), P),
    "permuted": (ng.Conjugate(ng.Lower(2), np.arange(P)[::-1]), P),
    "rotated": (ng.Conjugate(ng.Lower(2), np.linalg.qr(np.vander(np.linspace(-1, 1, P)))[0]), P),
    "sparse": (ng.SparseCholesky(CHAIN, order=[*range(0, P, 2), *range(1, P, 2)]), P),
    "relation": (ng.SparseCholesky.from_relation(RELATION), P),
    "kronecker": (ng.Kronecker(ng.Lower(1), ng.Dense()), (3, 4)),
}
ACCELERATORS = [name for name in ("cuda", "xpu") if getattr(torch, name).is_available()]


def everything(structure: ng.Structure, size, device: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """The results of all operations, on the CPU."""
    generator = torch.Generator().manual_seed(0)
    U, V, x = (torch.randn(2, P, 3, generator=generator, dtype=torch.float64).to(device, dtype) for _ in range(3))
    H = torch.tensor(CHAIN).to(device, dtype) * torch.arange(1, P + 1).to(device, dtype).sqrt().outer(
        torch.arange(1, P + 1).to(device, dtype).sqrt()
    )
    B = structure.identity(size, dtype=dtype, device=device, batch=(2,))
    B = B.retract(0.05 * B.project(U, V))
    mu, C = ng.curvature_first_step(
        x[..., 0], B, x[..., 1], lambda W: H @ W, beta=0.3, diagonal=H.diagonal().expand(2, P).contiguous()
    )
    results = [C.dense(), B.apply(x), B.apply(x, True), B.solve(x), B.solve(x, True), B.logdet(), (B @ C).dense(), mu]
    assert all(str(t.device).startswith(device) for t in [*results, *C.tensors()])
    return [t.cpu() for t in results]


@pytest.mark.parametrize("device", ACCELERATORS)
def test_accelerators_agree_with_the_cpu(device):
    for name, (structure, size) in STRUCTURES.items():
        for dtype, tolerance in [(torch.float32, 1e-3), (torch.float64, 1e-10)]:
            on_cpu, there = (everything(structure, size, where, dtype) for where in ("cpu", device))
            for a, b in zip(on_cpu, there, strict=True):
                torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=f"{name}, {dtype}")


@pytest.mark.skipif(not ACCELERATORS, reason="no accelerator")
@pytest.mark.parametrize("options", [{}, {"structure": ng.Dense()}, {"structure": ng.Lower(1)}, {"mode": "paper"}])
@pytest.mark.parametrize("device", ACCELERATORS)
def test_minimize_takes_the_same_steps(device, options):
    def rosenbrock(x):
        return (100 * (x[1:] - x[:-1] ** 2) ** 2 + (1 - x[:-1]) ** 2).sum()

    x0 = torch.linspace(1, 2, 50, dtype=torch.float64)
    here = ng.minimize(rosenbrock, x0, maxiter=10, **options)
    there = ng.minimize(rosenbrock, x0.to(device), maxiter=10, **options)
    assert there.x.device.type == device
    assert torch.allclose(here.x, there.x.cpu(), rtol=1e-6)
