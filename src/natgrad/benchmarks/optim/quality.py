"""`natgrad bench optim quality`: what each optimizer learns, its settings searched, then three fresh seeds.

The search sees validation data only; the runs with fresh seeds are scored on the test data. Each run is a file, written
when it is over; a killed benchmark goes on where it was. The runs of the search may go in parallel, one thread each,
and their times mean nothing; those with fresh seeds go one at a time, the methods in turns, so that a machine that
slows down does so for all of them. At the end quality.json holds what the figures and tables need of all runs.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterable, Iterator
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path

import torch

from natgrad.benchmarks.optim.collect import collect
from natgrad.benchmarks.optim.peers import METHODS, installed
from natgrad.benchmarks.optim.record import about, write
from natgrad.benchmarks.optim.search import EXTENSIONS, TUNING_SEED, Run, best, grid, load, sides
from natgrad.benchmarks.optim.tasks import TASKS, Task
from natgrad.benchmarks.optim.training import Settings, train

SEARCHED = [name for name, method in METHODS.items() if method.searched]


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=list(TASKS), metavar="NAME")
    parser.add_argument(
        "--methods", nargs="+", default=SEARCHED, choices=SEARCHED, metavar="NAME",
        help="to be compared with equal budgets they have to be asked for together",
    )  # fmt: skip
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], help="of the runs with the best settings")
    parser.add_argument("--epochs", type=int, help="instead of each task's own number")
    parser.add_argument(
        "--out", type=Path, default=Path("benchmarks/results/optim"), help="folder for quality.json and the runs"
    )
    parser.add_argument(
        "--data", type=Path, default=Path("data/cifar-10-batches-bin"),
        help="folder of CIFAR-10 as binary files, from https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    )  # fmt: skip
    parser.add_argument("--jobs", type=int, default=1, help="processes for the search, with one thread each")
    parser.add_argument("--threads", type=int, default=1, help="of the runs that are timed")
    parser.add_argument("--device", type=torch.device, default=torch.device("cpu"))


def run(arguments: argparse.Namespace) -> int:
    from natgrad.benchmarks.optim.tables import print_task

    if TUNING_SEED in arguments.seeds:
        raise ValueError(f"--seeds must be fresh ones: {TUNING_SEED} is that of the search")
    for name in ("jobs", "threads", "epochs"):
        if getattr(arguments, name) is not None and getattr(arguments, name) < 1:
            raise ValueError(f"--{name} must be at least 1, got {getattr(arguments, name)}")
    methods = installed(arguments.methods)
    for name in arguments.tasks:
        epochs = arguments.epochs or make_task(name, arguments.data, arguments.device).epochs
        winners = search(name, methods, epochs, arguments)
        torch.set_num_threads(arguments.threads)
        for seed in arguments.seeds:
            for winner in winners:
                chosen = Settings(name, winner["method"], winner["lr"], winner["weight_decay"], seed, epochs)
                if not timed_before(chosen, arguments):
                    print(execute(chosen, arguments, timed=True), flush=True)
        print_task(name, collect(arguments.out)["tasks"][name])
    return 0


def timed_before(settings: Settings, arguments: argparse.Namespace) -> bool:
    """Whether there is such a run, and with as many threads: times are to be compared."""
    found = load(settings, arguments.out)
    if found and found["threads"] != arguments.threads:
        raise ValueError(
            f"{settings.path(arguments.out)} was timed with {found['threads']} threads, and {arguments.threads} are "
            "asked for; choose another folder with --out, or delete it"
        )
    return found is not None


def search(task: str, methods: list[str], epochs: int, arguments: argparse.Namespace) -> list[Run]:
    """The best run of each method."""
    below = above = 0
    winners: list[Run] = []
    for extension in range(EXTENSIONS + 1):
        grids = [grid(task, method, epochs, below, above) for method in methods]
        missing = [settings for points in grids for settings in points if load(settings, arguments.out) is None]
        for line in spread(missing, arguments):
            print(line, flush=True)
        done = [[load(settings, arguments.out) for settings in points] for points in grids]
        winners = [best([found for found in points if found is not None]) for points in done]
        lower, higher = sides(winners, below, above)
        if not (lower or higher) or extension == EXTENSIONS:
            break
        below, above = below + lower, above + higher
    return winners


def spread(work: list[Settings], arguments: argparse.Namespace) -> Iterator[str]:
    """The runs, over several processes when so asked."""
    jobs: Iterable[tuple[Settings, argparse.Namespace]] = [(settings, arguments) for settings in work]
    if arguments.jobs == 1:
        torch.set_num_threads(1)
        yield from map(search_run, jobs)
    elif work:
        with multiprocessing.get_context("spawn").Pool(arguments.jobs, torch.set_num_threads, (1,)) as pool:
            yield from pool.imap_unordered(search_run, jobs)


def search_run(job: tuple[Settings, argparse.Namespace]) -> str:
    return execute(*job, timed=False)


def execute(settings: Settings, arguments: argparse.Namespace, timed: bool) -> str:
    """One run, from its settings to its file. The answer is a line about it.

    Those that are timed are scored on the test data, those of the search on the validation data.
    """
    task = replace(make_task(settings.task, arguments.data, arguments.device), epochs=settings.epochs)
    method = METHODS[settings.method]
    result = train(
        task,
        lambda network: method.make(network, settings.lr, settings.weight_decay),
        settings.seed,
        arguments.device,
        on="test" if timed else "validation",
    )
    path = settings.path(arguments.out)
    write(path, asdict(settings) | {"timed": timed} | result | about(arguments.device))
    ending = result["failure"] or f"{result['score']:.4f} in {result['seconds']:.1f} s"
    return f"{path.relative_to(arguments.out).with_suffix('')}: {ending}"


@cache
def make_task(name: str, data: Path, device: torch.device) -> Task:
    return TASKS[name](data, device)
