"""What every result holds beside its numbers, and how it is written."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from typing import Any

import torch

import natgrad
from natgrad.benchmarks.machine import machine


def about(device: torch.device) -> dict[str, Any]:
    """The machine and the versions."""
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
    }


def write(path: Path, content: dict[str, Any]) -> None:
    """All of it or nothing: whoever finds the file finds it whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"{path.name}.{os.getpid()}")
    unfinished.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")
    unfinished.replace(path)


def now(device: torch.device) -> float:
    """Seconds, once the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
