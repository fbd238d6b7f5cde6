"""What every result holds beside its numbers, and how it is written."""

from __future__ import annotations

import json
import os
import platform
import re
import shlex
import sys
import time
from pathlib import Path
from typing import Any

import torch

import natgrad
from natgrad.benchmarks.machine import machine


def about(device: torch.device) -> dict[str, Any]:
    """The machine, the versions and the command."""
    gpu = {"gpu": torch.cuda.get_device_name(device)} if device.type == "cuda" else {}
    return {
        "machine": machine() | gpu,
        "device": device.type,
        "threads": torch.get_num_threads(),
        "versions": {
            "python": platform.python_version(),
            "torch": torch.__version__,
            "natgrad": natgrad.__version__,
        },
        "command": shlex.join(["natgrad", *sys.argv[1:]]),
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """All of it or nothing: whoever finds the file finds it whole. Innermost lists and dictionaries take one line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    text = json.dumps(content, indent=1, allow_nan=False)
    text = re.sub(r"[\[{]\n[^][{}]*[]}]", lambda found: " ".join(found[0].split()), text)
    unfinished.write_text(text + "\n")
    unfinished.replace(path)


def now(device: torch.device) -> float:
    """Seconds, once the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
