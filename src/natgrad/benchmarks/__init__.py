"""`natgrad bench`: measurements on this machine."""

from __future__ import annotations

import argparse

from natgrad.benchmarks import groups


def describe(parser: argparse.ArgumentParser) -> None:
    topics = parser.add_subparsers(dest="topic", required=True, metavar="topic")
    summary = "time, memory and bandwidth of the structures' operations"
    groups.describe(topics.add_parser("groups", help=summary, description=summary))


def run(arguments: argparse.Namespace) -> int:
    return {"groups": groups.run}[arguments.topic](arguments)
