"""The search for each method's settings, with the same number of runs for all methods, by the validation score.

Every method starts with a grid of as many points. When the best learning rate of any method lies at an edge of its
grid, the grids of all methods grow by one learning rate on that side, at most `EXTENSIONS` times.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from natgrad.benchmarks.optim.peers import METHODS
from natgrad.benchmarks.optim.training import Settings

TUNING_SEED = 0
EXTENSIONS = 2
Run = dict[str, Any]  # the content of a run's file


def learning_rates(method: str, below: int, above: int) -> list[float]:
    """The grid with so many points more on each side, in its own ratio: 1e-3, 2e-3, 4e-3, 8e-3 goes on with 1.6e-2."""
    lrs = METHODS[method].lrs
    ratio = lrs[1] / lrs[0]
    lower = [lrs[0] / ratio**i for i in range(below, 0, -1)]
    higher = [lrs[-1] * ratio**i for i in range(1, above + 1)]
    return [float(f"{lr:.3g}") for lr in (*lower, *lrs, *higher)]


def grid(task: str, method: str, epochs: int, below: int, above: int) -> list[Settings]:
    return [
        Settings(task, method, lr, weight_decay, TUNING_SEED, epochs)
        for lr in learning_rates(method, below, above)
        for weight_decay in METHODS[method].weight_decays
    ]


def cost(run: Run) -> float:
    """Lower is better; a run that failed is the worst."""
    if run["score"] is None:
        return float("inf")
    return -run["score"] if run["higher"] else run["score"]


def best(runs: list[Run]) -> Run:
    """Among equals, as when all failed, the one with the lowest learning rate."""
    return min(runs, key=lambda run: (cost(run), run["lr"], run["weight_decay"]))


def sides(winners: list[Run], below: int, above: int) -> tuple[bool, bool]:
    """Whether any method's best learning rate is its lowest, or its highest."""
    ends = [(run["lr"], learning_rates(run["method"], below, above)) for run in winners]
    return any(lr == lrs[0] for lr, lrs in ends), any(lr == lrs[-1] for lr, lrs in ends)


def load(settings: Settings, out: Path) -> Run | None:
    """What an earlier run wrote, if there was one."""
    path = settings.path(out)
    if not path.exists():
        return None
    run: Run = json.loads(path.read_text())
    if run["epochs"] != settings.epochs:
        raise ValueError(
            f"{path} holds a run of {run['epochs']} epochs, and {settings.epochs} are asked for; "
            "choose another folder with --out, or delete it"
        )
    return run
