"""`natgrad bench optim cost`: how a step with triangular structures grows with the number of weights and with k.

The paper's claim is that Lower(k) on both sides costs linear in both. One square weight, the step alone, with the
gradient as it is: full power is `NGD.paper`, half power the default rule with `structure=Lower(k)`. The optimizers take
turns, a block of steps each, and the median over blocks counts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from natgrad.benchmarks.optim.record import about, now, write
from natgrad.groups import Lower
from natgrad.optimization import NGD

SIZES = (128, 256, 512, 1024, 2048, 4096)  # d, for a weight of d x d
COLUMNS = (1, 3, 5)  # k at all sizes
SWEEP = (1, 2, 4, 8, 16, 32)  # k at SWEEP_SIZE
SWEEP_SIZE = 1024
LARGE = 512  # from here on a step is more than the calls it consists of
LR, WEIGHT_DECAY = 1e-4, 0.01
WARM_UP = 2  # steps that are not counted: they make the state

METHODS: dict[str, Callable[[Tensor, int], Optimizer]] = {  # of the weight and k
    "half power": lambda W, k: NGD([W], lr=LR, weight_decay=WEIGHT_DECAY, structure=Lower(k)),
    "full power": lambda W, k: NGD.paper([W], lr=LR, k=k, weight_decay=WEIGHT_DECAY),
}


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/optim"), help="folder for cost.json, .png")
    parser.add_argument("--largest", type=int, default=SIZES[-1], help=f"largest d (default {SIZES[-1]})")
    parser.add_argument("--rounds", type=int, default=15, help="blocks of steps for each optimizer (default 15)")
    parser.add_argument("--block", type=float, default=0.1, help="seconds of a block, at least one step (default 0.1)")
    parser.add_argument("--threads", type=int, default=1, help="default 1: exponents of the work, not of its sharing")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))


def run(arguments: argparse.Namespace) -> int:
    from natgrad.benchmarks.optim.figures import draw_cost
    from natgrad.benchmarks.optim.tables import print_cost

    sizes = [d for d in SIZES if d <= arguments.largest]
    if len(sizes) < 3:
        raise ValueError(f"--largest must be at least {SIZES[2]}, for exponents over three sizes")
    for name in ("rounds", "threads"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    torch.set_num_threads(arguments.threads)
    result: dict[str, Any] = about(arguments.device) | {"rows": []}
    for d in sizes:
        result["rows"] += measure(d, arguments)
    result["exponents"] = exponents(result["rows"])
    write(arguments.out / "cost.json", result)
    draw_cost(result, arguments.out / "cost.png")
    print_cost(result)
    return 0


def measure(d: int, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """One row for each optimizer on a weight of d x d."""
    columns = sorted({*COLUMNS, *(SWEEP if d == SWEEP_SIZE else ())})
    cases: list[tuple[str, int | None]] = [(method, k) for method in METHODS for k in columns]
    cases.append(("adamw", None))
    torch.manual_seed(0)
    W, G = (torch.randn(d, d, device=arguments.device) / d**0.5 for _ in range(2))
    optimizers: list[Optimizer] = []
    lengths: list[int] = []  # of a block, in steps
    for method, k in cases:
        own = W.clone().requires_grad_()
        own.grad = G  # the same for all: no optimizer changes it
        if k is None:
            optimizers.append(torch.optim.AdamW([own], lr=LR, weight_decay=WEIGHT_DECAY, foreach=True))
        else:
            optimizers.append(METHODS[method](own, k))
        block(optimizers[-1], WARM_UP, arguments.device)
        lengths.append(max(1, math.ceil(arguments.block / block(optimizers[-1], WARM_UP, arguments.device))))
    blocks: list[list[float]] = [[] for _ in cases]
    for _ in range(arguments.rounds):
        for optimizer, length, found in zip(optimizers, lengths, blocks, strict=True):
            found.append(block(optimizer, length, arguments.device))
    rows = []
    for (method, k), found in zip(cases, blocks, strict=True):
        rows.append({"method": method, "k": k, "d": d, "seconds": float(np.median(found)), "blocks": found})
        print(f"d = {d}, {method}{f', k = {k}' if k else ''}: {1e3 * rows[-1]['seconds']:.3f} ms", flush=True)
    return rows


def block(optimizer: Optimizer, steps: int, device: torch.device) -> float:
    """Seconds of a step, the mean of so many."""
    began = now(device)
    for _ in range(steps):
        optimizer.step()
    return (now(device) - began) / steps


def exponents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """In the number of weights for each method and k, over all sizes and the large ones; in k at one size."""
    found: list[dict[str, Any]] = []

    def add(method: str, k: int | None, over: str, at: str, points: list[tuple[int, float]]) -> None:
        if len(points) > 2:
            exponent, error = fit(points)
            about = {"method": method, "k": k, "in": over, "at": at}
            found.append(about | {"exponent": exponent, "standard_error": error})

    for at, least in (("all d", 0), (f"d >= {LARGE}", LARGE)):
        for method, k in dict.fromkeys((row["method"], row["k"]) for row in rows):
            mine = [row for row in rows if (row["method"], row["k"]) == (method, k) and row["d"] >= least]
            add(method, k, "weights", at, [(row["d"] ** 2, row["seconds"]) for row in mine])
    for method in METHODS:
        mine = [row for row in rows if row["method"] == method and row["d"] == SWEEP_SIZE and row["k"] in SWEEP]
        add(method, None, "k", f"d = {SWEEP_SIZE}", [(row["k"], row["seconds"]) for row in mine])
    return found


def fit(points: list[tuple[int, float]]) -> tuple[float, float]:
    """The slope by least squares, both axes logarithmic, and its standard error."""
    x, y = np.log(np.array(points)).T
    x, y = x - x.mean(), y - y.mean()
    slope = x @ y / (x @ x)
    residual = y - slope * x
    return float(slope), float(np.sqrt(residual @ residual / (len(x) - 2) / (x @ x)))
