"""The tables of `natgrad bench optim`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from natgrad.experiments.curves import rich

REFERENCE = "adamw"
STANDARD = ("adamw", "muon", "soap")  # the best of these is what a new method has to reach in no more time
Run = dict[str, Any]  # one of quality.json


class End(NamedTuple):
    """What a method has reached at the end of its runs, the mean over those that did not fail."""

    method: str
    score: float
    seconds: float


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
    table(f"Medians over blocks of steps ({where(result)})", headings, rows)


def print_cost(result: dict[str, Any]) -> None:
    table(
        f"Step of one d x d weight, medians over blocks ({where(result)})",
        ("method", "k", "d", "weights", "ms (range)", "x AdamW"),
        [
            (
                row["method"], name(row["k"]), str(row["d"]), f"{row['d'] ** 2:,}",
                f"{1e3 * row['seconds']:.3f} ({1e3 * min(row['blocks']):.3f}-{1e3 * max(row['blocks']):.3f})",
                f"{row['seconds'] / next(r['seconds'] for r in result['rows'] if is_reference(r, row['d'])):.1f}",
            )
            for row in result["rows"]
        ],
    )  # fmt: skip
    table(
        "Exponents: time ~ weights^e, or k^e (with the standard error)",
        ("method", "k", "in", "at", "e"),
        [
            (e["method"], name(e["k"]), e["in"], e["at"], f"{e['exponent']:.2f} ({e['standard_error']:.2f})")
            for e in result["exponents"]
        ],
    )


def is_reference(row: dict[str, Any], d: int) -> bool:
    return row["method"] == REFERENCE and row["d"] == d


def name(k: int | None) -> str:
    return "-" if k is None else str(k)


def where(about: dict[str, Any]) -> str:
    return f"{about['device']}, threads: {about['threads']}"


def finished(runs: list[Run]) -> list[Run]:
    return [run for run in runs if run["score"] is not None]


def end(task: dict[str, Any], method: str) -> End | None:
    runs = finished(task["methods"].get(method, {"seeds": []})["seeds"])
    if not runs:
        return None
    score, seconds = (float(np.mean([run[key] for run in runs])) for key in ("score", "seconds"))
    return End(method, score, seconds)


def best_of(task: dict[str, Any], methods: Iterable[str]) -> End | None:
    """The one with the best score at the end."""
    ends = [e for e in (end(task, method) for method in methods) if e]
    return max(ends, key=lambda e: e.score if task["higher"] else -e.score, default=None)


def arrival(seeds: list[Run], target: float, higher: bool) -> str:
    """Epochs and seconds after which the mean score is as good as the target, at the points where it was taken.

    Not of a method that fails for a seed: the others alone would look better than it is.
    """
    if len(finished(seeds)) < len(seeds):
        return "-"
    sign = 1 if higher else -1
    for points in zip(*(run["curve"] for run in seeds), strict=True):
        epoch, seconds, score = (np.mean([point[key] for point in points]) for key in ("epoch", "seconds", "score"))
        if sign * score >= sign * target:
            return f"{epoch:.2g} ({seconds:.1f})"
    return "-"


def print_task(title: str, task: dict[str, Any]) -> None:
    targets = [end(task, REFERENCE), best_of(task, STANDARD)]
    names = [f"{REFERENCE}'s last", f"that of the best of {', '.join(STANDARD[:-1])} and {STANDARD[-1]}"]
    rows = []
    for method, own in task["methods"].items():
        chosen, search, seeds = own["chosen"], own["search"], own["seeds"]
        scores, last = [r["score"] for r in finished(seeds)], [r["losses"][-1] for r in finished(seeds)]
        rates = sorted({run["lr"] for run in search})
        edge = " (edge)" if chosen["lr"] in (rates[0], rates[-1]) else ""
        about = end(task, method)
        rows.append(
            (
                method,
                f"{chosen['lr']:g}{edge}",
                f"{chosen['weight_decay']:g}",
                "-" if chosen["score"] is None else f"{chosen['score']:#.4g}",
                f"{np.mean(scores):#.4g}" if scores else "-",
                f"{min(scores):#.4g}-{max(scores):#.4g}" if scores else "-",
                f"{np.mean(last):#.4g}" if last else "-",
                f"{about.seconds:.1f}" if about else "-",
                *(arrival(seeds, target.score, task["higher"]) if target else "-" for target in targets),
                f"{len(seeds) - len(scores)} of {len(seeds)}",
                f"{len(search) - len(finished(search))} of {len(search)}",
            )
        )
    headings = (
        "method", "learning rate", "weight decay", "validation, in the search", "test, fresh seeds: mean", "range",
        "training loss, last twentieth", "s a run", *(to(*pair) for pair in zip(names, targets, strict=True)), "failed",
        "failed in the search",
    )  # fmt: skip
    better = "higher" if task["higher"] else "lower"
    timed = {where(task["environments"][r["environment"]]) for own in task["methods"].values() for r in own["seeds"]}
    conditions = "; ".join(sorted(timed)) or "nothing timed yet"
    table(f"{title}: {task['score_name']}, {better} is better ({conditions})", headings, rows)


def to(whom: str, target: End | None) -> str:
    """With the seconds that the target has taken itself."""
    return f"to {whom}{f', {target.method} in {target.seconds:.1f} s' if target else ''}: epochs (s)"


def table(title: str, headings: Iterable[str], rows: Iterable[tuple[str, ...]]) -> None:
    grid = rich().table.Table(title=title, title_justify="left", box=rich().box.SIMPLE_HEAD)
    for heading in headings:
        words = heading in ("network", "method", "in", "at")
        grid.add_column(heading, justify="left" if words else "right", no_wrap=words or heading == "range")
    for row in rows:
        grid.add_row(*row)
    rich().console.Console(width=170).print(grid)
