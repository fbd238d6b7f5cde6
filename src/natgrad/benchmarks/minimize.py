"""`natgrad bench minimize`: minimisers on all test functions, from several starts, at p = 200, 1e4 and 1e5."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from natgrad.benchmarks.machine import machine
from natgrad.benchmarks.peers import GRADIENT, LARGEST, METHODS, measure
from natgrad.experiments.functions import FUNCTIONS, starts
from natgrad.plots import BLUE, ORANGE, pyplot

SIZES = {200: (3, 10.0), 10_000: (2, 25.0), 100_000: (2, 20.0)}  # p: starts, seconds for one run
SHORT = 1.0  # a run that takes less is repeated, and the fastest of three counts
COLORS = {
    "natgrad": BLUE, "BFGS": ORANGE, "L-BFGS-B": "#c0392b", "Newton-CG": "#27924f", "trust-ncg": "#7d5ba6",
    "trust-krylov": "#b694d8", "torch LBFGS": "#e2a28c",
}  # fmt: skip


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results"), help="folder for minimize.json and .png"
    )
    parser.add_argument(
        "--sizes", type=int, nargs="+", default=list(SIZES), choices=list(SIZES), help="numbers of variables"
    )
    parser.add_argument("--functions", nargs="+", default=list(FUNCTIONS), choices=list(FUNCTIONS), metavar="NAME")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="NAME")
    parser.add_argument("--redraw", action="store_true", help="draw and print what the JSON holds, measure nothing")


def run(arguments: argparse.Namespace) -> int:
    pyplot()
    path = arguments.out / "minimize.json"
    done: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"machine": machine(), "rows": []}
    known = {(r["p"], r["function"], r["start"], r["method"]) for r in done["rows"]}
    torch.set_num_threads(1)
    path.parent.mkdir(parents=True, exist_ok=True)
    for size in [] if arguments.redraw else arguments.sizes:
        n, limit = SIZES[size]
        for name in arguments.functions:
            problem = FUNCTIONS[name]
            if size > 10_000 and not problem.sparse:
                continue
            for number, x0 in enumerate(starts(problem, problem.size(size), n)):
                for method in arguments.methods:
                    key = (size, name, number, method)
                    if key in known or size > LARGEST.get(method, size):
                        continue
                    best = measure(method, problem.value, x0, limit)
                    for _ in range(2 if best.seconds < SHORT else 0):
                        again = measure(method, problem.value, x0, limit)
                        best = again if again.seconds < best.seconds else best
                    row = dict(zip(("p", "function", "start", "method"), key, strict=True)) | best.row()
                    done["rows"].append(row)
                    print(line(row), flush=True)
                path.write_text(json.dumps(done).replace('{"p"', '\n{"p"') + "\n")  # resumable
    draw(done["rows"], arguments.out / "minimize.png")
    for p in sorted({row["p"] for row in done["rows"]}):
        summary(groups(done["rows"], p), p)
        table(groups(done["rows"], p))
    return 0


def line(row: dict[str, Any]) -> str:
    state = "solved" if row["solved"] else "FAILED"
    return (
        f"{row['p']:6} {row['function']:20} {row['start']} {row['method']:13} {state} {row['seconds']:9.4f} s "
        f"f {row['value']:13.6e}  {row['iterations']:6} iterations {row['values']:6} values "
        f"{row['products']:6} products"
    )


def groups(rows: list[dict[str, Any]], p: int) -> Runs:
    """The runs of all methods for each function and start."""
    found: Runs = {}
    for row in rows:
        if row["p"] == p:
            found.setdefault((row["function"], row["start"]), {})[row["method"]] = row
    return found


def cost(row: dict[str, Any], unit: str) -> float:
    if not row["solved"]:
        return np.inf
    return row["seconds"] if unit == "seconds" else row["values"] + row["products"]


def profile(runs: dict[Any, dict[str, dict[str, Any]]], method: str, unit: str) -> np.ndarray:
    """Sorted ratios to the best method, one for each function and start (Dolan and More 2002)."""
    ratios = []
    for by_method in runs.values():
        if method in by_method:
            own, best = cost(by_method[method], unit), min(cost(row, unit) for row in by_method.values())
            ratios.append(own / best if np.isfinite(own) else np.inf)
    return np.sort(ratios)


def draw(rows: list[dict[str, Any]], path: Path) -> None:
    plt = pyplot()
    sizes = sorted({row["p"] for row in rows})
    figure, axes = plt.subplots(2, len(sizes), figsize=(3.3 * len(sizes) + 0.6, 5.4), sharey=True, squeeze=False)
    for column, p in enumerate(sizes):
        runs = groups(rows, p)
        for panel, (unit, label) in zip(
            axes[:, column], (("seconds", "time"), ("work", "evaluations and products")), strict=True
        ):
            for method in METHODS:
                ratios = profile(runs, method, unit)
                if not len(ratios):
                    continue
                finite = ratios[np.isfinite(ratios)]
                share = np.arange(1, len(finite) + 1) / len(ratios)
                x, y = (
                    np.append(np.append(1, finite), 1e4),
                    np.append(np.append(0, share), share[-1:] if len(share) else 0),
                )
                panel.step(
                    x, y, where="post", color=COLORS[method], lw=2.2 if method == "natgrad" else 1.2, label=method
                )
            panel.set_xscale("log")
            panel.set_xlim(1, 1e3)
            panel.set_ylim(0, 1.02)
            panel.set_xlabel(f"{label}, times the best method's")
        axes[0, column].set_title(f"p = {p:,}: {len(runs)} functions and starts", loc="left")
    for panel in axes[:, 0]:
        panel.set_ylabel("share solved")
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="lower center", ncols=len(labels), bbox_to_anchor=(0.5, -0.045))
    figure.tight_layout()
    figure.savefig(path)
    plt.close(figure)


Runs = dict[tuple[str, int], dict[str, dict[str, Any]]]


def summary(runs: Runs, p: int) -> None:
    """How many each method solves, and how natgrad's time compares, as a table in Markdown."""
    print(f"\np = {p:,}, {len(runs)} functions and starts; solved: max |gradient| <= {GRADIENT:g} min(1, that at x0)\n")
    print("| method | solved | lowest value | fastest | natgrad's time over its: median (range) |")
    print("|---|---|---|---|---|")
    for method in METHODS:
        mine = {key: by[method] for key, by in runs.items() if method in by}
        solved = [key for key, row in mine.items() if row["solved"]]
        lowest = sum(mine[key]["value"] <= lowest_value(runs[key]) for key in solved)
        fastest = sum(
            cost(mine[key], "seconds") == min(cost(r, "seconds") for r in runs[key].values()) for key in solved
        )
        both = [key for key in solved if runs[key].get("natgrad", {}).get("solved")]
        ratios = np.array([runs[key]["natgrad"]["seconds"] / mine[key]["seconds"] for key in both])
        text = f"{np.median(ratios):.2f} ({ratios.min():.3f} to {ratios.max():.1f})" if len(ratios) else "-"
        text = "" if method == "natgrad" else text
        if mine:
            print(f"| {method} | {len(solved)} of {len(mine)} | {lowest} | {fastest} | {text} |")


