"""Few products that reveal a sparse symmetric matrix: coordinates of one colour share a product.

Two coordinates may share a colour if no row meets both (Curtis, Powell and Reid 1974). A few coordinates that meet
almost every row would need a colour for every row; they get products of their own and are then left out, their rows
being read off their columns by symmetry.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, diags_array


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
    """A colouring of a symmetric pattern that holds its diagonal."""
    p = pattern.shape[0]
    degree = np.diff(pattern.indptr)
    distance = np.abs(np.repeat(np.arange(p), degree) - pattern.indices)
    period = 2 * int(distance.max(initial=0)) + 1
    if period <= degree.max(initial=1):  # a full band: no colouring has fewer
        return Coloring(np.arange(p) % period, np.zeros(p, bool))
    by_degree = np.argsort(-degree, kind="stable")
    needed = np.append(degree[by_degree], 0) + np.arange(p + 1)  # colours, about, with so many hubs
    hubs = by_degree[: p - int(np.argmin(needed[::-1]))]
    hub = np.zeros(p, bool)
    hub[hubs] = True
    others = diags_array((~hub).astype(float))
    kept = others @ pattern.astype(float) @ others
    meets = csr_array(kept @ kept)  # the pairs that some row meets both of
    starts, indices = meets.indptr.tolist(), meets.indices.tolist()
    colors = [-1] * p
    for number, j in enumerate(hubs.tolist()):
        colors[j] = number
    for j in np.flatnonzero(~hub).tolist():
        taken = {colors[i] for i in indices[starts[j] : starts[j + 1]]}
        free = len(hubs)
        while free in taken:
            free += 1
        colors[j] = free
    return Coloring(np.array(colors, dtype=np.int64), hub)
