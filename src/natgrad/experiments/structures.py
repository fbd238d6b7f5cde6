"""`natgrad structures`: every structure drawn, as in Figure 1 of the paper, with its storage and cost."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array, kron
from torch import Tensor

import natgrad as ng
from natgrad.groups.base import Size, Structure
from natgrad.groups.conjugate import ConjugateMatrix
from natgrad.plots import BLUE, ORANGE, PALE, pyplot


def chain(p: int) -> csr_array:
    """The pattern of a tridiagonal Hessian."""
    return csr_array(eye_array(p) + eye_array(p, k=1) + eye_array(p, k=-1))


def grid(p: int) -> csr_array:
    """The pattern of a Hessian on a square grid of p points."""
    side = round(p**0.5)
    return csr_array(kron(chain(side), eye_array(side)) + kron(eye_array(side), chain(side)))


def shuffle(p: int) -> np.ndarray:
    return np.random.default_rng(4).permutation(p)


def square(p: int) -> tuple[int, int]:
    return round(p**0.5), round(p**0.5)


# name, structure for p coordinates, size as identity() takes it
Example = tuple[str, Callable[[int], Structure], Callable[[int], Size]]
EXAMPLES: list[Example] = [
    ("Dense()", lambda p: ng.Dense(), int),
    ("Diagonal()", lambda p: ng.Diagonal(), int),
    ("BlockDiagonal(4)", lambda p: ng.BlockDiagonal(4), int),
    ("Upper(2)", lambda p: ng.Upper(2), int),
    ("Lower(2)", lambda p: ng.Lower(2), int),
    ("Lower(2, 4)", lambda p: ng.Lower(2, 4), int),
    ("Upper(2, 4)", lambda p: ng.Upper(2, 4), int),
    ("Conjugate(Lower(2), by=order)", lambda p: ng.Conjugate(ng.Lower(2), shuffle(p)), int),
    ("SparseCholesky(chain)", lambda p: ng.SparseCholesky(chain(p)), int),
    ("SparseCholesky(grid)", lambda p: ng.SparseCholesky(grid(p)), int),
    ("Toeplitz()", lambda p: ng.Toeplitz(), int),
    ("Toeplitz(upper=True)", lambda p: ng.Toeplitz(upper=True), int),
    ("Circulant()", lambda p: ng.Circulant(), int),
    ("Kronecker(Lower(1), Lower(1))", lambda p: ng.Kronecker(ng.Lower(1), ng.Lower(1)), square),
]


LARGEST = 16_384  # a few seconds; four times as many take half a minute and 4 GB, for SparseCholesky(grid)


def describe(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--p",
        type=int,
        default=1024,
        help=f"coordinates in the table, an even number squared, at most {LARGEST} (default 1024)",
    )
    parser.add_argument("--out", type=Path, default=Path("."), help="folder for structures.png (default: here)")
    parser.add_argument("--json", action="store_true", help="print the table as JSON, draw nothing")


def run(arguments: argparse.Namespace) -> int:
    if not 16 <= arguments.p <= LARGEST or round(arguments.p**0.5) ** 2 != arguments.p or arguments.p % 4:
        raise ValueError(f"--p must be the square of an even number, from 16 to {LARGEST}, got {arguments.p}")
    if not arguments.json:
        pyplot()  # first: it may be missing
    rows = table(arguments.p)
    if arguments.json:
        print(json.dumps(rows, indent=1))
    else:
        print(f"p = {arguments.p}; pull: products with the Hessian for one update, its diagonal being known\n")
        print(f"{'structure':30} {'storage':>18} {'numbers':>9}  {'cost':28} {'pull':>5}")
        for row in rows:
            print(f"{row['structure']:30} {row['storage']:>18} {row['numbers']:9,}  {row['cost']:28} {row['pull']:5,}")
        print(f"\nwrote {draw(arguments.out)}")
    return 0


def table(p: int) -> list[dict[str, Any]]:
    rows = []
    for name, make, size in EXAMPLES:
        structure = make(p)
        rows.append(
            {
                "structure": name,
                "storage": structure.storage,
                "numbers": sum(t.numel() for t in structure.identity(size(p), device="meta").tensors()),
                "cost": structure.cost,
                "pull": products(structure, size(p)),
            }
        )
    return rows


def products(structure: Structure, size: Size) -> int:
    """How many `pull` asks for, the diagonal being known. The general pull asks for p, which would take hours to count.

    The others ask for as many whatever H is.
    """
    B = structure.identity(size, device="meta")
    inner = B
    while isinstance(inner, ConjugateMatrix):
        inner = inner.inner
    if type(inner)._pull is ng.Element._pull:
        return B.shape[-1]
    eye = ng.Hessian(lambda V: V)
    structure.identity(size).pull(eye, diagonal=torch.ones(B.shape[-1]))
    return eye.products


def draw(folder: Path, p: int = 16) -> Path:
    """One PNG with the pattern of every structure's B at p = 16."""
    plt = pyplot()
    from matplotlib.colors import to_rgb
    from matplotlib.patches import Patch

    columns = 5
    lines = -(-len(EXAMPLES) // columns)
    figure, axes = plt.subplots(lines, columns, figsize=(2.05 * columns, 2.3 * lines))
    for axis, (name, make, size) in zip(axes.flat, EXAMPLES, strict=False):
        B = make(p).identity(size(p), dtype=torch.float64)
        values = numbered(B)
        present = values > 0
        picture = np.ones((p, p, 3))
        shade = 1 - 0.55 * (values - 1) / max(values.max() - 1, 1) if shares(B) else np.ones((p, p))
        for mask, color in [(present & ~present.T, PALE), (present & present.T, ORANGE), (np.eye(p) > 0, BLUE)]:
            tint = np.array(to_rgb(color))
            picture[mask] = 1 - (1 - tint) * shade[mask][:, None]
        axis.imshow(picture, interpolation="nearest")
        axis.set_xticks(np.arange(-0.5, p), [])
        axis.set_yticks(np.arange(-0.5, p), [])
        axis.tick_params(length=0)
        axis.grid(color="white", linewidth=0.6)
        for spine in axis.spines.values():
            spine.set(visible=True, color="#b0b0b0", linewidth=0.8)
        axis.set_title(name, fontsize=7.5, pad=4)
        axis.set_xlabel(f"{sum(t.numel() for t in B.tensors())} of {p * p} numbers", fontsize=7, labelpad=3)
    for axis in axes.flat[len(EXAMPLES) :]:
        axis.axis("off")
    legend = [Patch(color=BLUE, label="diagonal"), Patch(color=ORANGE, label="both $B_{ij}$ and $B_{ji}$")]
    legend.append(Patch(color=PALE, label="one side only"))
    legend.append(Patch(color="none", label="shades: shared numbers"))
    axes.flat[-1].legend(handles=legend, loc="center", fontsize=7.5)
    figure.tight_layout(h_pad=1.2)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "structures.png"
    figure.savefig(path)
    plt.close(figure)
    return path


def numbered(B: ng.Element) -> np.ndarray:
    """The dense matrix with each stored number replaced by its place, from 1 on."""
    count = 0

    def number(t: Tensor) -> Tensor:
        nonlocal count
        count += t.numel()
        return torch.arange(count - t.numel() + 1, count + 1, dtype=t.dtype).reshape(t.shape)

    return B.map(number).dense().numpy()


def shares(B: ng.Element) -> bool:
    """Whether one stored number stands in several places of the matrix."""
    return int((numbered(B) > 0).sum()) > sum(t.numel() for t in B.tensors())
