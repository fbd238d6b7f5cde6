"""One training run, the same for every optimizer but for the optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from natgrad.benchmarks.optim.record import now
from natgrad.benchmarks.optim.tasks import Task

POINTS = 10  # at which the score is taken, equally spaced
PARTS = 20  # of the training, with a mean loss each
WARM_UP = 0.05  # share of the steps


@dataclass(frozen=True)
class Settings:
    """All that a run's result depends on."""

    task: str
    method: str
    lr: float
    weight_decay: float
    seed: int
    epochs: int

    def path(self, out: Path) -> Path:
        name = f"lr{self.lr:g}-wd{self.weight_decay:g}-seed{self.seed}.json"
        return out / "runs" / self.task / self.method / name


def schedule(step: int, steps: int) -> float:
    """Of the learning rate at step 0, 1, ..., steps - 1: linearly up, then half a cosine down to zero."""
    rise = max(1, round(WARM_UP * steps))
    if step < rise:
        return (step + 1) / rise
    return 0.5 * (1 + math.cos(math.pi * (step - rise) / (steps - rise)))


def train(
    task: Task, make: Callable[[nn.Module], Optimizer], seed: int, device: torch.device, on: str
) -> dict[str, Any]:
    """Losses, seconds, and scores on "validation" or "test".

    A run that diverges, or whose linear algebra fails, ends there with no score.
    """
    torch.manual_seed(seed)
    network = task.network().to(device)
    optimizer = make(network)
    curve: list[dict[str, float]] = []
    losses: list[float] = []
    try:
        seconds = loop(task, network, optimizer, seed, device, on, losses, curve)
        failure = ""
    except (Diverged, torch.linalg.LinAlgError) as error:  # pyright: ignore[reportPrivateImportUsage]
        seconds, failure = None, f"{type(error).__name__}: {error}"
    return {
        "score": None if failure else curve[-1]["score"],
        "scored_on": on,
        "score_name": task.score_name,
        "higher": task.higher,
        "diverged": bool(failure),
        "failure": failure,
        "seconds": seconds,
        "steps": task.steps,
        "losses": means(losses, task.steps),
        "curve": curve,
    }


class Diverged(Exception):  # noqa: N818
    """A loss or a score is not finite."""


def loop(
    task: Task,
    network: nn.Module,
    optimizer: Optimizer,
    seed: int,
    device: torch.device,
    on: str,
    losses: list[float],
    curve: list[dict[str, float]],
) -> float:
    """Fills in losses and scores; the answer is the seconds of training, evaluations not counted."""
    steps = task.steps
    looks = {round(i * steps / POINTS) for i in range(1, POINTS + 1)}
    peaks = [group["lr"] for group in optimizer.param_groups]
    seconds, began = 0.0, now(device)
    for step, (inputs, targets) in enumerate(task.batches(seed), 1):
        for group, peak in zip(optimizer.param_groups, peaks, strict=True):
            group["lr"] = peak * schedule(step - 1, steps)
        optimizer.zero_grad()
        loss = task.loss(network(inputs), targets)
        losses.append(finite(loss.item(), "loss", step))
        loss.backward()
        optimizer.step()
        if step in looks:
            seconds += now(device) - began
            score = finite(task.evaluate(network, on), "score", step)
            curve.append({"epoch": task.epochs * step / steps, "seconds": seconds, "score": score})
            began = now(device)
    return seconds


def finite(value: float, name: str, step: int) -> float:
    if not math.isfinite(value):
        raise Diverged(f"{name} {value} at step {step}")
    return value


def means(losses: list[float], steps: int) -> list[float]:
    """Over each part of the training, as far as it went."""
    bounds = [round(i * steps / PARTS) for i in range(PARTS + 1)]
    parts = [losses[i:j] for i, j in pairwise(bounds)]
    return [sum(part) / len(part) for part in parts if part]
