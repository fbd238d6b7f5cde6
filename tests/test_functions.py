"""The test functions: against scalar loops over the published formulas, at their minimisers and at published values."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.optimize import minimize, rosen
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

from natgrad.experiments.functions import FUNCTIONS, Problem, far_start, starts
from tests import oracle

everything = pytest.mark.parametrize("name", FUNCTIONS)
SIZES = (1, 2, 3, 5, 6, 8, 13, 17, 30)  # wanted


def sizes(problem: Problem) -> list[int]:
    return sorted({problem.size(p) for p in SIZES})


def point(p: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return scale * torch.randn(p, dtype=torch.float64, generator=oracle.generator(seed))


# ---- each formula once more, with loops and Python's floats; x[1] .. x[p], and x[0] = x[p + 1] = 0


def rosenbrock(x, p):
    return sum(100 * (x[i + 1] - x[i] ** 2) ** 2 + (x[i] - 1) ** 2 for i in range(1, p)) / p


def rosenbrock_printed(x, p):
    return sum(100 * (x[i + 1] - x[i]) ** 2 + (x[i] - 1) ** 2 for i in range(1, p)) / p


def dixon_price(x, p):
    return ((x[1] - 1) ** 2 + sum(i * (2 * x[i] ** 2 - x[i - 1]) ** 2 for i in range(2, p + 1))) / p


def extended_rosenbrock(x, p):
    f = 0.0
    for i in range(1, p // 2 + 1):
        f += (10 * (x[2 * i] - x[2 * i - 1] ** 2)) ** 2
        f += (1 - x[2 * i - 1]) ** 2
    return f


def tridia(x, p):
    return (x[1] - 1) ** 2 + sum(i * (2 * x[i] - x[i - 1]) ** 2 for i in range(2, p + 1))


def powell(x, p, step=4):
    f = 0.0
    for i in range(1, p - 2, step):
        f += (x[i] + 10 * x[i + 1]) ** 2
        f += (math.sqrt(5) * (x[i + 2] - x[i + 3])) ** 2
        f += ((x[i + 1] - 2 * x[i + 2]) ** 2) ** 2
        f += (math.sqrt(10) * (x[i] - x[i + 3]) ** 2) ** 2
    return f


def wood(x, p, step=4):
    f = 0.0
    for i in range(1, p - 2, step):
        f += (10 * (x[i + 1] - x[i] ** 2)) ** 2
        f += (1 - x[i]) ** 2
        f += (math.sqrt(90) * (x[i + 3] - x[i + 2] ** 2)) ** 2
        f += (1 - x[i + 2]) ** 2
        f += (math.sqrt(10) * (x[i + 1] + x[i + 3] - 2)) ** 2
        f += ((x[i + 1] - x[i + 3]) / math.sqrt(10)) ** 2
    return f


def broyden_tridiagonal(x, p):
    return sum(((3 - 2 * x[i]) * x[i] - x[i - 1] - 2 * x[i + 1] + 1) ** 2 for i in range(1, p + 1))


def broyden_banded(x, p):
    f = 0.0
    for i in range(1, p + 1):
        r = x[i] * (2 + 5 * x[i] ** 2) + 1
        for j in range(max(1, i - 5), min(p, i + 1) + 1):
            if j != i:
                r -= x[j] * (1 + x[j])
        f += r**2
    return f


def boundary_value(x, p):
    h = 1 / (p + 1)
    return sum((2 * x[i] - x[i - 1] - x[i + 1] + h**2 * (x[i] + i * h + 1) ** 3 / 2) ** 2 for i in range(1, p + 1))


def cosine(x, p):
    return sum(math.cos(x[i] ** 2 - 0.5 * x[i + 1]) for i in range(1, p))


def arwhead(x, p):
    return sum((x[i] ** 2 + x[p] ** 2) ** 2 - 4 * x[i] + 3 for i in range(1, p))


def nondquar(x, p):
    return (x[1] - x[2]) ** 2 + (x[p - 1] - x[p]) ** 2 + sum((x[i] + x[i + 1] + x[p]) ** 4 for i in range(1, p - 1))


def minimal_surface(x, p):
    n = round(p**0.5)
    h = 1 / (n + 1)

    def z(i, j):
        inside = 1 <= i <= n and 1 <= j <= n
        return x[(i - 1) * n + j] if inside else 1 + 4 * i * h + 8 * j * h

    f = 0.0
    for i in range(n + 1):
        for j in range(n + 1):
            a, b = z(i, j) - z(i + 1, j + 1), z(i + 1, j) - z(i, j + 1)
            f += h**2 * math.sqrt(1 + 0.5 * (a**2 + b**2) / h**2)
    return f


def phi4(x, p):
    n = round(p**0.5)
    f = sum((x[i] ** 2 - 1) ** 2 for i in range(1, p + 1))
    for i in range(1, n + 1):
        for j in range(1, n + 1):
            here = (i - 1) * n + j
            f += (x[here] - x[here + n]) ** 2 if i < n else 0.0
            f += (x[here] - x[here + 1]) ** 2 if j < n else 0.0
    return f


def trigonometric(x, p):
    cosines = sum(math.cos(x[j]) for j in range(1, p + 1))
    return sum((p - cosines + i * (1 - math.cos(x[i])) - math.sin(x[i])) ** 2 for i in range(1, p + 1))


def variably_dimensioned(x, p):
    s = sum(j * (x[j] - 1) for j in range(1, p + 1))
    return sum((x[i] - 1) ** 2 for i in range(1, p + 1)) + s**2 + (s**2) ** 2


def penalty(x, p):
    squares = sum(x[i] ** 2 for i in range(1, p + 1))
    return sum((math.sqrt(1e-5) * (x[i] - 1)) ** 2 for i in range(1, p + 1)) + (squares - 0.25) ** 2


LOOPS: dict[str, Callable[[list[float], int], float]] = {
    "rosenbrock": rosenbrock,
    "rosenbrock-printed": rosenbrock_printed,
    "dixon-price": dixon_price,
    "extended-rosenbrock": extended_rosenbrock,
    "tridia": tridia,
    "powell": powell,
    "chained-powell": lambda x, p: powell(x, p, step=2),
    "wood": wood,
    "chained-wood": lambda x, p: wood(x, p, step=2),
    "broyden-tridiagonal": broyden_tridiagonal,
    "broyden-banded": broyden_banded,
    "boundary-value": boundary_value,
    "cosine": cosine,
    "arwhead": arwhead,
    "nondquar": nondquar,
    "minimal-surface": minimal_surface,
    "phi4": phi4,
    "trigonometric": trigonometric,
    "variably-dimensioned": variably_dimensioned,
    "penalty": penalty,
}


@everything
def test_values_are_those_of_the_formula(name):
    problem = FUNCTIONS[name]
    for p in sizes(problem):
        for x in [problem.start(p), point(p), point(p, 1, 3.0), point(p, 2, 0.01)]:
            before = x.clone()
            value = problem.value(x)
            assert value.shape == ()
            assert torch.equal(x, before)
            expected = LOOPS[name]([0.0, *x.tolist(), 0.0], p)
            assert float(value) == pytest.approx(expected, rel=1e-12, abs=1e-14)


def test_rosenbrock_is_scipys_over_p():
    x = point(200)
    assert float(FUNCTIONS["rosenbrock"].value(x)) == pytest.approx(rosen(x.numpy()) / 200, rel=1e-13)


PUBLISHED = [  # as tables have them or a pencil finds them
    ("extended-rosenbrock", 2, 24.2),
    ("powell", 4, 215),
    ("chained-powell", 4, 215),
    ("wood", 4, 19192),
    ("chained-wood", 4, 19192),
    ("broyden-tridiagonal", 10, 21),
    ("broyden-banded", 10, 360),
    ("trigonometric", 10, 0.00707576),
    ("variably-dimensioned", 10, 2198551.1625),
    ("penalty", 4, 885.06264),
    ("penalty", 10, 148032.56535),
    ("tridia", 30, 464),
    ("arwhead", 1000, 2997),
    ("nondquar", 10000, 10006),
    ("cosine", 10000, 8774.948),
]


@pytest.mark.parametrize(("name", "p", "value"), PUBLISHED)
def test_values_at_the_start_are_the_published_ones(name, p, value):
    problem = FUNCTIONS[name]
    assert problem.size(p) == p
    assert float(problem.value(problem.start(p))) == pytest.approx(value, rel=2e-6)


def test_starts_that_alternate_or_change_their_pattern():
    assert FUNCTIONS["rosenbrock"].start(5).tolist() == [-1.2, 1, -1.2, 1, -1.2]
    assert FUNCTIONS["dixon-price"].start(3).tolist() == [1, 1, 1]
    assert FUNCTIONS["powell"].start(8).tolist() == [3, -1, 0, 1] * 2
    assert FUNCTIONS["chained-wood"].start(10).tolist() == [-3, -1, -3, -1, -2, 0, -2, 0, -2, 0]
    oracle.close(FUNCTIONS["boundary-value"].start(3), torch.tensor([-3 / 16, -1 / 4, -3 / 16]).double())
    oracle.close(FUNCTIONS["variably-dimensioned"].start(4), torch.tensor([0.75, 0.5, 0.25, 0.0]).double())
    oracle.close(FUNCTIONS["trigonometric"].start(4), torch.full((4,), 0.25).double())


@everything
def test_the_minimizer_is_a_minimizer(name):
    problem = FUNCTIONS[name]
    gradient, hessian = torch.func.grad(problem.value), torch.func.hessian(problem.value)
    for p in sizes(problem):
        if problem.minimizer is None:
            x = solution(problem, p)
        else:
            x = problem.minimizer(p)
            assert x.shape == (p,)
            assert x.dtype == torch.float64
        H = hessian(x)
        eigenvalues = torch.linalg.eigvalsh(H)
        assert abs(float(problem.value(x)) - problem.minimum(p)) <= 1e-14 * max(1, abs(problem.minimum(p)))
        assert float(gradient(x).norm()) <= 1e-12 * max(1, float(eigenvalues.max()))
        assert float(eigenvalues.min()) >= -1e-13 * float(eigenvalues.max())


def solution(problem: Problem, p: int) -> Tensor:
    """The minimiser found from the usual start, polished by Newton's method."""
    gradient, hessian = torch.func.grad(problem.value), torch.func.hessian(problem.value)
    x = minimize(
        lambda x: float(problem.value(torch.from_numpy(x))),
        problem.start(p).numpy(),
        jac=lambda x: gradient(torch.from_numpy(x)).numpy(),
        method="BFGS",
        options={"gtol": 1e-7},
    ).x
    x = torch.from_numpy(x)
    for _ in range(3):
        x = x - torch.linalg.solve(hessian(x), gradient(x))
    return x


