"""`natgrad bench optim speed`: seconds of a step, alone and with the gradient, and bytes of state.

The optimizers train copies of one network in turns, a block of steps each, so that a machine that slows down does so
for all of them. A step is timed where it stands in training, with the caches as the backward pass has left them, and
what counts of a block is its mean: what an optimizer does every tenth step counts with its share.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from natgrad.benchmarks.optim.models import CNN, GPT, ViT
from natgrad.benchmarks.optim.peers import METHODS, installed
from natgrad.benchmarks.optim.record import about, now, write
from natgrad.benchmarks.optim.tasks import Batch, cross_entropy

SYMBOLS = 100
WARM_UP = 2  # steps that are not counted: they make the state
LR, WEIGHT_DECAY = 1e-4, 0.01


def images(examples: int = 64) -> Batch:
    return torch.randn(examples, 3, 32, 32), torch.randint(10, (examples,))


def characters(examples: int = 16, tokens: int = 128) -> Batch:
    return torch.randint(SYMBOLS, (examples, tokens)), torch.randint(SYMBOLS, (examples, tokens))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Batch]]] = {
    "CNN-16": (lambda: CNN(16), images),
    "CNN-32": (lambda: CNN(32), images),
    "CNN-64": (lambda: CNN(64), images),
    "ViT": (ViT, images),
    "GPT": (lambda: GPT(SYMBOLS), characters),
}


@dataclass
class Timing:
    """One optimizer with its copy of the network."""

    network: nn.Module
    optimizer: Optimizer
    batch: Batch
    steps: list[float] = field(default_factory=list)  # seconds of optimizer.step, a mean for each block
    trainings: list[float] = field(default_factory=list)  # and with zero_grad, forward and backward

    def block(self, steps: int, device: torch.device) -> None:
        inputs, targets = self.batch
        of_step = of_training = 0.0
        for _ in range(steps):
            began = now(device)
            self.optimizer.zero_grad()
            cross_entropy(self.network(inputs), targets).backward()
            ready = now(device)
            self.optimizer.step()
            done = now(device)
            of_step += done - ready
            of_training += done - began
        self.steps.append(of_step / steps)
        self.trainings.append(of_training / steps)


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--networks", nargs="+", default=list(NETWORKS), choices=list(NETWORKS), metavar="NAME")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS), metavar="NAME")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/optim"), help="folder for speed.json")
    parser.add_argument("--rounds", type=int, default=10, help="blocks of steps for each optimizer (default 10)")
    parser.add_argument("--block", type=int, default=20, help="steps, a multiple of all intervals (default 20)")
    parser.add_argument(
        "--limit", type=float, default=120.0, help="seconds, after which an optimizer has no more turns"
    )
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1, help="default: as many as there are cores")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))


def run(arguments: argparse.Namespace) -> int:
    from natgrad.benchmarks.optim.tables import print_speed

    for name in ("rounds", "block", "threads"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    torch.set_num_threads(arguments.threads)
    methods = installed(arguments.methods)
    result: dict[str, Any] = about(arguments.device) | {
        "block": arguments.block,
        "missing": {name: METHODS[name].missing for name in arguments.methods if name not in methods},
        "rows": [],
    }
    for name in arguments.networks:
        result["rows"] += measure(name, methods, arguments)
        write(arguments.out / "speed.json", result)
    print_speed(result)
    return 0


def measure(name: str, methods: list[str], arguments: argparse.Namespace) -> list[dict[str, Any]]:
    device = arguments.device
    make_network, make_batch = NETWORKS[name]
    timings: dict[str, Timing] = {}
    for method in methods:
        torch.manual_seed(0)
        network = make_network().to(device)
        inputs, targets = make_batch()
        optimizer = METHODS[method].make(network, LR, WEIGHT_DECAY)
        timings[method] = Timing(network, optimizer, (inputs.to(device), targets.to(device)))
        timings[method].block(WARM_UP, device)
        timings[method].steps.clear()
        timings[method].trainings.clear()
    for _ in range(arguments.rounds):
        for timing in timings.values():
            if sum(timing.trainings) * arguments.block < arguments.limit:
                timing.block(arguments.block, device)
    rows = []
    for method, timing in timings.items():
        row = {
            "network": name,
            "method": method,
            "parameters": sum(p.numel() for p in timing.network.parameters()),
            "step_seconds": float(np.median(timing.steps)),
            "training_seconds": float(np.median(timing.trainings)),
            "state_bytes": state_bytes(timing.optimizer, timing.network),
            "blocks": {"step_seconds": timing.steps, "training_seconds": timing.trainings},
        }
        rows.append(row)
        print(f"{name} {method}: step {1e3 * row['step_seconds']:.3f} ms, {row['state_bytes']:,} bytes", flush=True)
    return rows


def state_bytes(optimizer: Optimizer, network: nn.Module) -> int:
    """Of all tensors that the optimizer keeps, in `state` or elsewhere; what several share counts once."""
    own = {p.untyped_storage().data_ptr() for p in network.parameters()}
    own |= {p.grad.untyped_storage().data_ptr() for p in network.parameters() if p.grad is not None}
    sizes = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors(vars(optimizer), set())}
    return sum(size for storage, size in sizes.items() if storage not in own)


def tensors(content: Any, seen: set[int]) -> Iterator[Tensor]:
    """All tensors in dictionaries, sequences and objects' attributes; networks are not entered."""
    if id(content) in seen or isinstance(content, nn.Module | type | str | Callable):
        return
    seen.add(id(content))
    if isinstance(content, Tensor):
        yield content
    elif isinstance(content, dict):
        for value in content.values():
            yield from tensors(value, seen)
    elif isinstance(content, list | tuple | set):
        for value in content:
            yield from tensors(value, seen)
    elif hasattr(content, "__dict__"):
        yield from tensors(vars(content), seen)
