"""Toeplitz solves where the inverse series grows: as accurate as substitution."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.linalg
import torch

import natgrad as ng

SERIES = {
    "well conditioned": [1.0, -0.5, 0.3],
    "second difference": [1.0, -2.0, 1.0],
    "third difference": [1.0, -3.0, 3.0, -1.0],
    "exponential growth": [1.0, 1.05],
    "small": [1e-3, 1e-4],
}


@pytest.mark.parametrize("upper", [False, True])
@pytest.mark.parametrize("series", SERIES)
@pytest.mark.parametrize(("p", "dtype"), [(70, torch.float32), (512, torch.float64), (1024, torch.float64)])
def test_against_substitution(series, upper, p, dtype):
    t = np.zeros(p)
    t[: len(SERIES[series])] = SERIES[series]
    B = ng.Toeplitz(upper=upper).identity(p, dtype=dtype).map(lambda _: torch.tensor(t, dtype=dtype))
    x = np.random.default_rng(0).standard_normal(p)
    T = scipy.linalg.toeplitz(t, np.zeros(p))
    for transpose in (False, True):
        lower = upper == transpose
        expected = scipy.linalg.solve_triangular(T if lower else T.T, x, lower=lower)
        y = B.solve(torch.tensor(x, dtype=dtype), transpose=transpose).double().numpy()
        assert np.abs(y - expected).max() <= (1e-8 if dtype == torch.float64 else 1e-3) * np.abs(expected).max()