@everything
def test_nothing_is_below_the_minimum(name):
    problem = FUNCTIONS[name]
    for p in sizes(problem):
        x = problem.minimizer(p) if problem.minimizer else problem.start(p)
        for seed in range(20):
            for scale in (1e-3, 0.1, 1.0, 3.0):
                minimum = problem.minimum(p)
                assert float(problem.value(x + point(p, seed, scale))) >= minimum - 1e-14 * abs(minimum)
                assert float(problem.value(point(p, seed, scale))) >= minimum


@pytest.mark.parametrize(("p", "published"), [(4, 2.24997e-5), (10, 7.08765e-5)])
def test_the_published_minima_of_penalty_1(p, published):
    assert FUNCTIONS["penalty"].minimum(p) == pytest.approx(published, rel=1e-5)


def test_dixon_price_minimizer_as_published():
    for p in (2, 30, 1000):
        x = FUNCTIONS["dixon-price"].minimizer(p)
        published = [2.0 ** (-(2**i - 2) / 2**i) for i in range(1, min(p, 10) + 1)]
        oracle.close(x[:10], torch.tensor(published, dtype=torch.float64))
    assert float(FUNCTIONS["dixon-price"].value(FUNCTIONS["dixon-price"].minimizer(100_000))) < 1e-26


