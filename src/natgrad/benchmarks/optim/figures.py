"""`natgrad bench optim figures`: figures and tables of what `speed` and `quality` have left."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from natgrad.benchmarks.optim.peers import METHODS
from natgrad.benchmarks.optim.search import TUNING_SEED, Run, best, cost
from natgrad.benchmarks.optim.tasks import TASKS
from natgrad.experiments.curves import rich
from natgrad.plots import pyplot

REFERENCE = "adamw"
Runs = dict[str, dict[str, list[Run]]]  # by task and method


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/optim"), help="folder of the results")


def run(arguments: argparse.Namespace) -> int:
    pyplot()  # first: it may be missing
    runs = read(arguments.out)
    speed = arguments.out / "speed.json"
    if not runs and not speed.exists():
        raise ValueError(f"{arguments.out} holds no results: run `natgrad bench optim speed` or `quality` first")
    if speed.exists():
        draw_speed(json.loads(speed.read_text()), arguments.out / "speed.png")
    for task, by_method in runs.items():
        draw_task(task, by_method, arguments.out / f"{task}.png")
    summary(arguments.out)
    return 0


def summary(out: Path) -> None:
    """All tables."""
    if (out / "speed.json").exists():
        print_speed(json.loads((out / "speed.json").read_text()))
    for task, by_method in read(out).items():
        print_task(task, by_method)


def read(out: Path) -> Runs:
    """The runs of all tasks and methods that have any."""
    found: Runs = {}
    for task in TASKS:
        for method in METHODS:
            files = sorted((out / task / method).glob("*.json"))
            if files:
                found.setdefault(task, {})[method] = [json.loads(path.read_text()) for path in files]
    return found


def chosen(runs: list[Run]) -> tuple[Run, list[Run]]:
    """The best run of a method's search, and the runs of its settings with fresh seeds."""
    winner = best([run for run in runs if run["seed"] == TUNING_SEED])
    settings = winner["lr"], winner["weight_decay"]
    return winner, [r for r in runs if r["seed"] != TUNING_SEED and (r["lr"], r["weight_decay"]) == settings]


