"""From the graph of a Hessian to an elimination tree of small depth.

"i is an ancestor of j" is transitive, so the matrices with B_ij != 0 only there form a group; and it holds the exact
Cholesky factor of every matrix with the graph. What counts is the sum of the depths: nested dissection keeps it small.
"""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

RELAX = 0.1  # a subtree becomes a path, one dense block instead of many small ones, if it grows by no more than this


def nested_dissection(pattern: csr_array) -> np.ndarray:
    """An elimination order, first to last, from recursive vertex separators (METIS)."""
    import pymetis  # a compiled library that only this needs

    p = pattern.shape[0]
    edges = pattern.tocoo()
    off = edges.row != edges.col
    if not off.any():
        return np.arange(p)
    graph = csr_array((np.ones(off.sum(), bool), (edges.row[off], edges.col[off])), shape=(p, p))
    adjacency = pymetis.CSRAdjacency(adj_starts=graph.indptr, adjacent=graph.indices)
    order, _ = pymetis.nested_dissection(adjacency=adjacency)
    return np.asarray(order)


def elimination_tree(pattern: csr_array, order: np.ndarray) -> np.ndarray:
    """parent[j] > j in elimination order, or -1 for a root (Liu 1986, with path compression)."""
    moved = pattern[order][:, order].tocsr()
    starts, indices = moved.indptr.tolist(), moved.indices.tolist()
    p = len(order)
    parent, ancestor = [-1] * p, [-1] * p
    for i in range(p):
        for j in indices[starts[i] : starts[i + 1]]:
            while j < i:
                above, ancestor[j] = ancestor[j], i
                if above == -1:
                    parent[j] = i
                if above in (-1, i):
                    break
                j = above
    return np.array(parent, dtype=np.int64)


def straighten(parent: np.ndarray, relax: float = RELAX) -> np.ndarray:
    """The same tree with small subtrees laid out as paths, in the numbering of `parent`."""
    p = len(parent)
    parents = parent.tolist()
    depth = [0] * p
    for j in range(p - 1, -1, -1):
        if parents[j] >= 0:
            depth[j] = depth[parents[j]] + 1
    size = [1] * p  # of the subtree
    below = [0] * p  # sum of depths in it, counted from its root
    straight = [True] * p  # laid out as a path
    for j in range(p):
        n, as_path = size[j], size[j] * (size[j] - 1) // 2
        above = n * (depth[j] + 1)
        straight[j] = straight[j] and above + as_path <= (1 + relax) * (above + below[j])
        if straight[j]:
            below[j] = as_path
        if (up := parents[j]) >= 0:
            size[up] += n
            below[up] += below[j] + n
            straight[up] = straight[up] and straight[j]
    # a straight subtree, all its nodes in elimination order: each hangs from the next one, its root ends the path
    top = list(range(p))
    for j in range(p - 1, -1, -1):
        if parents[j] >= 0 and straight[parents[j]]:
            top[j] = top[parents[j]]
    last: dict[int, int] = {}
    for j in range(p):
        if straight[j] and top[j] in last:
            parents[last[top[j]]] = j
        last[top[j]] = j
    return np.array(parents, dtype=np.int64)


def from_the_root(parent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Depth first from the roots: (node at each place, parent's place or -1); a path takes consecutive places."""
    p = len(parent)
    children: list[list[int]] = [[] for _ in range(p)]
    stack = []
    for j, up in enumerate(parent.tolist()):
        (children[up] if up >= 0 else stack).append(j)
    nodes = []
    while stack:
        j = stack.pop()
        nodes.append(j)
        stack.extend(children[j])
    node = np.array(nodes, dtype=np.int64)
    place = np.full(p + 1, -1)  # the last entry serves parent -1
    place[node] = np.arange(p)
    return node, place[parent[node]]
