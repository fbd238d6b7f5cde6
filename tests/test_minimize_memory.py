"""p = 1e5 variables: each run in a process of its own, its peak memory read. A p x p matrix would take 80 GB.

The peak is VmHWM, for ru_maxrss of a new process begins with what the process that started it had.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import torch, numpy as np, natgrad as ng
from natgrad.experiments.functions import FUNCTIONS
from natgrad.experiments.structures import chain
torch.set_num_threads(1)
p = 100_000
def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024
baseline = peak()
{body}
assert result.success, result.message
assert len(result.x) == p
y = result.hess_inv @ np.ones(p)
assert np.isfinite(y).all()
print(peak() - baseline)
"""

DETECTED = """
problem = FUNCTIONS["broyden-tridiagonal"]
result = ng.minimize(problem.value, problem.start(p))
assert result.nhvp < 100
"""

LOWER = """
problem = FUNCTIONS["extended-rosenbrock"]
def hess_diag(x):
    a, b = x.reshape(-1, 2).unbind(1)
    return torch.stack([1200 * a**2 - 400 * b + 2, 0 * a + 200], 1).reshape(-1)
result = ng.minimize(
    problem.value, problem.start(p), structure=ng.Lower(2), hess_diag=hess_diag, cg_steps=20, gtol=1e-3
)
"""

PRODUCTS = """
from scipy.optimize import rosen, rosen_der, rosen_hess_prod
result = ng.minimize(rosen, np.full(p, 1.1), jac=rosen_der, hessp=rosen_hess_prod, hess_sparsity=chain(p))
assert result.nhvp < 200
"""

CONJUGATE = """
problem = FUNCTIONS["variably-dimensioned"]
result = ng.minimize(problem.value, problem.start(p))
"""

CASES = {  # MiB allowed beyond what the imports take
    "detected sparsity": (DETECTED, 500),
    "Lower(2) with the diagonal": (LOWER, 300),
    "NumPy products with a pattern": (PRODUCTS, 300),
    "conjugate gradients": (CONJUGATE, 300),
}


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
@pytest.mark.parametrize("case", CASES)
def test_peak_memory(case):
    body, allowed = CASES[case]
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(body=body)], capture_output=True, text=True, check=True, timeout=120
    )
    used = float(result.stdout)
    assert used < allowed
    print(f"{case}: {used:.0f} MiB")