def test_the_plane_is_the_least_surface():
    problem = FUNCTIONS["minimal-surface"]
    for n in (1, 2, 7, 30):
        x = problem.minimizer(n * n)
        t = torch.arange(1, n + 1).double() / (n + 1)
        oracle.close(x.reshape(n, n), 1 + 4 * t[:, None] + 8 * t)
        assert float(problem.value(x)) == pytest.approx(9, rel=1e-14)
        assert float(problem.value(x + point(n * n, scale=1e-3))) > 9


def test_phi4_starts_near_a_saddle_of_high_index():
    problem = FUNCTIONS["phi4"]
    x = problem.start(225)
    assert 0 < float(x.abs().max()) < 0.05
    assert torch.equal(x, problem.start(225))
    index = int((torch.linalg.eigvalsh(torch.func.hessian(problem.value)(x)) < 0).sum())
    at_zero = int((torch.linalg.eigvalsh(torch.func.hessian(problem.value)(0 * x)) < 0).sum())
    assert index == at_zero
    assert 0.18 * 225 < index < 0.25 * 225
    assert float(torch.func.grad(problem.value)(0 * x).abs().max()) == 0
    oracle.close(problem.value(torch.ones(9).double()), problem.value(-torch.ones(9).double()))


@everything
def test_sizes_are_the_nearest(name):
    problem = FUNCTIONS[name]
    there = {p for p in range(1, 400) if problem.size(p) == p}
    assert there
    for wanted in range(-3, 200):
        p = problem.size(wanted)
        assert isinstance(p, int)
        assert p in there
        assert abs(p - wanted) == min(abs(q - wanted) for q in there)
    assert abs(problem.size(100_000) - 100_000) < 400


