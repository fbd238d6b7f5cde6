"""Sparsity patterns and transitive relations as users give them, checked, and as index arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csr_array, eye_array, issparse
from torch import Tensor

from natgrad.groups import check


def _square(matrix: Any, name: str) -> csr_array:
    """The stored entries of a sparse matrix, or the nonzeros of a dense array, and the diagonal, as booleans."""
    if not isinstance(matrix, Tensor) and not issparse(matrix):
        matrix = check.array(matrix, name)
    if matrix.is_complex() if isinstance(matrix, Tensor) else matrix.dtype.kind not in "biuf":
        raise ValueError(f"{name} must be a sparse matrix or a dense array of real numbers, got {matrix.dtype}")
    if len(matrix.shape) != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"{name} must be square, p x p, got shape {check.shape(matrix.shape)}")
    if isinstance(matrix, Tensor):
        entries = matrix.detach().cpu().to_sparse_coo().coalesce()
        matrix = csr_array((entries.values().double().numpy(), entries.indices().numpy()), shape=tuple(matrix.shape))
    pairs = csr_array(matrix).tocoo()
    if not np.isfinite(pairs.data).all():
        raise ValueError(f"{name} holds NaN or infinity; pass ones where its entries are")
    full = csr_array((np.ones(pairs.nnz, bool), (pairs.row, pairs.col)), shape=matrix.shape)
    full = csr_array(full + eye_array(matrix.shape[0], dtype=bool, format="csr"))
    full.sort_indices()
    return full


def sparsity(matrix: object, name: str) -> csr_array:
    """A symmetric pattern."""
    pattern = _square(matrix, name)
    lonely = (pattern > pattern.T).tocoo()
    if lonely.nnz:
        i, j = lonely.row[0], lonely.col[0]
        raise ValueError(f"{name} must be symmetric, but has ({i}, {j}) and not ({j}, {i}); pass A + A.T")
    return pattern


def above_sets(parent: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(starts, rows) of the up-sets in a tree whose places are numbered from the root."""
    p = len(parent)
    depth = np.zeros(p + 1, dtype=np.int64)  # the last entry serves parent -1
    for j in range(p):
        depth[j] = depth[parent[j]] + 1
    starts = np.concatenate([[0], np.cumsum(depth[:p])])
    rows = np.empty(starts[-1], dtype=np.int64)
    for j, up in enumerate(parent.tolist()):
        begin, end = starts[j], starts[j + 1]
        if up >= 0:
            rows[begin : end - 1] = rows[starts[up] : starts[up + 1]]
        rows[end - 1] = j
    return starts, rows


def relation_sets(relation: object) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(order, starts, rows) of the up-sets of a transitive relation, what is above placed first."""
    R = _square(relation, "relation")
    both = (R.multiply(R.T) - eye_array(R.shape[0], dtype=bool)).tocoo() if R.shape[0] else R.tocoo()
    both.eliminate_zeros()
    if both.nnz:
        i, j = both.row[0], both.col[0]
        raise ValueError(
            f"relation has both ({i}, {j}) and ({j}, {i}); leave out one, or use Lower, Upper or BlockDiagonal, "
            "whose blocks are dense both ways"
        )
    composed = csr_array(R.astype(np.int64) @ R.astype(np.int64) > 0)
    missing = (composed > R).tocoo()
    if missing.nnz:
        i, j = int(missing.row[0]), int(missing.col[0])
        between = set(R[[i]].indices.tolist()) & set(R[:, [j]].tocsc().indices.tolist())
        raise ValueError(
            f"relation is not transitive: it has ({i}, {min(between)}) and ({min(between)}, {j}) but not ({i}, {j}); "
            "add that entry, or take SparseCholesky(hessian), which closes its pattern by itself"
        )
    columns = R.tocsc()
    order = np.argsort(np.diff(columns.indptr), kind="stable")
    place = np.argsort(order)
    rows = [np.sort(place[columns.indices[columns.indptr[j] : columns.indptr[j + 1]]]) for j in order]
    starts = np.concatenate([[0], np.cumsum([len(up) for up in rows], dtype=np.int64)]).astype(np.int64)
    return order, starts, np.concatenate([*rows, np.empty(0, np.int64)])


def find(i: np.ndarray, j: np.ndarray, starts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Where the entries at places (i, j), i above j, stand among the stored ones; -1 if they do not."""
    p = len(starts) - 1
    if not len(rows):
        return np.full(len(i), -1)
    keys = np.repeat(np.arange(p), np.diff(starts)) * p + rows
    wanted = j * p + i
    found = np.searchsorted(keys, wanted).clip(max=len(keys) - 1)
    return np.where(keys[found] == wanted, found, -1)


def positions(pattern: csr_array, order: np.ndarray, starts: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Where the pairs of a symmetric pattern, each once, stand among the stored entries."""
    place = np.argsort(order)
    pairs = pattern.tocoo()
    i, j = place[pairs.row], place[pairs.col]
    i, j = i[i <= j], j[i <= j]
    found = find(i, j, starts, rows)
    outside = np.flatnonzero(found < 0)
    if len(outside):
        i, j = order[i[outside[0]]], order[j[outside[0]]]
        raise ValueError(
            f"hessian has an entry at ({i}, {j}), which relation holds in neither order; "
            "widen the relation, or leave hessian out for exact products with any Hessian"
        )
    return np.sort(found)
