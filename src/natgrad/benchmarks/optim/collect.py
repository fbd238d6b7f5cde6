"""quality.json: of all single runs what the figures and tables need, small enough to be kept with the code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from natgrad.benchmarks.optim.peers import METHODS
from natgrad.benchmarks.optim.record import write
from natgrad.benchmarks.optim.search import TUNING_SEED, Run, best
from natgrad.benchmarks.optim.tasks import TASKS

ENVIRONMENT = ("machine", "device", "threads", "versions", "command")
DIGITS = 6


def collect(out: Path) -> dict[str, Any]:
    """A task that has runs in this folder is taken from them alone, any other one stays as quality.json has it."""
    path = out / "quality.json"
    result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"tasks": {}}
    found = {}
    for task in TASKS:
        runs = {method: read(out / "runs" / task / method) for method in METHODS}
        runs = {method: mine for method, mine in runs.items() if any(run["seed"] == TUNING_SEED for run in mine)}
        if runs:
            found[task] = digest(runs)
        elif task in result["tasks"]:
            found[task] = result["tasks"][task]
    if found != result["tasks"]:
        result["tasks"] = found
        write(path, result)
    return result


def read(folder: Path) -> list[Run]:
    return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]


def digest(runs: dict[str, list[Run]]) -> dict[str, Any]:
    """One task: for each method the settings chosen, the whole search, and the runs of those settings with fresh seeds.

    Each run has the number of its environment, of which there are few.
    """
    first = next(iter(runs.values()))[0]
    environments: list[dict[str, Any]] = []
    methods = {}
    for method, mine in runs.items():
        search = [run for run in mine if run["seed"] == TUNING_SEED]
        winner = best(search)
        chosen = {key: winner[key] for key in ("lr", "weight_decay", "score")}
        fresh = [r for r in mine if r["seed"] != TUNING_SEED and all(r[k] == winner[k] for k in ("lr", "weight_decay"))]
        methods[method] = {
            "chosen": rounded(chosen),
            "search": [brief(run, environments, "lr", "weight_decay") for run in search],
            "seeds": [brief(run, environments, "seed", "threads", "seconds", "losses", "curve") for run in fresh],
        }
    about = {key: first[key] for key in ("score_name", "higher", "epochs", "steps")}
    return about | {"environments": environments, "methods": methods}


def brief(run: Run, environments: list[dict[str, Any]], *keys: str) -> dict[str, Any]:
    environment = {key: run[key] for key in ENVIRONMENT}
    if environment not in environments:
        environments.append(environment)
    wanted = {key: run[key] for key in (*keys, "scored_on", "score", "failure")}
    return rounded(wanted) | {"environment": environments.index(environment)}


def rounded(content: Any) -> Any:
    """Digits that nobody reads make the file long."""
    if isinstance(content, dict):
        return {key: rounded(value) for key, value in content.items()}
    if isinstance(content, list):
        return [rounded(value) for value in content]
    return float(f"{content:.{DIGITS}g}") if isinstance(content, float) else content
