"""Bad input: a ValueError that says what was expected, what came and what to do, and nothing changed."""

from __future__ import annotations

import dataclasses
import re

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array, csr_matrix

import natgrad as ng

F64 = torch.float64


def one(structure=None, p: int = 4, **options) -> ng.Element:
    return (structure or ng.Lower(1)).identity(p, dtype=F64, **options)


DESCRIPTIONS = {
    "k1 must be at least 0, got -1": lambda: ng.Lower(-1),
    "k2 must be at least 0, got -2": lambda: ng.Upper(1, -2),
    "k1 must be a whole number, got 1.5": lambda: ng.Lower(1.5),
    "k1 must be a whole number, got True": lambda: ng.Lower(True),
    "k1 + k2 = 5 and p = 4": lambda: ng.Lower(2, 3).identity(4),
    "k1 + k2 = 6 and p = 4": lambda: ng.Upper(3, 3).identity(4),
    "p must be at least 0, got -3": lambda: ng.Dense().identity(-3),
    "p must be a whole number, got 2.0": lambda: ng.Diagonal().identity(2.0),
    "size must be at least 1, got 0": lambda: ng.BlockDiagonal(0),
    "that 3 divides, got p=4": lambda: ng.BlockDiagonal(3).identity(4),
    "got dtype=torch.int64": lambda: ng.Dense().identity(3, dtype=torch.int64),
    "got dtype=torch.float16": lambda: ng.Dense().identity(3, dtype=torch.float16),
    "got 'float32'; use torch.float32 or torch.float64": lambda: ng.Dense().identity(3, dtype="float32"),
    "got <class 'numpy.float32'>; use torch.float32": lambda: ng.Dense().identity(3, dtype=np.float32),
    "one that this torch has, as 'cpu'": lambda: ng.Dense().identity(3, device="bogus"),
    "torch.cuda.is_available(), got 'cuda:99'": lambda: ng.Dense().identity(3, device="cuda:99"),
    "got 'mps:99'": lambda: ng.Lower(1).identity(3, device="mps:99"),
    "got 'hpu:99'": lambda: ng.Lower(1).identity(3, device="hpu:99"),
    "is_available(), got 1.5": lambda: ng.Lower(1).identity(3, device=1.5),
    "k1 must be a whole number, got Tensor": lambda: ng.Lower(torch.eye(30)),
    "got 3; write batch=(3,)": lambda: ng.Dense().identity(3, batch=3),
    "a batch size must be at least 0, got -1": lambda: ng.Dense().identity(3, batch=(-1,)),
    "index 4 is out of range": lambda: ng.Conjugate(ng.Lower(1), [0, 1, 4, 2]),
    "index -1 is out of range": lambda: ng.Conjugate(ng.Lower(1), [0, -1]),
    "2 occurs 2 times": lambda: ng.Conjugate(ng.Lower(1), [0, 2, 2]),
    "by is not orthogonal: an entry of Q^T Q - I is 3": lambda: ng.Conjugate(ng.Lower(1), 2 * np.eye(3)),
    "by is not orthogonal: an entry of Q^T Q - I is nan": lambda: ng.Conjugate(ng.Lower(1), np.full((2, 2), np.nan)),
    "got float64 of shape (2, 3)": lambda: ng.Conjugate(ng.Lower(1), np.ones((2, 3))),
    "got float64 of shape (3,)": lambda: ng.Conjugate(ng.Lower(1), np.arange(3.0)),
    "by must be an array, with rows of one length, got [[1, 0], [0]]": lambda: ng.Conjugate(ng.Lower(1), [[1, 0], [0]]),
    "a permutation matrix is given by its permutation, by.argmax(0)": lambda: ng.Conjugate(
        ng.Lower(1), np.eye(3, dtype=int)
    ),
    "by must be dense, got csr_array: by.toarray()": lambda: ng.Conjugate(ng.Lower(1), csr_array(np.eye(3))),
    "by must be dense, got Tensor": lambda: ng.Conjugate(ng.Lower(1), torch.eye(3).to_sparse()),
    "expected a structure first": lambda: ng.Conjugate(np.arange(3), ng.Lower(1)),
    "is of size 3, got p=4": lambda: ng.Conjugate(ng.Lower(1), [2, 1, 0]).identity(4),
    "conjugate its sides": lambda: ng.Conjugate(ng.Kronecker(ng.Dense(), ng.Dense()), [1, 0]),
    "expected two structures": lambda: ng.Kronecker(ng.Dense(), 3),
    "needs both sizes, as in identity((m, n)) for p = m n, got 6": lambda: ng.Kronecker(
        ng.Dense(), ng.Dense()
    ).identity(6),
    "hessian must be square, p x p, got shape (2, 3)": lambda: ng.SparseCholesky(np.ones((2, 3))),
    "hessian must be square, p x p, got shape (3,)": lambda: ng.SparseCholesky(np.ones(3)),
    "has (0, 2) and not (2, 0)": lambda: ng.SparseCholesky(csr_array(([1.0], ([0], [2])), shape=(3, 3))),
    "must be a sparse matrix or a dense array of real numbers": lambda: ng.SparseCholesky([["a", "b"], ["c", "d"]]),
    "hessian holds NaN or infinity": lambda: ng.SparseCholesky(np.full((3, 3), np.nan)),
    "hessian holds NaN or infinity; pass ones": lambda: ng.SparseCholesky(torch.full((3, 3), torch.inf)),
    "hessian holds NaN": lambda: ng.SparseCholesky(csr_array(np.diag([1.0, np.nan]))),
    "hessian must be an array, with rows of one length": lambda: ng.SparseCholesky([[1, 0], [0]]),
    "order must be an array": lambda: ng.SparseCholesky(np.eye(3), order=[0, [1, 2]]),
    "relation holds NaN": lambda: ng.SparseCholesky.from_relation(np.diag([1.0, np.nan])),
    "real numbers, got torch.complex64": lambda: ng.SparseCholesky(torch.eye(3) * 1j),
    "order is no permutation": lambda: ng.SparseCholesky(np.eye(3), order=[0, 0, 1]),
    "one entry for each of 3 rows, got 2": lambda: ng.SparseCholesky(np.eye(3), order=[0, 1]),
    "was made for p=3, got p=4": lambda: ng.SparseCholesky(np.eye(3)).identity(4),
    "it has (0, 1) and (1, 2) but not (0, 2)": lambda: ng.SparseCholesky.from_relation(np.eye(3) + np.eye(3, k=1)),
    "has both (0, 1) and (1, 0)": lambda: ng.SparseCholesky.from_relation(np.ones((2, 2))),
    "entry at (0, 1), which relation holds in neither": lambda: ng.SparseCholesky.from_relation(
        np.eye(2), hessian=np.ones((2, 2))
    ),
    "hessian is 3 x 3, but relation has 2 rows": lambda: ng.SparseCholesky.from_relation(np.eye(2), np.eye(3)),
}


