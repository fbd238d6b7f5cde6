"""`natgrad reproduce`: the experiments of the paper, each as figures, a JSON of all curves and a table."""

from __future__ import annotations

import argparse
from pathlib import Path

from natgrad.experiments import figure1, logistic

TOPICS = {
    "rosenbrock": (figure1, "Figure 1 b: the Rosenbrock function of 200 variables"),
    "dixon-price": (figure1, "Figure 1 c: the Dixon-Price function of 200 variables"),
    "logistic": (logistic, "mini-batches: logistic regression, a sum over many examples"),
}


def describe(parser: argparse.ArgumentParser) -> None:
    topics = parser.add_subparsers(dest="topic", required=True, metavar="experiment")
    for name, (module, summary) in TOPICS.items():
        topic = topics.add_parser(name, help=summary, description=summary)
        topic.add_argument("--out", type=Path, default=Path("results"), help="folder for the figures and the JSON")
        topic.add_argument("--seed", type=int, default=0, help="of everything random (default 0)")
        module.describe(topic)


def run(arguments: argparse.Namespace) -> int:
    return TOPICS[arguments.topic][0].run(arguments)
