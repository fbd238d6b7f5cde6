"""`natgrad bench`: measurements on this machine."""

from __future__ import annotations

import argparse

from natgrad.benchmarks import groups, minimize, optim

TOPICS = {
    "groups": (groups, "time, memory and bandwidth of the structures' operations"),
    "minimize": (minimize, "minimize against SciPy's and torch's minimisers"),
    "optim": (optim, "the optimizer of networks against its peers"),
}


def describe(parser: argparse.ArgumentParser) -> None:
    topics = parser.add_subparsers(dest="topic", required=True, metavar="topic")
    for name, (module, summary) in TOPICS.items():
        module.describe(topics.add_parser(name, help=summary, description=summary))


def run(arguments: argparse.Namespace) -> int:
    return TOPICS[arguments.topic][0].run(arguments)