@pytest.mark.parametrize("message", DESCRIPTIONS)
def test_descriptions(message):
    with pytest.raises(ValueError, match=re.escape(message)):
        DESCRIPTIONS[message]()


x64 = torch.ones(4, dtype=F64)
OPERATIONS = {
    "expected a torch tensor, got list": lambda B: B.apply([1.0] * 4),
    "expected torch.float64 on cpu as its element is, got torch.float32 on cpu": lambda B: B.apply(x64.float()),
    "got torch.int64 on cpu": lambda B: B.solve(x64.long()),
    "got torch.float64 on meta": lambda B: B.apply(x64.to("meta")),
    "expected a vector (4,) or a block of vectors (4, r), got (5,)": lambda B: B.apply(torch.ones(5, dtype=F64)),
    "got (2, 4)": lambda B: B.precision(torch.ones(2, 4, dtype=F64)),
    "got ()": lambda B: B.covariance(torch.tensor(1.0, dtype=F64)),
    "but U is (4, 1) and V is (4, 2)": lambda B: B.project(x64, torch.ones(4, 2, dtype=F64)),
    "needs equal shapes, got (4, 4) and (5, 5)": lambda B: B @ one(p=5),
    "needs equal structures": lambda B: B @ one(ng.Lower(2)),
    "needs equal dtypes": lambda B: B @ ng.Lower(1).identity(4, dtype=torch.float32),
    "needs equal devices": lambda B: B @ one(device="meta"),
    "(3, 4, 4) and (4, 4)": lambda B: one(batch=(3,)) + B,
    "must share the element's structure": lambda B: B.retract(one(ng.Lower(2))),
    "the element's shape, expected (4, 4), got (5, 5)": lambda B: B.retract(one(p=5)),
    "a tangent, as project or pull return it, got Tensor": lambda B: B.retract(torch.eye(4)),
    "a tangent, as project or pull return it, got float": lambda B: B.retract(0.1),
    "a divisor must be a finite number other than 0, got 0": lambda B: B / 0,
    "a divisor must be a finite number other than 0": lambda B: B / np.float64(0),
    "a scalar must be a finite number, got nan": lambda B: float("nan") * B,
    "a scalar must be a finite number, got inf": lambda B: B * float("inf"),
    "of shape (), got torch.float32 of shape (2,)": lambda B: B * torch.ones(2),
    "diagonal must hold diag(H), (4,), got (4, 4)": lambda B: B.pull(lambda V: V, torch.eye(4, dtype=F64)),
    "diagonal holds NaN": lambda B: B.pull(lambda V: V, x64 * float("nan")),
    "hvp returned NaN or infinity": lambda B: B.pull(lambda V: V / 0, x64),
    "hvp must return a torch tensor, but returned ndarray": lambda B: B.pull(lambda V: V.numpy(), x64),
    "it was given (4, 1), torch.float64, cpu and returned (4,)": lambda B: B.pull(lambda V: V[:, 0], x64),
    "step, as g: expected a torch tensor, got list": lambda B: ng.paper_step(x64, B, [1.0], lambda V: V, beta=0.1),
    "Lower(k1=1, k2=0), step, as mu: expected torch.float64": lambda B: ng.paper_step(
        x64.float(), B, x64, lambda V: V, beta=0.1
    ),
    "step, as mu: expected a vector (4,)": lambda B: ng.paper_step(x64[:1], B, x64, lambda V: V, beta=0.1),
    "mu and g must be alike": lambda B: ng.paper_step(x64[:, None], B, x64, lambda V: V, beta=0.1),
    "mu holds NaN": lambda B: ng.paper_step(x64 * float("nan"), B, x64, lambda V: V, beta=0.1),
    "beta must be a finite number, got nan": lambda B: ng.paper_step(x64, B, x64, lambda V: V, beta=float("nan")),
    "gamma must be a finite number, got inf": lambda B: ng.paper_step(
        x64, B, x64, lambda V: V, beta=0.1, gamma=float("inf")
    ),
    "a Hessian is given by a function": lambda B: B.pull(torch.eye(4)),
    "the step overflowed": lambda B: ng.paper_step(x64, B, x64, lambda V: 1e200 * V, beta=1.0),
    "the gradient holds NaN": lambda B: ng.paper_step(x64, B, x64 * float("nan"), lambda V: V, beta=0.1),
}


