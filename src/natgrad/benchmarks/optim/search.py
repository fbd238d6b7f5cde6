"""The search for each method's settings, with the same number of runs for all methods.

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
    """The grid with so many points more on each side, in its rhythm: 3e-4, 1e-3, 3e-3, 1e-2 goes on with 3e-2."""
    lrs = list(METHODS[method].lrs)
    for _ in range(below):
        lrs.insert(0, float(f"{lrs[1] / 10:.3g}"))
    for _ in range(above):
        lrs.append(float(f"{lrs[-2] * 10:.3g}"))
    return lrs


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
