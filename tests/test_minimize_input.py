"""`minimize` and bad input: a clear error that says what to pass, or an honest failed result; never a wrong success."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, lil_array

import natgrad as ng
from natgrad.experiments.functions import FUNCTIONS
from natgrad.experiments.structures import chain, grid

F64 = torch.float64
CONVERGED, LIMIT, STUCK, NOT_FINITE, STOPPED = 0, 1, 2, 3, 99
x3, zeros3 = torch.full((3,), 2.0, dtype=F64), np.zeros(3)
MATRIX = np.diag([2.0, 3.0, 4.0])


def square(x):
    return ((x - 1) ** 2).sum()


def numpy_square(x: np.ndarray) -> float:
    return float(((np.asarray(x) - 1) ** 2).sum())


def slope(x):
    return 2 * (x - 1)


def ours(**options):
    """A torch function of a tensor."""
    return lambda: ng.minimize(square, x3, **options)


def theirs(**options):
    """A NumPy function of an array."""
    return lambda: ng.minimize(numpy_square, zeros3, **{"jac": slope, "hess": lambda x: 2 * np.eye(3), **options})


def refused(call, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=re.escape(message)) as caught:
        call()
    assert "\n" not in str(caught.value)


ARGUMENTS = {
    # x0
    "x0 must be float32 or float64, got int64; write np.asarray(x0, dtype=float)": lambda: ng.minimize(
        numpy_square, np.zeros(3, dtype=int), jac=slope, hessp=lambda x, v: 2 * v
    ),
    "x0 must be float32 or float64, got torch.int64; write x0.double()": lambda: ng.minimize(square, torch.arange(3)),
    "got torch.float16": lambda: ng.minimize(square, x3.half()),
    "got torch.complex128": lambda: ng.minimize(square, x3 * 1j),
    "got complex128": lambda: ng.minimize(square, zeros3 * 1j),
    "got <U1": lambda: ng.minimize(square, "a"),
    "must share one dtype and device, got": lambda: ng.minimize(square, (x3, x3.float())),
    "but holds a int": lambda: ng.minimize(square, {"a": x3, "b": 3}),
    "but holds a NoneType": lambda: ng.minimize(square, [x3, None]),
    # fun and its derivatives
    "fun must be a function of x, got None": lambda: ng.minimize(None, x3),
    "jac must be a function of x, got '2-point'": ours(jac="2-point"),
    "hess must be a function of x, got '3-point'": theirs(hess="3-point"),
    "hessp must be a function of x, got array": theirs(hess=None, hessp=zeros3),
    "hess_diag must be a function of x, got 3": ours(hess_diag=3),
    "args must be a tuple, got float; write args=(3.0,)": ours(args=3.0),
    "jac is missing; pass jac= and hessp= (or hess=)": lambda: ng.minimize(numpy_square, zeros3),
    "so its derivatives must be given: jac is missing": theirs(jac=None),
    "hessp is missing; pass jac= and hessp= (or hess=)": theirs(hess=None),
    "or write fun with torch operations": theirs(hess=None),
    "fun must return one number, got shape (3,); sum it, or take its mean": lambda: ng.minimize(slope, x3),
    "fun must return one number, got shape (2,)": lambda: ng.minimize(
        lambda x: x[:2], zeros3, jac=slope, hess=lambda x: np.eye(3)
    ),
    "fun must return a real number, got": lambda: ng.minimize(lambda x: (x * 1j).sum(), x3),
    "fun must return a real number, got np.complex128(": lambda: ng.minimize(
        lambda x: np.sum(x * 1j), zeros3, jac=slope, hess=lambda x: np.eye(3)
    ),
    "was it detached, or computed by NumPy?": lambda: ng.minimize(lambda x: square(x).detach(), x3),
    "does not depend on x through torch operations": lambda: ng.minimize(lambda x: torch.tensor(3.0), x3),
    "jac must return 3 real numbers, got float64 of shape (2,)": theirs(jac=lambda x: slope(x)[:2]),
    "jac must return 3 real numbers, got float64 of shape (4,)": theirs(jac=lambda x: np.ones(4)),
    "jac must return 3 real numbers, got complex128 of shape (3,)": theirs(jac=lambda x: 1j * x),
    "jac must return 3 real numbers, got object": theirs(jac=lambda x: None),
    "jac must return tensors shaped like x0, [(3,)], got [(2,)]": ours(jac=lambda x: slope(x)[:2]),
    "fun, with jac=True, as its second result, must return 3 real numbers, got float64 of shape (2,)": lambda: (
        ng.minimize(lambda x: (numpy_square(x), slope(x)[:2]), zeros3, jac=True, hess=lambda x: np.eye(3))
    ),
    "hess must return a real 3 x 3 matrix, got torch.float64 (2, 2)": theirs(hess=lambda x: np.eye(2)),
    "hess must return a real 3 x 3 matrix, got torch.float64 (3,)": theirs(hess=lambda x: np.ones(3)),
    "hess must return a 3 x 3 matrix, got shape (4, 4)": theirs(hess=lambda x: csr_array(np.eye(4))),
    "hess must return a real 3 x 3 matrix, got torch.float32 (2, 3)": ours(hess=lambda x: torch.ones(2, 3)),
    "hessp must return 3 real numbers, got float64 of shape (2,)": theirs(hess=None, hessp=lambda x, v: v[:2]),
    "hessp must return tensors shaped like x0, [(3,)], got [(1,)]": ours(hessp=lambda x, v: v[:1]),
    "hess_diag must return 3 real numbers, got float64 of shape (2,)": theirs(
        structure=ng.Lower(1), hess_diag=lambda x: np.ones(2)
    ),
    # the pattern
    "hess_sparsity must be 3 x 3 for 3 variables, got (4, 4)": ours(hess_sparsity=np.eye(4)),
    "hess_sparsity must be square, p x p, got shape (2, 3)": ours(hess_sparsity=np.ones((2, 3))),
    "has (0, 1) and not (1, 0)": ours(hess_sparsity=np.eye(3) + np.eye(3, k=1)),
    "hess_sparsity holds NaN": ours(hess_sparsity=np.full((3, 3), np.nan)),
    # settings
    "mode must be one of 'linesearch', 'paper', 'stochastic', got 'newton'": ours(mode="newton"),
    "structure must be \"auto\" or a structure such as ng.Lower(2), got 'Lower'": ours(structure="Lower"),
    "or a structure such as ng.Lower(2), got None": ours(structure=None),
    "needs x0 as one matrix, m x n, got shapes [(3,)]": ours(structure=ng.Kronecker(ng.Dense(), ng.Dense())),
    "k1 + k2 = 4 and p = 3": ours(structure=ng.Lower(2, 2)),
    "that 2 divides, got p=3": ours(structure=ng.BlockDiagonal(2)),
    "was made for p=4, got p=3": ours(structure=ng.SparseCholesky.from_relation(np.eye(4))),
    "beta must be positive, got 0": ours(beta=0),
    "beta must be positive, got -1.0": ours(beta=-1.0),
    "beta must be a finite number, got nan": ours(beta=float("nan")),
    "beta must be a finite number, got '1'": ours(beta="1"),
    "gamma must be positive, got 0.0": ours(gamma=0.0),
    "gtol must not be negative, got -1": ours(gtol=-1),
    "gtol must be a finite number, got nan": ours(gtol=float("nan")),
    "ftol must not be negative, got -1e-09": ours(ftol=-1e-9),
    "maxiter must be at least 0, got -1": ours(maxiter=-1),
    "maxiter must be a whole number, got 10.5": ours(maxiter=10.5),
    "cg_steps must be at least 0, got -1": ours(cg_steps=-1),
    "cg_steps must be a whole number, got 2.5": ours(cg_steps=2.5),
    "cg_steps must be a whole number, got True": ours(cg_steps=True),
    "cg_steps belongs to mode=\"linesearch\", got mode='paper'": ours(cg_steps=3, mode="paper"),
    "callback must be a function, got 3": ours(callback=3),
}


@pytest.mark.parametrize("message", ARGUMENTS)
def test_arguments_are_refused_with_a_reason(message):
    refused(ARGUMENTS[message], ValueError, message)


def test_unknown_arguments_are_refused():
    with pytest.raises(TypeError, match="max_iter"):
        ng.minimize(square, x3, max_iter=5)


# ---- patterns that miss an entry


def missing(pattern, i: int, j: int) -> csr_array:
    less = lil_array(pattern)
    less[i, j] = less[j, i] = 0
    less = csr_array(less)
    less.eliminate_zeros()
    return less


def named_row(caught) -> int:
    found = re.search(r"row (\d+)", str(caught.value))
    assert found is not None
    return int(found[1])


@pytest.mark.parametrize("structure", ["auto", ng.Lower(1)])
@pytest.mark.parametrize("entry", [(1, 0), (17, 16), (39, 38)])
def test_a_pattern_that_misses_an_entry_is_found_out(entry, structure):
    rosenbrock = FUNCTIONS["rosenbrock"]
    with pytest.raises(ValueError, match="misses the entry in row") as caught:
        ng.minimize(
            rosenbrock.value, rosenbrock.start(40), hess_sparsity=missing(chain(40), *entry), structure=structure
        )
    assert "add it to hess_sparsity, or leave that out" in str(caught.value)
    assert named_row(caught) in entry


@pytest.mark.parametrize("seed", range(20))
def test_the_missing_entry_is_named(seed):
    """Others of its colour are read wrongly too, and must not be blamed."""
    random = np.random.default_rng(seed)
    p = 8
    H = np.triu(random.random((p, p)) < 0.4, 1) * random.standard_normal((p, p))
    H = H + H.T + 10 * np.eye(p)
    i, j = random.choice(np.argwhere(np.triu(H, 1)))
    pattern = H != 0
    pattern[i, j] = pattern[j, i] = False
    with pytest.raises(ValueError, match="misses the entry in row") as caught:
        ng.minimize(
            lambda x: float(x @ H @ x / 2 - x.sum()),
            np.zeros(p),
            jac=lambda x: H @ x - 1,
            hessp=lambda x, v: H @ v,
            hess_sparsity=pattern,
        )
    found = re.search(r"row (\d+), column (\d+)", str(caught.value))
    assert found is not None
    assert sorted(map(int, found.groups())) == [i, j]


def test_a_structure_that_misses_an_entry_is_found_out():
    with pytest.raises(ValueError, match="misses the entry in row"):
        ng.minimize(
            lambda x: (x[0] * x[4]) ** 2 + (x**2).sum(),
            torch.ones(5, dtype=F64),
            structure=ng.SparseCholesky(np.eye(5)),
        )


def test_an_entry_that_vanishes_at_x0_is_found_out_at_the_end():
    """x_0 x_3^2: the mixed derivative 2 x_3 is zero at x_3 = 0 and not at the minimum."""

    def function(x):
        return (x[0] - x[3] ** 2) ** 2 + ((x - 1) ** 2).sum()

    x0 = torch.tensor([1.0, 1.0, 1.0, 0.0], dtype=F64)
    with pytest.raises(ValueError, match=r"misses the entry in row [03],"):
        ng.minimize(function, x0, hess_sparsity=np.eye(4))


def test_a_sparse_hess_may_not_leave_the_pattern():
    H = np.array([[3.0, 1.0, 0.0], [1.0, 3.0, 0.0], [0.0, 0.0, 2.0]])
    with pytest.raises(ValueError, match="hess returned a nonzero at row 0, column 1"):
        ng.minimize(
            lambda x: x @ H @ x,
            np.ones(3),
            jac=lambda x: 2 * H @ x,
            hess=lambda x: csr_array(H),
            hess_sparsity=np.eye(3),
        )


@pytest.mark.parametrize("seed", range(5))
def test_more_entries_than_needed_do_no_harm(seed):
    extra = np.random.default_rng(seed).random((36, 36)) < 0.05
    problem = FUNCTIONS["phi4"]
    result = ng.minimize(
        problem.value, problem.start(36), hess_sparsity=grid(36) + csr_array(extra | extra.T).astype(float)
    )
    assert result.success
    assert float(torch.linalg.eigvalsh(torch.func.hessian(problem.value)(result.x))[0]) > 0


# ---- functions that are not finite


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("mode", ["linesearch", "paper", "stochastic"])
def test_not_finite_at_x0_is_an_honest_failure(bad, mode):
    for result in (
        ng.minimize(lambda x: square(x) + bad, x3, mode=mode),
        ng.minimize(lambda x: numpy_square(x) + bad, zeros3, jac=slope, hess=lambda x: MATRIX, mode=mode),
    ):
        assert not result.success
        assert result.status == NOT_FINITE
        assert "not finite at x0" in result.message
        assert result.nit == 0
        assert len(result.x) == 3
        assert not math.isfinite(result.fun)
        assert result.hess_inv.shape == (3, 3)


def test_a_gradient_that_is_not_finite_at_x0_is_an_honest_failure():
    result = ng.minimize(lambda x: x.sqrt().sum(), torch.zeros(3, dtype=F64))
    assert not result.success
    assert result.status == NOT_FINITE
    assert "gradient is not finite at x0" in result.message


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_x0_that_is_not_finite_is_an_honest_failure(bad):
    result = ng.minimize(square, torch.tensor([1.0, bad, 1.0], dtype=F64))
    assert not result.success
    assert result.status == NOT_FINITE


@pytest.mark.parametrize("p", [1, 5, 60])
@pytest.mark.parametrize("structure", ["auto", ng.Dense(), ng.Diagonal()])
def test_steps_out_of_the_domain_are_taken_back(p, structure):
    """x - log x: from x > 2 Newton's step, to x (2 - x), leaves the domain."""
    for start in (1.5, 5.0, 1e3):
        result = ng.minimize(
            lambda x: (x - torch.log(x)).sum(), torch.full((p,), start, dtype=F64), structure=structure
        )
        assert result.success
        assert result.fun == pytest.approx(p)
        torch.testing.assert_close(result.x, torch.ones(p, dtype=F64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("structure", ["auto", ng.Diagonal()])
def test_points_without_a_gradient_are_taken_back(structure):
    """(x + 1)^2, whose gradient is NaN below 0, where the minimum is: the run ends above, without success."""
    result = ng.minimize(
        lambda x: float(((x + 1) ** 2).sum()),
        np.full(3, 2.0),
        jac=lambda x: np.where(x < 0, np.nan, 2 * (x + 1)),
        hess=lambda x: 2 * np.eye(3),
        structure=structure,
    )
    assert not result.success
    assert np.isfinite(result.jac).all()
    assert (result.x >= 0).all()
    assert result.fun < 4


@pytest.mark.parametrize("way", ["hess", "hessp"])
def test_a_hessian_that_is_not_finite_is_done_without(way):
    """Only the gradient is left, and S as it is at the start."""
    nan = {"hess": lambda x: np.full((3, 3), np.nan), "hessp": lambda x, v: np.full(3, np.nan)}[way]
    result = ng.minimize(numpy_square, zeros3, jac=slope, **{way: nan})
    assert not result.success or result.fun < 1e-10


# ---- functions whose derivatives are wrong


WRONG = {
    "sign": lambda x: -2 * (x - 1),
    "one entry": lambda x: np.append(-2 * (x[:1] - 1), 2 * (x[1:] - 1)),
    "rotated": lambda x: np.roll(2 * (x - np.arange(len(x))), 1) * np.where(np.arange(len(x)) % 2, -1, 1),
}


@pytest.mark.parametrize("structure", ["auto", ng.Dense(), ng.Lower(2), ng.Diagonal(), ng.SparseCholesky(chain(40))])
@pytest.mark.parametrize("way", WRONG)
def test_a_wrong_gradient_is_never_success(way, structure):
    target = np.arange(40) if way == "rotated" else np.ones(40)
    result = ng.minimize(
        lambda x: float(((x - target) ** 2).sum()),
        np.linspace(3, 4, 40),
        jac=WRONG[way],
        hessp=lambda x, v: 2 * v,
        structure=structure,
        maxiter=300,
    )
    assert not result.success
    assert result.status in (LIMIT, STUCK, NOT_FINITE)


def test_a_wrong_hessian_costs_steps_and_nothing_else():
    for H in (-2 * np.eye(3), np.zeros((3, 3)), 20 * np.eye(3), np.diag([0.5, 2.0, 10.0])):
        result = ng.minimize(numpy_square, zeros3, jac=slope, hess=lambda x, H=H: H)
        assert result.success
        np.testing.assert_allclose(result.x, 1, atol=1e-6)


# ---- callbacks, and functions that raise


class Own(Exception):  # noqa: N818
    pass


def raising(*_):
    raise Own("mine")


def test_what_users_functions_raise_comes_through():
    for call in (
        lambda: ng.minimize(raising, x3),
        lambda: ng.minimize(raising, zeros3),
        ours(jac=raising),
        ours(hess=raising),
        ours(hessp=raising),
        ours(structure=ng.Lower(1), hess_diag=raising),
        ours(callback=raising),
        theirs(jac=raising),
        theirs(hess=raising),
        theirs(callback=raising),
    ):
        with pytest.raises(Own, match="mine"):
            call()


def test_both_kinds_of_callback():
    seen, results = [], []
    rosenbrock = FUNCTIONS["rosenbrock"]
    x0 = rosenbrock.start(10)
    by_x = ng.minimize(rosenbrock.value, x0, callback=seen.append)

    def take(intermediate_result):
        results.append(intermediate_result)

    by_result = ng.minimize(rosenbrock.value, x0, callback=take)
    assert len(seen) == len(results) == by_x.nit == by_result.nit
    assert torch.equal(seen[-1], by_x.x)
    for x, result in zip(seen, results, strict=True):
        assert torch.equal(x, result.x)
        assert result.fun == float(rosenbrock.value(x))


def test_a_callback_may_overwrite_what_it_is_given():
    rosenbrock = FUNCTIONS["rosenbrock"]
    plain = ng.minimize(rosenbrock.value, rosenbrock.start(10))
    spoiled = ng.minimize(rosenbrock.value, rosenbrock.start(10), callback=lambda x: x.zero_())
    assert torch.equal(plain.x, spoiled.x)
    assert plain.nit == spoiled.nit


@pytest.mark.parametrize("mode", ["linesearch", "paper", "stochastic"])
def test_stop_iteration_ends_the_run(mode):
    shown = []

    def stop(x):
        shown.append(x)
        if len(shown) == 3:
            raise StopIteration

    rosenbrock = FUNCTIONS["rosenbrock"]
    result = ng.minimize(rosenbrock.value, rosenbrock.start(10), mode=mode, callback=stop)
    assert result.status == STOPPED
    assert not result.success
    assert result.nit == 3
    assert torch.equal(result.x, shown[-1])
    assert result.fun == float(rosenbrock.value(result.x))
    assert "StopIteration" in result.message


@pytest.mark.parametrize("maxiter", [0, 1, 3])
def test_too_few_iterations_are_no_success(maxiter):
    rosenbrock = FUNCTIONS["rosenbrock"]
    for mode in ("linesearch", "paper"):
        result = ng.minimize(rosenbrock.value, rosenbrock.start(10), maxiter=maxiter, mode=mode)
        assert not result.success
        assert result.status == LIMIT
        assert result.nit == maxiter
        assert "maxiter" in result.message


def test_tolerances_end_runs_early():
    rosenbrock = FUNCTIONS["extended-rosenbrock"]
    x0 = rosenbrock.start(10)
    full = ng.minimize(rosenbrock.value, x0)
    by_g = ng.minimize(rosenbrock.value, x0, gtol=1e-1)
    assert by_g.success
    assert by_g.nit < full.nit
    assert float(by_g.jac.abs().max()) <= 1e-1
    by_f = ng.minimize(lambda x: rosenbrock.value(x) + 1, x0, ftol=1e-3, gtol=0)
    assert by_f.success
    assert by_f.nit < ng.minimize(lambda x: rosenbrock.value(x) + 1, x0, gtol=0).nit
    assert "ftol" in by_f.message


def test_no_tolerance_at_all_still_ends_with_success():
    for name in ("rosenbrock-printed", "extended-rosenbrock", "trigonometric", "minimal-surface"):
        problem = FUNCTIONS[name]
        p = problem.size(36)
        result = ng.minimize(problem.value, problem.start(p), gtol=0.0)
        assert result.success
        assert result.nit < 60


# ---- arrays that are written over


def test_functions_may_overwrite_their_argument():
    def spoil(result):
        def function(x, *rest):
            y = result(x.copy(), *rest)
            x[:] = np.nan
            for v in rest:
                v[:] = np.nan
            return y

        return function

    x0 = np.linspace(2, 3, 3)
    for options in (
        {"hess": spoil(lambda x: 2 * np.eye(3))},
        {"hessp": spoil(lambda x, v: 2 * v)},
        {"hessp": spoil(lambda x, v: 2 * v), "structure": ng.Lower(1), "hess_diag": spoil(lambda x: 0 * x + 2)},
    ):
        result = ng.minimize(spoil(numpy_square), x0, jac=spoil(slope), **options)
        assert result.success
        np.testing.assert_allclose(result.x, 1)
    np.testing.assert_array_equal(x0, np.linspace(2, 3, 3))


def test_results_share_no_memory_with_what_the_user_has():
    x0 = np.ones(3)
    result = ng.minimize(numpy_square, x0, jac=slope, hess=lambda x: 2 * np.eye(3))
    assert result.nit == 0
    result.x[:] = 7.0
    np.testing.assert_array_equal(x0, 1.0)
    start = torch.ones(3, dtype=F64)
    result = ng.minimize(square, start)
    result.x.fill_(7.0)
    assert torch.equal(start, torch.ones(3, dtype=F64))


# ---- what disp tells


def test_disp_prints_the_choice_and_the_end(capsys):
    rosenbrock = FUNCTIONS["rosenbrock"]
    for p, text in ((20, "Dense()"), (50, "SparseCholesky"), (50, "99 entries of the Hessian from 3 products")):
        result = ng.minimize(rosenbrock.value, rosenbrock.start(p), disp=True)
        printed = capsys.readouterr().out
        assert text in printed.splitlines()[0]
        assert result.message in printed
        assert len(printed.splitlines()) == result.nit + 2
    trigonometric = FUNCTIONS["trigonometric"]
    ng.minimize(trigonometric.value, trigonometric.start(150), disp=True, maxiter=1)
    assert "conjugate gradients" in capsys.readouterr().out
    ng.minimize(rosenbrock.value, rosenbrock.start(20))
    assert capsys.readouterr().out == ""
