"""`natgrad reproduce` and `natgrad bench minimize`: at small sizes, what they write and what it says."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

import natgrad as ng
from natgrad.benchmarks import minimize as bench
from natgrad.benchmarks import peers
from natgrad.cli import main
from natgrad.experiments import logistic
from natgrad.experiments.curves import Curve
from natgrad.experiments.functions import FUNCTIONS, far_start


def curves(path):
    return {curve["method"]: curve for curve in json.loads(path.read_text())["curves"]}


@pytest.mark.parametrize("name", ["rosenbrock", "dixon-price"])
def test_figure_1(name, tmp_path, capsys):
    arguments = ["--variables", "20", "--iterations", "300", "--out", str(tmp_path)]
    assert main(["reproduce", name, *arguments]) == 0
    for suffix in ("iterations", "seconds"):
        assert (tmp_path / f"{name}-{suffix}.png").read_bytes().startswith(b"\x89PNG")
    found = curves(tmp_path / f"{name}.json")
    assert list(found) == ["Tri-up", "Tri-low", "Hs-up", "Hs-low", "minimize, no options", "Adam", "BFGS"]
    start = FUNCTIONS[name].value(far_start(20, 0)).item()
    for curve in found.values():
        assert curve["losses"][0] == pytest.approx(start, rel=1e-5)
        assert len(curve["losses"]) == len(curve["seconds"]) == len(curve["steps"]) <= 301
        assert np.all(np.diff(curve["seconds"]) >= 0)
    assert found["minimize, no options"]["losses"][-1] < 1e-12
    assert found["Hs-low"]["losses"][-1] < 1e-10
    assert "Hs-low" in capsys.readouterr().out


def test_the_plots_of_the_paper_come_out_at_200_variables():
    """Rosenbrock: lower Heisenberg converges, triangular stay, upper Heisenberg creeps; Dixon-Price: all converge."""
    ends = {}
    for name in ("rosenbrock", "dixon-price"):
        for short, structure in (("Tri-low", ng.Lower(1)), ("Hs-up", ng.Upper(1, 1)), ("Hs-low", ng.Lower(1, 1))):
            res = ng.minimize(
                FUNCTIONS[name].value, far_start(200, 0), structure=structure, mode="paper", beta=0.4, maxiter=300
            )
            ends[name, short] = res.fun
    assert ends["rosenbrock", "Hs-low"] < 1e-12
    assert 1e-2 < ends["rosenbrock", "Tri-low"] < 1e-1
    assert 1e-3 < ends["rosenbrock", "Hs-up"] < ends["rosenbrock", "Tri-low"] * 2
    assert all(ends["dixon-price", short] < 1e-12 for short in ("Tri-low", "Hs-up", "Hs-low"))


def test_logistic(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(logistic, "EXAMPLES", 2000)
    monkeypatch.setattr(logistic, "FEATURES", 10)
    monkeypatch.setattr(logistic, "BATCH", 50)
    assert main(["reproduce", "logistic", "--epochs", "2", "--out", str(tmp_path)]) == 0
    found = curves(tmp_path / "logistic.json")
    assert found["stochastic, Dense"]["losses"][-1] < found["BFGS"]["losses"][-1]
    assert all(len(curve["steps"]) == 21 for curve in found.values())
    assert (tmp_path / "logistic-epochs.png").exists()


def test_the_hessian_of_the_logistic_loss_is_autograds(monkeypatch):
    monkeypatch.setattr(logistic, "EXAMPLES", 300)
    monkeypatch.setattr(logistic, "FEATURES", 7)
    problem = logistic.Problem(0)
    x = torch.linspace(-1, 1, 7, dtype=torch.float64)
    assert torch.allclose(problem.hessian(x, problem.A), torch.func.hessian(problem.all)(x))


def test_curves_leave_out_pauses():
    curve = Curve("", [2.0])
    with curve.pause():
        began = curve._began
    assert curve._began > began
    curve.add(1.0)
    assert curve.steps == [0, 1]
    assert curve.first_below(1.0) == 1
    assert curve.first_below(0.5) is None


def test_bench_minimize_is_resumed(tmp_path, monkeypatch, capsys):
    arguments = ["bench", "minimize", "--sizes", "200", "--functions", "tridia", "--out", str(tmp_path)]
    assert main(arguments) == 0
    rows = json.loads((tmp_path / "minimize.json").read_text())["rows"]
    assert {row["method"] for row in rows} == set(peers.METHODS)
    assert len(rows) == 3 * len(peers.METHODS)
    assert (tmp_path / "minimize.png").exists()
    assert "tridia" in capsys.readouterr().out
    monkeypatch.setattr(bench, "measure", lambda *_: pytest.fail("measured again"))
    assert main([*arguments, "--redraw"]) == 0
    assert main(arguments) == 0
    out = capsys.readouterr().out
    assert "| tridia, 2 |" in out
    assert "| natgrad | 3 of 3 | 3 |" in out
    assert json.loads((tmp_path / "minimize.json").read_text())["rows"] == rows


@pytest.mark.parametrize("method", peers.METHODS)
def test_every_peer_solves_a_convex_problem_and_is_counted(method):
    problem, calls = FUNCTIONS["broyden-tridiagonal"], [0]

    def function(x):
        calls[0] += 1
        return problem.value(x)

    run = peers.measure(method, function, problem.start(50), 20.0)
    assert run.solved
    assert run.value < 1e-9
    assert run.iterations > 0
    if method == "natgrad":  # looking for the sparsity, and the gradient that sets the target, are calls too
        assert run.values < calls[0] <= run.values + 2 + 1
    else:
        assert run.values <= calls[0]
    uses_products = method not in ("BFGS", "L-BFGS-B", "torch LBFGS")
    assert (run.products > 0) == uses_products


def test_a_run_whose_time_is_over_is_not_solved():
    problem = FUNCTIONS["rosenbrock"]
    for method in peers.METHODS:
        run = peers.measure(method, problem.value, problem.start(200), 0.0)
        assert not run.solved


def test_profiles_count_what_is_not_solved():
    def row(solved, seconds):
        return {"solved": solved, "seconds": seconds, "values": 1, "products": 1}

    runs = {1: {"a": row(True, 1.0), "b": row(True, 2.0)}, 2: {"a": row(False, 1.0), "b": row(True, 3.0)}}
    assert bench.profile(runs, "a", "seconds").tolist() == [1.0, np.inf]
    assert bench.profile(runs, "b", "seconds").tolist() == [1.0, 2.0]
