"""`natgrad bench optim`: NGD and its peers, as to speed, memory and cost, and as to what networks learn with them."""

from __future__ import annotations

import argparse

from natgrad.benchmarks.optim import cost, figures, quality, speed

PARTS = {
    "speed": (speed, "seconds of a step and bytes of state"),
    "quality": (quality, "what networks learn: settings searched, then fresh seeds"),
    "cost": (cost, "how the step with triangular structures grows with the weights and with k"),
    "figures": (figures, "draw and print what the others have measured"),
}


def describe(parser: argparse.ArgumentParser) -> None:
    parts = parser.add_subparsers(dest="part", required=True, metavar="part")
    for name, (module, summary) in PARTS.items():
        module.describe(parts.add_parser(name, help=summary, description=summary))


def run(arguments: argparse.Namespace) -> int:
    return PARTS[arguments.part][0].run(arguments)
