"""Sparse Cholesky: orderings, elimination trees, colourings and the group that they make."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import csr_array, eye_array

import natgrad as ng
from natgrad.experiments.structures import chain, grid
from natgrad.groups.coloring import color
from natgrad.groups.ordering import elimination_tree, from_the_root, nested_dissection, straighten
from natgrad.groups.patterns import above_sets
from tests import oracle


@st.composite
def graphs(draw):
    p, seed = draw(st.integers(0, 14)), draw(st.integers(0, 99))
    dense = np.random.default_rng(seed).random((p, p)) < draw(st.sampled_from([0.0, 0.1, 0.3, 1.0]))
    hubs = draw(st.integers(0, min(p, 2)))  # coordinates that meet all others
    dense[:hubs] = True
    return csr_array(dense | dense.T | np.eye(p, dtype=bool))


def fill(pattern: csr_array, order) -> np.ndarray:
    """The pattern of the Cholesky factor, by eliminating one vertex after another."""
    A = pattern.toarray()[np.ix_(order, order)]
    for j in range(len(order)):
        later = np.flatnonzero(A[j + 1 :, j]) + j + 1
        A[np.ix_(later, later)] = True
    L = np.zeros_like(A)
    L[np.ix_(order, order)] = np.tril(A)
    return L


def support(structure: ng.SparseCholesky, p: int) -> np.ndarray:
    B = structure.identity(p)
    return B.map(torch.ones_like).dense().bool().numpy()


@given(pattern=graphs(), seed=st.integers(0, 9))
def test_elimination_tree_against_elimination_by_hand(pattern, seed):
    p = pattern.shape[0]
    order = np.random.default_rng(seed).permutation(p)
    L = fill(pattern, order)[np.ix_(order, order)]
    below = [np.flatnonzero(L[j + 1 :, j]) + j + 1 for j in range(p)]
    expected = [rows[0] if len(rows) else -1 for rows in below]
    assert elimination_tree(pattern, order).tolist() == expected


@given(pattern=graphs(), seed=st.integers(0, 9))
def test_pattern_holds_the_cholesky_factor_and_is_transitive(pattern, seed):
    p = pattern.shape[0]
    order = np.random.default_rng(seed).permutation(p)
    held = support(ng.SparseCholesky(pattern, order), p)
    assert not (fill(pattern, order) & ~held).any()
    assert not ((held.astype(int) @ held > 0) & ~held).any()
    assert not (held & held.T & ~np.eye(p, dtype=bool)).any()


@given(pattern=graphs(), relax=st.sampled_from([0.0, 0.1, 1.0]))
def test_straightening_keeps_ancestors_and_grows_as_little_as_promised(pattern, relax):
    p = pattern.shape[0]
    parent = elimination_tree(pattern, np.arange(p))
    straight = straighten(parent, relax)
    before, after = (ancestors(tree) for tree in (parent, straight))
    assert all(old <= new for old, new in zip(before, after, strict=True))
    assert sum(map(len, after)) + p <= (1 + relax) * (sum(map(len, before)) + p) + 1e-9
    node, moved = from_the_root(straight)
    assert sorted(node.tolist()) == list(range(p))
    assert all(up < j for j, up in enumerate(moved.tolist()))
    starts, rows = above_sets(moved)
    for place, j in enumerate(node.tolist()):
        up = rows[starts[place] : starts[place + 1]]
        assert set(node[up].tolist()) == after[j] | {j}
        assert (np.diff(up) > 0).all()


def ancestors(parent: np.ndarray) -> list[set[int]]:
    found: list[set[int]] = [set() for _ in parent]
    for j in range(len(parent) - 1, -1, -1):
        if parent[j] >= 0:
            found[j] = found[parent[j]] | {int(parent[j])}
    return found


@given(pattern=graphs(), seed=st.integers(0, 9))
def test_coloring_reads_every_entry_exactly(pattern, seed):
    p = pattern.shape[0]
    H = np.random.default_rng(seed).standard_normal((p, p)) * pattern.toarray()
    H = H + H.T
    coloring = color(pattern)
    HV = H @ (np.arange(coloring.colors) == coloring.color[:, None])
    i, j = pattern.toarray().nonzero()
    row, product = coloring.read(i, j)
    np.testing.assert_allclose(HV[row, product], H[i, j], atol=1e-12)


def arrow(p: int) -> np.ndarray:
    pattern = np.eye(p)
    pattern[0] = pattern[:, 0] = 1
    return pattern


@pytest.mark.parametrize(
    ("pattern", "colors"), [(eye_array(9), 1), (chain(50), 3), (arrow(30), 2), (np.ones((6, 6)), 6), (eye_array(0), 0)]
)
def test_number_of_colors(pattern, colors):
    assert color(csr_array(pattern)).colors == colors


def test_a_chain_takes_about_p_log_p_numbers_and_three_products():
    for p in (200, 2000):
        structure = ng.SparseCholesky(chain(p))
        B = structure.identity(p)
        assert sum(t.numel() for t in B.tensors()) < 1.2 * p * np.log2(p)
        H = ng.Hessian(lambda V: 2 * V)
        B.pull(H)
        assert H.products == 3


def test_dissection_beats_the_natural_order():
    pattern = grid(400)
    dissected = ng.SparseCholesky(pattern)
    natural = ng.SparseCholesky(pattern, order=np.arange(400))
    assert len(dissected.rows.array) < 0.5 * len(natural.rows.array)
    assert sorted(nested_dissection(pattern)) == list(range(400))


def test_iterating_reaches_a_sparse_hessian_exactly():
    """S = H for a Hessian with the pattern: what no diagonal or low-rank structure can do."""
    p = 60
    H = torch.tensor((chain(p) + 3 * eye_array(p)).toarray())
    B = ng.SparseCholesky(chain(p)).identity(p, dtype=torch.float64)
    for _ in range(40):
        B = B.retract(0.5 * B.pull(lambda V: H @ V).shift(-1.0))
    x = oracle.generator(0)
    x = torch.randn(p, dtype=torch.float64, generator=x)
    oracle.close(B.precision(x), H @ x)
    oracle.close(B.covariance(x), torch.linalg.solve(H, x))


@given(pattern=graphs())
def test_gathered_matrices_are_whole(pattern):
    """Gathered from the identity they are identities, padding included: nothing singular is ever solved with."""
    p = pattern.shape[0]
    one = ng.SparseCholesky(pattern).identity(p)
    for chain_table, own_table in one.upsets.tables():
        gathered = one._gatherable()[chain_table.long()]
        assert torch.equal(gathered, torch.eye(chain_table.shape[-1]).expand_as(gathered))
        columns = one._gatherable()[own_table.long()]
        assert bool((columns.sum((-2, -1)) >= 1).all())


def test_large_tables_made_on_the_fly_agree_with_kept_ones(monkeypatch):
    from natgrad.groups import sparse, upsets

    pattern = grid(256)
    H = torch.tensor((pattern + 4 * eye_array(256)).toarray())

    def run():
        sparse._made.clear()
        B = ng.SparseCholesky(pattern).identity(256, dtype=torch.float64)
        for _ in range(3):
            B = B.retract(0.5 * B.pull(lambda V: H @ V).shift(-1.0))
        return B.values, B.upsets

    kept, tables = run()
    assert tables._kept is not None
    monkeypatch.setattr(upsets, "KEEP", 0)
    monkeypatch.setattr(upsets, "CHUNK", 5000)
    made, tables = run()
    assert tables._kept is None
    assert len(list(tables.tables())) > len(tables._buckets)
    oracle.close(made, kept)
    sparse._made.clear()


def test_tables_are_shared_and_not_pickled():
    p = 5000
    structure = ng.SparseCholesky(chain(p))
    B = structure.identity(p)
    B.solve(torch.ones(p))
    fields = len(pickle.dumps(structure)) + sum(len(pickle.dumps(t)) for t in B.tensors())
    assert len(pickle.dumps(B)) < 1.1 * fields
    assert copy.deepcopy(B).tables is B.tables
    assert structure.identity(p).tables is B.tables


def test_applying_to_many_vectors_takes_no_more_than_the_result():
    """500 vectors at once, with half a million numbers in B: a GB if not cut."""
    p = 1000
    B = ng.SparseCholesky.from_relation(np.tri(p)).identity(p)
    peak = max_new_memory(lambda: B.apply(torch.ones(p, 500)))
    assert peak < 300


def max_new_memory(operation) -> float:
    """MiB that the process grows by at the most."""
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    operation()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def test_patterns_come_in_any_form():
    sparse = chain(6)
    dense = sparse.toarray()
    forms = [sparse, sparse.tocoo(), dense, dense.astype(bool), dense.astype(int), torch.tensor(dense), dense.tolist()]
    forms += [torch.tensor(dense).to_sparse_coo(), torch.tensor(dense).bfloat16()]
    structures = [ng.SparseCholesky(form) for form in forms]
    assert all(structure == structures[0] for structure in structures)
    assert ng.SparseCholesky(sparse) != ng.SparseCholesky(sparse, order=np.arange(6))


def test_a_relation_need_not_be_a_tree():
    """0 and 1 both above 2, neither above the other: a chain of ancestors cannot say that."""
    relation = np.eye(3)
    relation[0, 2] = relation[1, 2] = 1
    structure = ng.SparseCholesky.from_relation(relation)
    assert (support(structure, 3) == relation.astype(bool)).all()


def test_the_pattern_is_trusted_and_a_bare_relation_takes_any_hessian():
    H = torch.tensor(chain(4).toarray() + 3 * np.eye(4))
    H[0, 3] = H[3, 0] = 1.0  # not in the chain
    trusting = ng.SparseCholesky(chain(4))
    i, j = support(trusting, 4).nonzero()
    exact = ng.SparseCholesky.from_relation(csr_array((np.ones(len(i)), (i, j)), shape=(4, 4)))
    X = [s.identity(4, dtype=torch.float64).pull(lambda V: H @ V).dense() for s in (trusting, exact)]
    want = torch.where(torch.tensor(support(trusting, 4)), H + torch.triu(H, 1) + torch.tril(H, -1), 0.0)
    assert torch.allclose(X[1], want)
    assert not torch.allclose(X[0], want)
