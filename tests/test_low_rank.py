"""The read-outs of the paper's section 2.2."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import natgrad as ng
from tests import oracle
from tests.structures import Case

batches = st.sampled_from([(), (3,), (2, 2)])


def element(structure, p, batch=(), seed=0):
    return oracle.element(Case(structure, p, p, torch.zeros(0, p, p), 0), batch, seed=seed)


def diagonal_plus_low_rank(d, U):
    return torch.diag_embed(d) + U @ U.mT


@pytest.mark.parametrize("make", [lambda k: ng.Lower(k), lambda k: ng.Upper(0, k)])
@given(p=st.integers(0, 8), data=st.data(), batch=batches)
def test_precision(make, p, data, batch):
    k = data.draw(st.integers(0, p))
    B = element(make(k), p, batch)
    d, U = ng.precision_as_low_rank(B)
    assert U.shape == (*batch, p, k)
    assert bool((d >= 0).all())
    oracle.close(diagonal_plus_low_rank(d, U), B.dense() @ B.dense().mT)


@pytest.mark.parametrize("make", [lambda k: ng.Upper(k), lambda k: ng.Lower(0, k)])
@given(p=st.integers(0, 8), data=st.data(), batch=batches)
def test_covariance(make, p, data, batch):
    k = data.draw(st.integers(0, p))
    B = element(make(k), p, batch)
    d, U = ng.covariance_as_low_rank(B)
    assert U.shape == (*batch, p, k)
    assert bool((d >= 0).all())
    oracle.close(diagonal_plus_low_rank(d, U), torch.linalg.inv(B.dense() @ B.dense().mT))


def test_covariance_as_printed():
    """U_k = [-B_A^-T; B_D^-1 B_B^T B_A^-T] and diag(0, B_D^-2)."""
    k, p = 2, 7
    B = element(ng.Upper(k), p, seed=4)
    A, C, D = B.dense()[:k, :k], B.dense()[:k, k:], B.dense()[k:, k:]
    U_k = torch.cat([-torch.linalg.inv(A).mT, torch.linalg.inv(D) @ C.mT @ torch.linalg.inv(A).mT])
    d, U = ng.covariance_as_low_rank(B)
    oracle.close(-U.flip(-1), U_k)
    oracle.close(d, torch.cat([torch.zeros(k), D.diagonal() ** -2]))


def test_with_coordinates_permuted():
    B = element(ng.Conjugate(ng.Lower(2), [3, 1, 0, 4, 2]), 5)
    oracle.close(diagonal_plus_low_rank(*ng.precision_as_low_rank(B)), B.dense() @ B.dense().mT)


def test_the_same_group_by_other_names():
    """Dense is Lower(p), Diagonal is Lower(0), BlockDiagonal(1) is Diagonal, Upper(k) is Lower reversed."""
    H = torch.randn(6, 6, dtype=torch.float64, generator=oracle.generator(0))
    H = H + H.mT
    for a, b in [
        (ng.Dense(), ng.Lower(6)),
        (ng.Lower(2, 4), ng.Conjugate(ng.Upper(4, 2), range(5, -1, -1))),
        (ng.Dense(), ng.BlockDiagonal(6)),
        (ng.Diagonal(), ng.Lower(0)),
        (ng.Diagonal(), ng.BlockDiagonal(1)),
        (ng.Upper(2, 1), ng.Conjugate(ng.Lower(1, 2), range(5, -1, -1))),
    ]:
        M, N = (s.identity(6, dtype=torch.float64).pull(lambda V: H @ V) for s in (a, b))
        oracle.close(M.dense(), N.dense())
        oracle.close(M.h().dense(), N.h().dense())