def table(runs: Runs) -> None:
    """Seconds of natgrad, of L-BFGS-B and of the fastest peer, for each function and start."""
    print("\n| function, start | natgrad: s (iterations, products) | L-BFGS-B | fastest other |\n|---|---|---|---|")
    for (name, start), by_method in runs.items():
        others = {method: cost(row, "seconds") for method, row in by_method.items() if method != "natgrad"}
        first = min(others, key=lambda method: others[method]) if others else "-"
        fastest = f"{first} {others[first]:.3g}" if np.isfinite(others.get(first, np.inf)) else "none"
        own, lbfgs = by_method.get("natgrad"), by_method.get("L-BFGS-B")
        cells = [
            "-" if row is None else f"{row['seconds']:.3g}" if row["solved"] else "not solved" for row in (own, lbfgs)
        ]
        counts = f" ({own['iterations']}, {own['products']})" if own is not None and own["solved"] else ""
        print(f"| {name}, {start} | {cells[0]}{counts} | {cells[1]} | {fastest} |")


def lowest_value(by_method: dict[str, dict[str, Any]]) -> float:
    """The least value that any method reached, and what counts as equal to it."""
    least = min(row["value"] for row in by_method.values() if np.isfinite(row["value"]))
    return least + 1e-8 * max(1.0, abs(least))