def test_sizes_with_a_pattern():
    smallest = {name: problem.size(1) for name, problem in FUNCTIONS.items()}
    assert [name for name, p in smallest.items() if p == 4] == ["powell", "chained-powell", "wood", "chained-wood"]
    assert [name for name, p in smallest.items() if p == 3] == ["nondquar"]
    assert max(smallest.values()) == 4
    assert {name for name, p in smallest.items() if p == 2} == {
        "rosenbrock",
        "rosenbrock-printed",
        "dixon-price",
        "extended-rosenbrock",
        "tridia",
        "cosine",
        "arwhead",
    }
    assert {name for name, problem in FUNCTIONS.items() if problem.size(200) == 196} == {"minimal-surface", "phi4"}
    assert all(problem.size(144) == 144 for problem in FUNCTIONS.values())


@everything
def test_sizes_that_do_not_exist_are_refused(name):
    problem = FUNCTIONS[name]
    for p in range(1, 12):
        if problem.size(p) == p:
            assert math.isfinite(float(problem.value(problem.start(p))))
            assert problem.start(p).dtype == torch.float64
            continue
        with pytest.raises(ValueError, match=f"got n = 1 and p = {p}; the nearest number of variables is"):
            starts(problem, p, 1)
        if p > 4:  # below, a sum is empty
            with pytest.raises(RuntimeError):
                problem.value(point(p))


@everything
def test_derivatives_by_every_transform(name):
    """grad against differences, jvp of grad against the Hessian, vmap against a loop, make_fx against the function."""
    problem = FUNCTIONS[name]
    gradient = torch.func.grad(problem.value)
    for p in sizes(problem)[:6]:
        x, v = point(p), point(p, 1)
        g, Hv = torch.func.jvp(gradient, (x,), (v,))
        H = torch.func.hessian(problem.value)(x)
        size = float(H.norm()) + float(g.norm()) + abs(float(problem.value(x)))
        assert float((g - gradient(x)).norm()) <= 1e-13 * size
        assert float((H @ v - Hv).norm()) <= 1e-13 * size * float(v.norm())
        assert float((H - H.mT).norm()) <= 1e-13 * size
        h = 1e-5
        slope = (problem.value(x + h * v) - problem.value(x - h * v)) / (2 * h)
        assert float((slope - g @ v).abs()) <= 1e-5 * size * float(v.norm())
        X = torch.stack([x, v, x + v])
        oracle.close(torch.func.vmap(problem.value)(X), torch.stack([problem.value(x) for x in X]))
        oracle.close(torch.func.vmap(gradient)(X), torch.stack([gradient(x) for x in X]))
        oracle.close(make_fx(gradient)(x)(v), gradient(v))