@pytest.mark.parametrize("message", OPERATIONS)
def test_operations_refuse_and_leave_the_element_alone(message):
    B = one()
    before = [t.clone() for t in B.tensors()]
    with pytest.raises(ValueError, match=re.escape(message)):
        OPERATIONS[message](B)
    assert all(torch.equal(a, b) for a, b in zip(before, B.tensors(), strict=True))


def test_matrix_products_are_not_written_with_a_star():
    with pytest.raises(TypeError, match="written A @ B"):
        one() * one()  # pyright: ignore[reportOperatorIssue]


OPERANDS = {
    "takes two of the same group, got LowerMatrix of Lower(k1=1, k2=0) and Tensor; use B.apply(x)": lambda B: B @ x64,
    "and NoneType; use B.apply(x) for vectors": lambda B: B @ None,
    "and int; M.shift(c) is M + c I": lambda B: B + 1,
    "and Tensor; M.shift(-c) is M - c I": lambda B: B - torch.eye(4),
    "expected a number or a tensor of them, got str": lambda B: B * "a",
    "got NoneType; products of matrices": lambda B: B / None,
    "'numpy.ndarray' and 'KroneckerMatrix'": lambda _: np.eye(4) @ one(ng.Kronecker(ng.Dense(), ng.Dense()), (2, 2)),
    "BlockDiagonalMatrix of Dense()": lambda B: B @ one(ng.Dense()),
}


