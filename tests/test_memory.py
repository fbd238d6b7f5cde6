"""Sizes that only the structured storage can hold: each in a process of its own, its peak memory read.

The peak is VmHWM, for ru_maxrss of a new process begins with what the process that started it had.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import torch, numpy as np, natgrad as ng
from natgrad.experiments.structures import chain
torch.set_num_threads(1)
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
baseline = peak()
{body}
x = torch.linspace(1, 2, p)
d = torch.linspace(2, 3, p)
for _ in range(2):
    mu, B = ng.curvature_first_step(x, B, x, lambda V: d[:, None] * V, beta=0.5, diagonal=d)
assert torch.isfinite(mu).all()
assert torch.allclose(B.solve(B.apply(x)), x, rtol=1e-3)
print(peak() - baseline)
"""

CASES = {  # MiB allowed; a p x p matrix would take 4e6 of them at p = 1e6 and 4e4 at 1e5
    "p = 1_000_000; B = ng.Lower(5).identity(p)": 400,
    "p = 1_000_000; B = ng.Upper(2, 3).identity(p)": 400,
    "p = 1_000_000; B = ng.Diagonal().identity(p)": 100,
    "p = 1_000_000; B = ng.Conjugate(ng.Lower(3), np.arange(p)[::-1]).identity(p)": 400,
    "p = 100_000; B = ng.SparseCholesky(chain(p)).identity(p)": 900,
}


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("body", CASES)
def test_peak_memory(body):
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)], capture_output=True, text=True, check=True, timeout=300
    )
    used = float(result.stdout)
    assert used < CASES[body]
    print(f"{body}: {used:.0f} MiB")


def test_kronecker_never_forms_the_product():
    import torch

    import natgrad as ng

    B = ng.Kronecker(ng.Lower(2), ng.Lower(3)).identity((1000, 1200))
    x = torch.linspace(1, 2, 1_200_000)
    M = B.project(x, x / x.norm() ** 2)
    B = B.retract(M)
    assert torch.allclose(B.covariance(B.precision(x)), x, rtol=1e-3)
    assert sum(t.numel() for t in B.tensors()) < 10_000
