"""`natgrad bench groups`: what the operations of the structures cost, from p = 1e3 to 1e6."""

from __future__ import annotations

import argparse
import copy
import ctypes
import gc
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import natgrad as ng
from natgrad.benchmarks.machine import machine
from natgrad.experiments.structures import chain
from natgrad.groups.base import Size, Structure
from natgrad.plots import ORANGE, pyplot

OPERATIONS = ["apply", "solve", "product", "pull", "retract"]
BLOCKS: list[tuple[str, Callable[[int], Structure]]] = [
    ("Lower(k)", lambda k: ng.Lower(k)),
    ("Upper(k)", lambda k: ng.Upper(k)),
    ("Lower(k, k)", lambda k: ng.Lower(k, k)),
]
KS = (0, 1, 5, 20)
OTHERS: list[tuple[str, Callable[[int], Structure], Callable[[int], Size], int]] = [  # with the largest p
    ("Diagonal()", lambda p: ng.Diagonal(), int, 10**6),
    ("BlockDiagonal(8)", lambda p: ng.BlockDiagonal(8), int, 10**6),
    ("Toeplitz()", lambda p: ng.Toeplitz(), int, 10**6),
    ("Circulant()", lambda p: ng.Circulant(), int, 10**6),
    ("SparseCholesky(chain)", lambda p: ng.SparseCholesky(chain(p)), int, 10**6),
    ("Kronecker(Lower(5), Lower(5))", lambda p: ng.Kronecker(ng.Lower(5), ng.Lower(5)), lambda p: split(p), 10**6),
]
LARGE = 64_000  # from here on the vectors and factors outgrow the second-level cache
AIM = {"exponent": 1.1, "bandwidth_share": 0.25}  # in p, at most; of a copy, at least, for apply and solve
FEW_PRODUCTS = ("Lower", "Upper", "Diagonal", "SparseCholesky")  # the others' pull asks for p products


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"), help="folder for groups.json and .png")
    parser.add_argument("--largest", type=int, default=10**6, help="largest p (default 1000000)")
    parser.add_argument("--repeats", type=int, default=15, help="timings of each operation, the median of which counts")
    parser.add_argument("--redraw", action="store_true", help="measure nothing: draw the .png anew from the .json")