@everything
def test_the_number_of_operations_does_not_grow_with_p(name):
    problem = FUNCTIONS[name]
    few, many = (problem.size(p) for p in (16, 1000))
    graphs = [make_fx(torch.func.grad(problem.value))(problem.start(p)).graph for p in (few, many)]
    assert len(graphs[0].nodes) == len(graphs[1].nodes) < 200


@everything
def test_float32(name):
    problem = FUNCTIONS[name]
    for p in sizes(problem):
        for x in [problem.start(p), point(p)]:
            value, g = torch.func.grad_and_value(problem.value)(x.float())[::-1]
            assert value.dtype == g.dtype == torch.float32
            exact = torch.func.grad(problem.value)(x)
            assert float(value) == pytest.approx(float(problem.value(x)), rel=1e-4, abs=1e-5)
            assert float((g - exact).norm()) <= 1e-4 * max(1, float(exact.norm()))


@everything
def test_the_hessian_is_as_sparse_as_it_says(name):
    problem = FUNCTIONS[name]
    for wanted in (30, 64):
        p = problem.size(wanted)
        H = torch.func.hessian(problem.value)(point(p))
        entries = (H != 0).sum(1).sort().values
        if problem.sparse:
            assert int(entries[-2]) <= 13
        else:
            assert int(entries[0]) == p


PROGRAM = """
import resource, torch
from natgrad.experiments.functions import FUNCTIONS
torch.set_num_threads(1)
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
small = torch.ones(4, dtype=torch.float64)
torch.func.jvp(torch.func.grad(FUNCTIONS["powell"].value), (small,), (small,))
before = peak()
for problem in FUNCTIONS.values():
    x = problem.start(problem.size(100_000))
    value = problem.value(x)
    g, Hg = torch.func.jvp(torch.func.grad(problem.value), (x,), (torch.ones_like(x),))
    assert all(torch.isfinite(t).all() for t in (value, g, Hg)), problem.name
    assert problem.minimizer is None or problem.value(problem.minimizer(len(x))) <= value
print(peak() - before)
"""


def test_memory_is_linear_in_p():
    """A vector of 1e5 numbers takes 0.8 MiB, a matrix 76,000."""
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, check=False)
    assert result.returncode == 0, result.stderr
    assert float(result.stdout) < 80


@pytest.mark.parametrize("name", ["rosenbrock", "rosenbrock-printed", "dixon-price"])
def test_the_papers_far_start_comes_second(name):
    problem = FUNCTIONS[name]
    both = starts(problem, 200, 2, seed=7)
    assert torch.equal(both[1], far_start(200, 7))
    value = float(problem.value(far_start(200, 7)))
    assert 1e4 < value < 1e9


def test_far_starts_are_15_half_normals():
    x = far_start(100_000, 3)
    assert x.dtype == torch.float64
    assert float(x.min()) >= 0
    assert float(x.mean()) == pytest.approx(15 * math.sqrt(2 / math.pi), rel=0.02)
    assert float((x**2).mean()) == pytest.approx(225, rel=0.02)
    assert torch.equal(x, 15 * torch.from_numpy(np.random.default_rng(3).standard_normal(100_000)).abs())


@everything
def test_starts_are_many_different_and_reproducible(name):
    problem = FUNCTIONS[name]
    p = problem.size(20)
    five = starts(problem, p, 5, seed=1)
    assert len(five) == 5
    assert torch.equal(five[0], problem.start(p))
    assert all(torch.equal(x, y) for x, y in zip(five[:3], starts(problem, p, 3, seed=1), strict=True))
    assert all(x.shape == (p,) and x.dtype == torch.float64 for x in five)
    assert all(math.isfinite(float(problem.value(x))) for x in five)
    others = [*five, *starts(problem, p, 5, seed=2)[1:]]
    assert len({tuple(x.tolist()) for x in others}) == 9
    assert 0.3 < float(((five[-1] - five[0]) / (1 + five[0].abs())).std()) < 2
    with pytest.raises(ValueError, match="expected n >= 1"):
        starts(problem, p, 0)


def test_the_names_are_those_of_the_table():
    assert set(LOOPS) == set(FUNCTIONS)
    assert all(problem.name == name for name, problem in FUNCTIONS.items())
