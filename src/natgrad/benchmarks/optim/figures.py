"""`natgrad bench optim figures`: figures and tables of what the other parts have left in their JSON files."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from natgrad.benchmarks.optim.collect import collect
from natgrad.benchmarks.optim.peers import METHODS
from natgrad.benchmarks.optim.tables import REFERENCE, finished, print_cost, print_speed, print_task, ratio, where
from natgrad.plots import BLUE, GREY, pyplot


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/optim"), help="folder of the results")


def run(arguments: argparse.Namespace) -> int:
    pyplot()  # first: it may be missing
    out = arguments.out
    paths = {name: out / f"{name}.json" for name in ("speed", "cost")}
    measured = {name: json.loads(path.read_text()) for name, path in paths.items() if path.exists()}
    tasks = collect(out)["tasks"]
    if not tasks and not measured:
        raise ValueError(f"{out} holds no results: run `natgrad bench optim speed`, `quality` or `cost` first")
    if "speed" in measured:
        draw_speed(measured["speed"], out / "speed.png")
        print_speed(measured["speed"])
    if "cost" in measured:
        draw_cost(measured["cost"], out / "cost.png")
        print_cost(measured["cost"])
    for name, task in tasks.items():
        draw_task(name, task, out / f"{name}.png")
        print_task(name, task)
    return 0


def draw_task(title: str, task: dict[str, Any], path: Path) -> None:
    """The test score over epochs and over seconds: the mean over seeds, and their range as a band."""
    plt = pyplot()
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.4), sharey=True)
    settled: list[float] = []  # scores once the first fifth of the training is over
    timed = ""
    for method, own in task["methods"].items():
        seeds = finished(own["seeds"])
        if not seeds:
            continue
        timed = where(task["environments"][seeds[0]["environment"]])
        epochs, seconds, scores = (
            np.array([[point[key] for point in run["curve"]] for run in seeds]) for key in ("epoch", "seconds", "score")
        )
        settled += scores[:, 1:].flatten().tolist()
        for panel, x in zip(axes, (epochs.mean(0), seconds.mean(0)), strict=True):
            ours = method.startswith("natgrad")
            style = {"color": METHODS[method].color, "lw": 2.2 if ours else 1.2, "zorder": 3 if ours else 2}
            panel.plot(x, scores.mean(0), label=method, **style)
            panel.fill_between(x, scores.min(0), scores.max(0), color=METHODS[method].color, alpha=0.15, lw=0)
    if not timed:
        plt.close(figure)
        return
    margin = 0.05 * (max(settled) - min(settled)) or 0.05
    axes[0].set_ylim(min(settled) - margin, max(settled) + margin)
    axes[0].set_ylabel(f"test {task['score_name']}")
    axes[0].set_xlabel("epochs")
    axes[1].set_xlabel(f"seconds of training ({timed})")
    axes[0].set_title(title, loc="left")
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
    axes[0].set_ylabel(f"times AdamW's ({where(result)})")
    below_axes(figure, axes[0])
    save(figure, path)


SHADES = ("#8fbbe0", "#3f86c0", "#123f6d")  # by k, as for the structures
DASHES = {"half power": "-", "full power": "--"}


def draw_cost(result: dict[str, Any], path: Path) -> None:
    """Milliseconds of a step over the number of weights, and over k at the size that has most of them."""
    plt = pyplot()
    rows = result["rows"]
    sizes = sorted({row["d"] for row in rows})
    by_size = [{row["k"] for row in rows if row["d"] == d and row["k"]} for d in sizes]
    columns, swept = sorted(set.intersection(*by_size)), sizes[int(np.argmax([len(ks) for ks in by_size]))]
    weights = np.array(sizes) ** 2
    figure, axes = plt.subplots(1, 2, figsize=(8.4, 3.4), sharey=True)

    def line(panel: Any, x: str, color: str, style: str, label: str, **wanted: Any) -> None:
        mine = [row for row in rows if all(row[key] == value for key, value in wanted.items())]
        points = [row[x] ** 2 if x == "d" else row[x] for row in mine], [1e3 * row["seconds"] for row in mine]
        panel.loglog(*points, style, color=color, marker="o", markersize=3, lw=1.4, label=label)

    for method, dashes in DASHES.items():
        for k, shade in zip(columns, SHADES, strict=False):
            line(axes[0], "d", shade, dashes, f"{method}, k = {k}", method=method, k=k)
        line(axes[1], "k", BLUE, dashes, f"{method}, over k", method=method, d=swept)
    line(axes[0], "d", METHODS[REFERENCE].color, "-", REFERENCE, method=REFERENCE)
    reference = next(row["seconds"] for row in rows if row["method"] == REFERENCE and row["d"] == swept)
    axes[1].axhline(1e3 * reference, color=METHODS[REFERENCE].color, lw=1.4)
    slowest = max(row["seconds"] for row in rows)
    axes[0].loglog(weights, 2e3 * slowest * weights / weights[-1], ":", color=GREY, lw=1.2, label="linear")
    axes[0].set_xlabel("weights")
    axes[0].set_ylabel(f"milliseconds ({where(result)})")
    axes[0].set_title("time of a step, Lower(k) on both sides", loc="left")
    axes[1].set_xlabel("k")
    axes[1].set_title(f"{swept} x {swept} weights", loc="left")
    ticks = [2**i for i in range(8) if 2**i <= max(by_size[sizes.index(swept)])]
    axes[1].set_xticks(ticks, [str(k) for k in ticks])
    axes[1].minorticks_off()
    below_axes(figure, *axes, ncols=4)
    save(figure, path)


def below_axes(figure: Any, *panels: Any, ncols: int = 5) -> None:
    """One legend for all panels, where no data can be."""
    handles = [handle for panel in panels for handle in panel.get_legend_handles_labels()[0]]
    figure.tight_layout()
    figure.legend(handles=handles, loc="upper center", ncols=ncols, bbox_to_anchor=(0.5, 0.0))


def save(figure: Any, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    pyplot().close(figure)