@pytest.mark.parametrize("message", OPERANDS)
def test_operators_say_in_one_line_what_they_take(message):
    with pytest.raises(TypeError, match=re.escape(message)) as caught:
        OPERANDS[message](one())
    assert len(str(caught.value)) < 160
    assert "\n" not in str(caught.value)


def test_the_permutation_of_a_permutation_matrix_is_as_the_messages_say():
    Q = np.eye(5)[[3, 1, 4, 0, 2]]
    M = torch.randn(5, 2, dtype=F64)
    by_matrix = one(ng.Conjugate(ng.Lower(2), Q), 5).project(M, M).dense()
    for by in (Q.argmax(0), np.ravel(csr_matrix(Q).argmax(0))):
        assert torch.allclose(one(ng.Conjugate(ng.Lower(2), by), 5).project(M, M).dense(), by_matrix)


def test_both_sizes_may_be_a_list():
    structure = ng.Kronecker(ng.Lower(1), ng.Dense())
    assert structure.identity([2, 3], batch=[4]).shape == structure.identity((2, 3), batch=(4,)).shape == (4, 6, 6)


def test_elements_of_different_groups_do_not_mix():
    with pytest.raises(TypeError, match="same group"):
        one() @ one(ng.Dense())
    with pytest.raises(TypeError, match="unsupported operand"):
        one(ng.Kronecker(ng.Dense(), ng.Dense()), (2, 2)) + 1


def test_low_rank_read_outs_name_the_groups_that_have_them():
    with pytest.raises(ValueError, match=re.escape("S is diagonal plus low rank for Lower(k) and Upper(0, k)")):
        ng.precision_as_low_rank(one(ng.Lower(1, 1)))
    with pytest.raises(ValueError, match=re.escape("S^-1 is diagonal plus low rank for Upper(k) and Lower(0, k)")):
        ng.covariance_as_low_rank(one(ng.Lower(1)))
    with pytest.raises(ValueError, match="expected an element of Lower or Upper"):
        ng.precision_as_low_rank(one(ng.Dense()))
    with pytest.raises(ValueError, match="expected an element of Lower or Upper"):
        ng.precision_as_low_rank(one(ng.Conjugate(ng.Lower(1), np.eye(4))))


def test_elements_and_descriptions_are_immutable():
    with pytest.raises(dataclasses.FrozenInstanceError):
        one().left = torch.ones(1)  # pyright: ignore[reportAttributeAccessIssue]
    with pytest.raises(ValueError, match="read-only"):
        ng.Conjugate(ng.Lower(1), [1, 0]).by.array[0] = 5


def test_a_finite_sum_that_overflows_is_no_reason_to_refuse():
    huge = torch.full((4,), 1e308, dtype=F64)
    assert torch.isfinite(one(ng.Diagonal()).pull(lambda V: V, huge).dense()).all()