def run(arguments: argparse.Namespace) -> int:
    pyplot()  # first: it may be missing
    if arguments.redraw:
        plot(json.loads((arguments.out / "groups.json").read_text())["rows"], arguments.out / "groups.png")
        print(f"wrote {arguments.out / 'groups.png'}")
        return 0
    if arguments.largest < 16_000:
        raise ValueError(f"--largest must be at least 16000, for exponents over three sizes, got {arguments.largest}")
    if arguments.repeats < 1:
        raise ValueError(f"--repeats must be at least 1, got {arguments.repeats}")
    sizes = [p for p in (1_000, 4_000, 16_000, 64_000, 256_000, 1_000_000) if p <= arguments.largest]
    bandwidth = copy_bandwidth()
    print(f"copy of 512 MiB: {bandwidth / 1e9:.1f} GB/s\n")
    rows: list[dict[str, Any]] = []
    for name, k, make, size, largest in cases():
        for p in sizes:
            if p <= largest:
                rows += measure(name, k, make(p), size(p), p, arguments.repeats, bandwidth)
                report(rows[-len(OPERATIONS) :])
    result = {
        "machine": machine(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "dtype": "float64",
        "copy_bytes_per_second": bandwidth,
        "exponents": exponents(rows),
        "rows": rows,
    }
    print_exponents(result["exponents"])
    arguments.out.mkdir(parents=True, exist_ok=True)
    (arguments.out / "groups.json").write_text(json.dumps(result, indent=1) + "\n")
    plot(rows, arguments.out / "groups.png")
    print(f"\nwrote {arguments.out / 'groups.json'} and {arguments.out / 'groups.png'}")
    return 0


def cases() -> list[tuple[str, int | None, Callable[[int], Structure], Callable[[int], Size], int]]:
    listed: list[Any] = []
    for name, make in BLOCKS:
        listed += [(name, k, lambda p, make=make, k=k: make(k), int, 10**6) for k in KS]
    return listed + [(name, None, make, size, largest) for name, make, size, largest in OTHERS]


def split(p: int) -> tuple[int, int]:
    """Two sizes with product p, about equal."""
    m = next(m for m in range(int(p**0.5), 0, -1) if p % m == 0)
    return m, p // m


def tridiagonal(p: int) -> tuple[Callable[[Tensor], Tensor], Tensor]:
    """A Hessian that costs little beside the operations measured: its product, and its diagonal."""
    diagonal = torch.linspace(2.5, 3.5, p, dtype=torch.float64)

    def product(V: Tensor) -> Tensor:
        HV = diagonal[:, None] * V
        HV[1:] += V[:-1]
        HV[:-1] += V[1:]
        return HV

    return product, diagonal


def measure(
    name: str, k: int | None, structure: Structure, size: Size, p: int, repeats: int, bandwidth: float
) -> list[dict[str, Any]]:
    torch.manual_seed(0)
    one = structure.identity(size, dtype=torch.float64)
    U, V = (torch.randn(p, 2, dtype=torch.float64) / p**0.5 for _ in range(2))
    M = one.project(U, V)
    B = one.retract(M)
    x = torch.randn(p, dtype=torch.float64)
    hvp, diagonal = tridiagonal(p)
    operations: dict[str, Callable[[], Any]] = {  # a copy keeps no factorisation: each solve is an element's first
        "apply": lambda: B.apply(x),
        "solve": lambda: copy.copy(B).solve(x),
        "product": lambda: B @ B,
        "pull": lambda: copy.copy(B).pull(hvp, diagonal),
        "retract": lambda: B.retract(M),
    }
    numbers = sum(t.numel() for t in B.tensors())
    rows = []
    for operation in OPERATIONS:
        row: dict[str, Any] = {"structure": name, "k": k, "p": p, "numbers": numbers, "operation": operation}
        if operation != "pull" or name.startswith(FEW_PRODUCTS):
            row["seconds"] = seconds(operations[operation], repeats)
            row["peak_bytes"] = peak_bytes(operations[operation])
            if operation in ("apply", "solve"):  # read B and x once, write the result once
                row["bandwidth_share"] = 8 * (numbers + 2 * p) / row["seconds"] / bandwidth
        rows.append(row)
    return rows


def seconds(operation: Callable[[], Any], repeats: int) -> float:
    """The median of several timings, after a warm-up."""
    operation()
    timings = []
    for _ in range(repeats):
        start = time.perf_counter()
        operation()
        timings.append(time.perf_counter() - start)
        if sum(timings) > 10:
            break
    return float(np.median(timings))


def copy_bandwidth() -> float:
    """Bytes a second, read and written, of a copy that no cache holds."""
    source = torch.ones(2**26, dtype=torch.float64)
    target = torch.zeros_like(source)
    return 2 * 8 * source.numel() / seconds(lambda: target.copy_(source), 15)


def peak_bytes(operation: Callable[[], Any]) -> int | None:
    """How far the process's memory rises during the operation, its result counted in. None where Linux is not."""
    try:
        gc.collect()
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # resets the high-water mark
        before = resident("VmRSS")
        operation()
        return max(0, resident("VmHWM") - before)
    except OSError:
        return None


def resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * int(next(line for line in lines if line.startswith(field)).split()[1])


def exponents(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Slopes of log time: over log p for all p, and for those that no cache holds; over log k at the largest p."""
    timed = [row for row in rows if "seconds" in row]
    largest = max(row["p"] for row in timed)
    found: list[dict[str, Any]] = []

    def fit(over: str, at: str, name: str, k: int | None, operation: str, points: list[tuple[int, float]]) -> None:
        if len(points) > 2:
            x, y = np.log(np.array(points)).T
            slope = float(np.polyfit(x, y, 1)[0])
            found.append({"in": over, "at": at, "structure": name, "k": k, "operation": operation, "exponent": slope})

    def timings(**wanted: Any) -> list[dict[str, Any]]:
        return [row for row in timed if all(row[key] == value for key, value in wanted.items())]

    for name, k in dict.fromkeys((row["structure"], row["k"]) for row in timed):
        for operation in OPERATIONS:
            mine = [(row["p"], row["seconds"]) for row in timings(structure=name, k=k, operation=operation)]
            fit("p", "all p", name, k, operation, mine)
            fit("p", f"p >= {LARGE:,}", name, k, operation, [point for point in mine if point[0] >= LARGE])
    for name, _ in BLOCKS:
        for operation in OPERATIONS:
            mine = timings(structure=name, operation=operation, p=largest)
            fit(
                "k", f"p = {largest:,}", name, None, operation, [(row["k"], row["seconds"]) for row in mine if row["k"]]
            )
    return found


def report(rows: list[dict[str, Any]]) -> None:
    first = rows[0]
    label = first["structure"] if first["k"] is None else f"{first['structure']}, k={first['k']}"
    cells = []
    for row in rows:
        if "seconds" in row:
            share = f" ({row['bandwidth_share']:.0%})" if "bandwidth_share" in row else ""
            cells.append(f"{row['operation']} {1e3 * row['seconds']:.3f} ms{share}")
    memory = max((row.get("peak_bytes") or 0 for row in rows), default=0)
    print(f"{label:30} p={first['p']:<8} {', '.join(cells)}; at most {memory / 2**20:.0f} MiB", flush=True)


def print_exponents(found: list[dict[str, Any]]) -> None:
    for over, at in dict.fromkeys((e["in"], e["at"]) for e in found):
        chosen = [e for e in found if (e["in"], e["at"]) == (over, at)]
        print(f"\n{f'exponent in {over}, {at}':33} " + " ".join(f"{operation:>8}" for operation in OPERATIONS))
        for name, k in dict.fromkeys((e["structure"], e["k"]) for e in chosen):
            mine = {e["operation"]: e["exponent"] for e in chosen if (e["structure"], e["k"]) == (name, k)}
            label = name if k is None else f"{name}, k={k}"
            print(f"{label:33} " + " ".join(f"{mine[o]:8.2f}" if o in mine else " " * 8 for o in OPERATIONS))


DRAWN: dict[tuple[str, int | None], tuple[str, str]] = {  # colour and mark; Lower(0) is Diagonal, Upper near Lower
    ("Diagonal()", None): ("black", "o"),
    ("Lower(k)", 1): ("#8fbbe0", "o"),
    ("Lower(k)", 5): ("#3f86c0", "s"),
    ("Lower(k)", 20): ("#123f6d", "D"),
    ("BlockDiagonal(8)", None): ("#b59a00", "v"),
    ("Toeplitz()", None): ("#1b9e77", "^"),
    ("Circulant()", None): ("#c2559d", "<"),
    ("SparseCholesky(chain)", None): (ORANGE, "P"),
    ("Kronecker(Lower(5), Lower(5))", None): ("#8a8a8a", "X"),
}


def plot(rows: list[dict[str, Any]], path: Path) -> None:
    """Milliseconds over p for each operation, and the bandwidth of apply and solve."""
    plt = pyplot()
    from matplotlib.lines import Line2D

    figure, axes = plt.subplots(2, 4, figsize=(11, 5.4), sharex=True)
    panels: list[tuple[Any, str, str, str, float]] = [
        (axis, operation, "seconds", operation, 1e3) for axis, operation in zip(axes.flat, OPERATIONS, strict=False)
    ]
    shares = [("apply", axes[1, 1]), ("solve", axes[1, 2])]
    panels += [
        (axis, operation, "bandwidth_share", f"{operation}: bandwidth of a copy", 100) for operation, axis in shares
    ]
    p = np.array(sorted({row["p"] for row in rows}))
    for axis, operation, what, title, unit in panels:
        for (name, k), (color, mark) in DRAWN.items():
            wanted = {"structure": name, "k": k, "operation": operation}
            mine = [row for row in rows if what in row and all(row[key] == value for key, value in wanted.items())]
            points = [row["p"] for row in mine], [unit * row[what] for row in mine]
            axis.loglog(*points, color=color, marker=mark, markersize=3.5, linewidth=1.2)
        if what == "seconds":
            axis.loglog(p, 6e-3 * p / p[0], color="grey", linestyle=":", linewidth=1.5, zorder=1)
            axis.set_ylim(4e-3, 1.5e4)
        else:
            axis.axhline(unit * AIM["bandwidth_share"], color="black", linestyle="--", linewidth=1)
            axis.set_ylim(0.05, 600)
            axis.yaxis.set_major_formatter("{x:g}%")
        axis.set_title(title)
    for axis in axes[1, :3]:
        axis.set_xlabel("p")
    axes[0, 3].tick_params(labelbottom=True)
    axes[0, 3].set_xlabel("p")
    for axis in axes[:, 0]:
        axis.set_ylabel("milliseconds")
    handles = [
        Line2D([], [], color=color, marker=mark, markersize=4, label=name.replace("(k)", f"({k})"))
        for (name, k), (color, mark) in DRAWN.items()
    ]
    handles.append(Line2D([], [], color="grey", linestyle=":", linewidth=1.5, label="linear in p"))
    handles.append(Line2D([], [], color="black", linestyle="--", label=f"{AIM['bandwidth_share']:.0%} of a copy"))
    axes[1, 3].axis("off")
    axes[1, 3].legend(handles=handles, loc="center", fontsize=8.5)
    figure.tight_layout(w_pad=0.8)
    figure.savefig(path)
    plt.close(figure)
