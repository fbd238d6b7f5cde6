"""Few products that reveal a sparse symmetric matrix: coordinates of one colour share a product.

Two coordinates may share a colour if no row meets both (Curtis, Powell and Reid 1974). A few coordinates that meet
almost every row would need a colour for every row; they get products of their own and are then left out, their rows
being read off their columns by symmetry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array


@dataclass(frozen=True)
class Coloring:
    color: np.ndarray  # (p,)
    hub: np.ndarray  # (p,) bool: alone in its colour

    @property
    def colors(self) -> int:
        return int(self.color.max(initial=-1)) + 1

    def read(self, i: np.ndarray, j: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Where H_ij stands among the products H [seed_1 .. seed_c]: (row, product)."""
        swap = self.hub[i] & ~self.hub[j]
        return np.where(swap, j, i), self.color[np.where(swap, i, j)]


def color(pattern: csr_array) -> Coloring:
    """A colouring of a symmetric pattern, the diagonal counted in."""
    p = pattern.shape[0]
    degree = np.diff(pattern.indptr)
    by_degree = np.argsort(-degree, kind="stable")
    hubs = by_degree[: int(np.argmin(np.append(degree[by_degree], 0) + np.arange(p + 1)))]
    hub = np.zeros(p, bool)
    hub[hubs] = True
    starts, indices, is_hub = pattern.indptr.tolist(), pattern.indices.tolist(), hub.tolist()
    rows = [[i for i in indices[starts[j] : starts[j + 1]] if not is_hub[i]] for j in range(p)]
    colors = [-1] * p
    for number, j in enumerate(hubs.tolist()):
        colors[j] = number
    for j in range(p):
        if is_hub[j]:
            continue
        taken = {colors[j]}
        for i in {*rows[j], j}:
            taken.update(colors[k] for k in rows[i])
        free = len(hubs)
        while free in taken:
            free += 1
        colors[j] = free
    return Coloring(np.array(colors, dtype=np.int64), hub)