def draw_task(task: str, by_method: dict[str, list[Run]], path: Path) -> None:
    """The test score over epochs and over seconds: the mean over seeds, and their range as a band."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.4), sharey=True)
    settled: list[float] = []  # scores once the first fifth of the training is over
    about: Run | None = None
    for method, runs in by_method.items():
        seeds = [run for run in chosen(runs)[1] if not run["diverged"]]
        if not seeds:
            continue
        about = seeds[0]
        epochs, seconds, scores = (
            np.array([[point[key] for point in run["curve"]] for run in seeds]) for key in ("epoch", "seconds", "score")
        )
        settled += scores[:, 1:].flatten().tolist()
        for panel, x in zip(axes, (epochs.mean(0), seconds.mean(0)), strict=True):
            own = method.startswith("natgrad")
            style = {"color": METHODS[method].color, "lw": 2.2 if own else 1.2, "zorder": 3 if own else 2}
            panel.plot(x, scores.mean(0), label=method, **style)
            panel.fill_between(x, scores.min(0), scores.max(0), color=METHODS[method].color, alpha=0.15, lw=0)
    if about is None:
        plt.close(figure)
        return
    margin = 0.05 * (max(settled) - min(settled)) or 0.05
    axes[0].set_ylim(min(settled) - margin, max(settled) + margin)
    axes[0].set_ylabel(about["score_name"])
    axes[0].set_xlabel("epochs")
    axes[1].set_xlabel(f"seconds of training ({about['device']}, threads: {about['threads']})")
    axes[0].set_title(task, loc="left")
    below_axes(figure, axes[0])
    save(figure, path)


def draw_speed(result: dict[str, Any], path: Path) -> None:
    """Ratios to AdamW: of a step's time, of a training step's, and of the bytes of state."""
    plt = pyplot()
    from matplotlib.ticker import LogLocator, NullLocator

    quantities = {
        "step_seconds": "time of a step",
        "training_seconds": "time of a step and its gradient",
        "state_bytes": "bytes of state",
    }
    networks = list(dict.fromkeys(row["network"] for row in result["rows"]))
    figure, axes = plt.subplots(1, 3, figsize=(10.5, 3.2))
    methods = [m for m in METHODS if m != REFERENCE and any(row["method"] == m for row in result["rows"])]
    for panel, (key, label) in zip(axes, quantities.items(), strict=True):
        for i, method in enumerate(methods):
            ratios = [ratio(result["rows"], network, method, key) for network in networks]
            x = np.arange(len(networks)) + 0.6 * ((i + 0.5) / len(methods) - 0.5)
            panel.plot(x, ratios, "o", color=METHODS[method].color, markersize=5, label=method)
        panel.axhline(1, color=METHODS[REFERENCE].color, lw=1.2, label=REFERENCE)
        panel.set_yscale("log")
        panel.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if key != "training_seconds" else (1, 1.5, 2, 3, 5, 7)))
        panel.yaxis.set_minor_locator(NullLocator())
        panel.yaxis.set_major_formatter("{x:g}")
        panel.set_xticks(range(len(networks)), networks)
        panel.set_title(label, loc="left")
    axes[0].set_ylabel("times AdamW's")
    below_axes(figure, axes[0])
    save(figure, path)


def below_axes(figure: Any, panel: Any) -> None:
    """One legend for all panels, where no data can be."""
    handles, labels = panel.get_legend_handles_labels()
    figure.tight_layout()
    figure.legend(handles, labels, loc="upper center", ncols=5, bbox_to_anchor=(0.5, 0.0))


def save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot().close(figure)


def ratio(rows: list[dict[str, Any]], network: str, method: str, key: str) -> float:
    """To AdamW; not a number where one of the two was not measured."""
    by_method = {row["method"]: row[key] for row in rows if row["network"] == network}
    return by_method.get(method, np.nan) / by_method.get(REFERENCE, np.nan)


def print_speed(result: dict[str, Any]) -> None:
    rows = []
    for row in result["rows"]:
        network, method, blocks = row["network"], row["method"], row["blocks"]["step_seconds"]
        times = [
            f"{ratio(result['rows'], network, method, key):.2f}"
            for key in ("step_seconds", "training_seconds", "state_bytes")
        ]
        rows.append(
            (
                network, method, f"{1e3 * row['step_seconds']:.2f} ({1e3 * min(blocks):.2f}-{1e3 * max(blocks):.2f})",
                times[0], f"{1e3 * row['training_seconds']:.1f}", times[1], f"{row['state_bytes'] / 2**20:.2f}",
                times[2], f"{row['state_bytes'] / row['parameters']:.1f}",
            )
        )  # fmt: skip
    rows += [("-", method, "not installed", *6 * [""]) for method in result["missing"]]
    headings = (
        "network", "method", "step, ms (range)", "x AdamW", "training step, ms", "x AdamW", "state, MiB", "x AdamW",
        "bytes a parameter",
    )  # fmt: skip
    table("Medians over blocks of steps", headings, rows)


def arrival(seeds: list[Run], target: float) -> str:
    """Epochs and seconds after which the mean score is as good as the target, at the points where it was taken."""
    sign = 1 if seeds and seeds[0]["higher"] else -1
    for points in zip(*(run["curve"] for run in seeds if not run["diverged"]), strict=True):
        epoch, seconds, score = (np.mean([point[key] for point in points]) for key in ("epoch", "seconds", "score"))
        if sign * score >= sign * target:
            return f"{epoch:.2g} ({seconds:.1f})"
    return "-"


def print_task(task: str, by_method: dict[str, list[Run]]) -> None:
    rows = []
    reference = [run["score"] for run in chosen(by_method[REFERENCE])[1]] if REFERENCE in by_method else []
    target = float(np.mean(reference)) if reference and None not in reference else np.nan
    for method, runs in by_method.items():
        tuning = [run for run in runs if run["seed"] == TUNING_SEED]
        winner, seeds = chosen(runs)
        scores = np.array([run["score"] for run in seeds if not run["diverged"]])
        seconds = [run["seconds"] for run in seeds if not run["diverged"]]
        rates = sorted({run["lr"] for run in tuning})
        edge = " (edge)" if winner["lr"] in (rates[0], rates[-1]) else ""
        rows.append(
            (
                method,
                f"{winner['lr']:g}{edge}",
                f"{winner['weight_decay']:g}",
                "-" if np.isinf(cost(winner)) else f"{winner['score']:.4f}",
                f"{scores.mean():.4f} ({scores.min():.4f}-{scores.max():.4f})" if len(scores) else "-",
                f"{np.mean(seconds):.1f}" if seconds else "-",
                arrival(seeds, target),
                f"{sum(run['diverged'] for run in seeds)} of {len(seeds)}",
                f"{sum(run['diverged'] for run in tuning)} of {len(tuning)}",
            )
        )
    first = next(iter(by_method.values()))[0]
    headings = (
        "method", "learning rate", "weight decay", "in the search", "fresh seeds, mean (range)", "s a run",
        f"to {REFERENCE}'s last: epochs (s)", "failed", "failed in the search",
    )  # fmt: skip
    better = "higher" if first["higher"] else "lower"
    table(f"{task}: {first['score_name']}, {better} is better", headings, rows)


def table(title: str, headings: Iterable[str], rows: Iterable[tuple[str, ...]]) -> None:
    grid = rich().table.Table(title=title, title_justify="left", box=rich().box.SIMPLE_HEAD)
    for heading in headings:
        grid.add_column(heading, justify="left" if heading in ("network", "method") else "right")
    for row in rows:
        grid.add_row(*row)
    rich().console.Console(width=160).print(grid)
