"""The command `natgrad`: each subcommand is a module with `describe(parser)` and `run(arguments)`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

import natgrad

COMMANDS = {
    "structures": ("natgrad.experiments.structures", "draw every structure and print what each one costs"),
    "reproduce": ("natgrad.experiments.reproduce", "run the experiments of the paper"),
    "bench": ("natgrad.benchmarks", "measure natgrad on this machine"),
}


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="natgrad", description=natgrad.__doc__)
    parser.add_argument("--version", action="version", version=f"natgrad {natgrad.__version__}")
    commands = parser.add_subparsers(dest="command", metavar="command")
    modules = {}
    for name, (module, summary) in COMMANDS.items():
        modules[name] = import_module(module)
        modules[name].describe(commands.add_parser(name, help=summary, description=summary))
    arguments = parser.parse_args(argv)
    if arguments.command is None:
        parser.print_help(sys.stderr)
        return 2
    try:
        code = modules[arguments.command].run(arguments)
        sys.stdout.flush()  # here, where a pipe that nobody reads any more can be caught
        return code
    except BrokenPipeError:  # as from `natgrad ... | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (ValueError, OSError, ModuleNotFoundError) as error:
        print(f"natgrad {arguments.command}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
