"""Curves of a loss over iterations and seconds: recorded, shown while they grow, drawn and saved."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from natgrad.plots import pyplot


@dataclass
class Curve:
    """One run of one method."""

    name: str
    losses: list[float]  # the first one at the start
    steps: list[float] = field(default_factory=lambda: [0])  # iterations, or epochs
    seconds: list[float] = field(default_factory=lambda: [0.0])
    note: str = ""
    _began: float = field(default_factory=time.perf_counter, repr=False)

    def add(self, loss: float, step: float | None = None) -> None:
        self.losses.append(loss)
        self.steps.append(self.steps[-1] + 1 if step is None else step)
        self.seconds.append(time.perf_counter() - self._began)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Time that is not the method's own: of looking at the loss."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._began += time.perf_counter() - began

    def first_below(self, target: float) -> int | None:
        return next((i for i, loss in enumerate(self.losses) if loss <= target), None)


def rich() -> Any:
    try:
        import rich.console
        import rich.progress
        import rich.table
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError('experiments need rich: pip install "natgrad[experiments]"') from error
    return rich


@contextmanager
def progress() -> Iterator[Any]:
    """A progress bar with a task for each method, its last loss behind it."""
    bars = rich().progress
    columns = (
        bars.TextColumn("{task.description:<34}"),
        bars.BarColumn(),
        bars.MofNCompleteColumn(),
        bars.TimeElapsedColumn(),
        bars.TextColumn("{task.fields[loss]}"),
    )
    with bars.Progress(*columns) as bar:
        yield bar


def table(curves: list[Curve], targets: tuple[float, ...], unit: str = "iterations") -> None:
    """Final losses, and steps and seconds to each target, printed."""
    grid = rich().table.Table(box=rich().box.SIMPLE_HEAD)
    grid.add_column("method")
    for heading in ("loss at the end", *(f"{unit} (s) to {target:g}" for target in targets), "s in all"):
        grid.add_column(heading, justify="right")
    for curve in curves:
        cells = []
        for target in targets:
            i = curve.first_below(target)
            cells.append("-" if i is None else f"{curve.steps[i]:g} ({curve.seconds[i]:.2f})")
        grid.add_row(curve.name + curve.note, f"{curve.losses[-1]:.2e}", *cells, f"{curve.seconds[-1]:.2f}")
    rich().console.Console(width=120).print(grid)


def draw(curves: list[Curve], path: Path, *, x: str, y: str, title: str, floor: float, styles: dict[str, Any]) -> None:
    """Losses on a logarithmic axis, cut at `floor`, over "seconds" or the steps."""
    plt = pyplot()
    figure, axes = plt.subplots(figsize=(5.2, 3.4))
    for curve in curves:
        over = curve.seconds if x == "seconds" else curve.steps
        end = curve.first_below(floor)
        heights = [loss if math.isfinite(loss) else math.nan for loss in curve.losses[:end]]
        heights += [] if end is None else [floor]
        axes.plot(over[: len(heights)], heights, label=curve.name, lw=1.4, **styles.get(curve.name, {}))
    axes.set_yscale("log")
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.set_title(title, loc="left")
    axes.legend(fontsize=7.5, loc="center left", bbox_to_anchor=(1.0, 0.5))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    plt.close(figure)


def save(curves: list[Curve], path: Path, **about: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {
        **about,
        "curves": [
            {"method": c.name, "note": c.note, "losses": [float(f"{v:.6g}") for v in c.losses], "steps": c.steps,
             "seconds": [round(v, 5) for v in c.seconds]} for c in curves
        ],
    }  # fmt: skip
    path.write_text(json.dumps(content) + "\n")
