"""The laws of a structure, for every structure of the list, against the dense oracle."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from natgrad.groups import Algebra, Hessian, base, sparse
from natgrad.groups.base import symmetric
from tests import oracle
from tests.structures import STRUCTURES, Case

everything = pytest.mark.parametrize("name", STRUCTURES)
seeds = st.integers(0, 9)
batches = st.sampled_from([(), (1,), (3,), (2, 2)])
dtypes = st.sampled_from([torch.float64, torch.float32])


def drawn(name: str, data: st.DataObject) -> Case:
    return data.draw(STRUCTURES[name](), label="case")


@everything
@given(data=st.data(), batch=batches, dtype=dtypes)
def test_identity(name, data, batch, dtype):
    case = drawn(name, data)
    one = oracle.identity(case, batch, dtype)
    assert one.shape == (*batch, case.p, case.p)
    assert one.batch == batch
    assert one.dtype == dtype
    oracle.close(one.dense(), torch.eye(case.p).expand(*batch, case.p, case.p), dtype)


@everything
@given(data=st.data(), batch=batches, dtype=dtypes, seed=seeds)
def test_product_is_closed_and_associative(name, data, batch, dtype, seed):
    case = drawn(name, data)
    A, B, C = (oracle.element(case, batch, dtype, seed + i) for i in range(3))
    oracle.close((A @ B).dense(), A.dense() @ B.dense(), dtype)
    oracle.close(((A @ B) @ C).dense(), (A @ (B @ C)).dense(), dtype)
    if isinstance(A, Algebra):
        oracle.close((A @ B).dense(), oracle.coordinates(case, (A @ B).dense()), dtype)


@everything
@given(data=st.data(), batch=batches, dtype=dtypes, r=st.sampled_from([None, 0, 1, 3]), seed=seeds)
def test_apply_and_solve(name, data, batch, dtype, r, seed):
    case = drawn(name, data)
    B = oracle.element(case, batch, dtype, seed)
    D = B.dense()
    x = oracle.vectors(case, batch, r, dtype, seed)
    block = x.unsqueeze(-1) if r is None else x
    for transpose in (False, True):
        expected = (D.mT if transpose else D) @ block
        oracle.close(B.apply(x, transpose=transpose), expected.reshape(x.shape), dtype)
        solution = torch.linalg.solve(D.mT if transpose else D, block)
        oracle.close(B.solve(x, transpose=transpose), solution.reshape(x.shape), dtype)
    S = D @ D.mT
    oracle.close(B.precision(x), (S @ block).reshape(x.shape), dtype)
    oracle.close(B.covariance(x), torch.linalg.solve(S, block).reshape(x.shape), dtype)


@everything
@given(data=st.data(), batch=batches, dtype=dtypes, seed=seeds)
def test_logdet(name, data, batch, dtype, seed):
    case = drawn(name, data)
    B = oracle.element(case, batch, dtype, seed)
    assert B.logdet().shape == batch
    oracle.close(B.logdet(), torch.linalg.slogdet(B.dense().double())[1], dtype)


@everything
@given(data=st.data(), batch=batches, dtype=dtypes, r=st.sampled_from([0, 1, 4]), seed=seeds)
def test_projection_is_the_least_squares_one(name, data, batch, dtype, r, seed):
    case = drawn(name, data)
    U, V = (oracle.vectors(case, batch, r, dtype, seed + i) for i in range(2))
    X = symmetric(U.double() @ V.double().mT)
    M = oracle.identity(case, batch, dtype).project(U, V)
    oracle.close(M.dense(), oracle.projection(case, X), dtype)
    residual = symmetric(M.dense().double()) - X
    oracle.close(torch.einsum("...ij,dij->...d", residual, case.basis), torch.zeros(*batch, len(case.basis)), dtype)


@everything
@given(data=st.data(), batch=batches, dtype=dtypes, seed=seeds)
def test_projection_fixes_tangents(name, data, batch, dtype, seed):
    case = drawn(name, data)
    M = oracle.tangent(case, batch, dtype, seed)
    eye = torch.eye(case.p, dtype=dtype).expand(*batch, case.p, case.p)
    oracle.close(oracle.identity(case, batch, dtype).project(M.dense(), eye).dense(), M.dense(), dtype)


@everything
@given(data=st.data(), batch=batches, dtype=dtypes, known=st.booleans(), seed=seeds)
def test_pull_is_the_projection_of_the_whitened_hessian(name, data, batch, dtype, known, seed):
    case = drawn(name, data)
    B = oracle.element(case, batch, dtype, seed)
    H = oracle.hessian(case, batch, dtype, seed)
    counted = Hessian(lambda V: H @ V)
    M = B.pull(counted, H.diagonal(dim1=-2, dim2=-1) if known else None)
    X = torch.linalg.solve(B.dense(), torch.linalg.solve(B.dense(), H).mT)
    oracle.close(M.dense(), oracle.projection(case, X.double()), dtype)
    needed = case.products if known else case.p
    assert counted.products <= needed
    if case.hessian is None:
        assert counted.products == needed


@everything
@given(data=st.data(), batch=batches, dtype=dtypes, seed=seeds)
def test_tangents_form_a_vector_space(name, data, batch, dtype, seed):
    case = drawn(name, data)
    M, N = (oracle.tangent(case, batch, dtype, seed + i) for i in range(2))
    a = oracle.vectors(case, batch, None, dtype, seed).sum(-1)
    oracle.close((M + N).dense(), M.dense() + N.dense(), dtype)
    oracle.close((M - N / 2).dense(), M.dense() - N.dense() / 2, dtype)
    oracle.close((-M).dense(), -M.dense(), dtype)
    oracle.close((a * M).dense(), a[..., None, None] * M.dense(), dtype)
    eye = torch.eye(case.p, dtype=dtype)
    oracle.close(M.shift(-2.5).dense(), M.dense() - 2.5 * eye, dtype)
    oracle.close(M.shift(a).dense(), M.dense() + a[..., None, None] * eye, dtype)
    oracle.close(M.trace(), M.dense().diagonal(dim1=-2, dim2=-1).sum(-1), dtype)


@everything
@given(data=st.data(), batch=batches, dtype=dtypes, scale=st.sampled_from([0.0, 0.3, 3.0]), seed=seeds)
def test_h_and_retract(name, data, batch, dtype, scale, seed):
    """h(M) = I + M + M^2/2 for an algebra; for any group, in the group and exp(M) to second order."""
    case = drawn(name, data)
    B, M = oracle.element(case, batch, dtype, seed), oracle.tangent(case, batch, dtype, seed) * scale
    h = M.h()
    D = M.dense()
    oracle.close(B.retract(M).dense(), B.dense() @ h.dense(), dtype)
    if isinstance(h, Algebra):
        oracle.close(h.dense(), torch.eye(case.p, dtype=dtype) + D + D @ D / 2, dtype)
        oracle.close(h.dense(), oracle.coordinates(case, h.dense()), dtype)
    elif dtype == torch.float64:
        small = (1e-4 * M).h().dense()
        assert float((small - torch.linalg.matrix_exp(1e-4 * D)).abs().max() if case.p else 0) < 1e-11


@everything
@given(data=st.data(), seed=seeds)
def test_large_steps_stay_invertible(name, data, seed):
    """Every eigenvalue of h(M) is h of one of M, so at least 1/2 where it is real: B stays invertible at any size."""
    case = drawn(name, data)
    h = (1e3 * oracle.tangent(case, (), torch.float64, seed)).h()
    eigenvalues = torch.linalg.eigvals(h.dense())
    real = eigenvalues.imag.abs() <= 1e-6 * eigenvalues.abs()
    assert bool((eigenvalues.real[real] >= 0.499).all()) or "Kronecker" in name
    assert torch.isfinite(h.logdet())


@everything
@given(data=st.data(), batch=batches, r=st.sampled_from([None, 2]), seed=seeds)
def test_everything_can_be_differentiated(name, data, batch, r, seed):
    """Against the dense oracle, through the element and the vector; and again after a call that kept no graph."""
    case = data.draw(STRUCTURES[name]().filter(lambda case: case.p > 0), label="case")
    theta = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    x = oracle.vectors(case, batch, r, torch.float64, seed).requires_grad_()
    B = oracle.element(case, batch, seed=seed).retract(oracle.tangent(case, batch, torch.float64, seed) * theta)
    with torch.no_grad():
        B.solve(x)
    D = B.dense()
    block = x.unsqueeze(-1) if r is None else x
    H = oracle.hessian(case, batch, seed=seed)
    M = B.pull(lambda V: H @ V, H.diagonal(dim1=-2, dim2=-1))
    ours = B.apply(x).sin().sum() + B.solve(x, transpose=True).sin().sum() + B.logdet().sum() + M.dense().sin().sum()
    X = torch.linalg.solve(D, torch.linalg.solve(D, H).mT)
    dense = (D @ block).sin().sum() + torch.linalg.solve(D.mT, block).sin().sum() + torch.linalg.slogdet(D)[1].sum()
    dense = dense + oracle.projection(case, X).sin().sum()
    for a, b in zip(*(torch.autograd.grad(f, [theta, x], retain_graph=True) for f in (ours, dense)), strict=True):
        oracle.close(a, b)


@everything
@given(data=st.data(), seed=seeds)
def test_vectors_can_be_vmapped(name, data, seed):
    case = drawn(name, data)
    B = oracle.element(case, seed=seed)
    x = oracle.vectors(case, (), 3, torch.float64, seed)
    for operation in (B.apply, B.solve, B.precision, B.covariance):
        oracle.close(torch.func.vmap(operation, in_dims=-1, out_dims=-1)(x), operation(x))


@everything
@given(data=st.data(), seed=seeds)
def test_nothing_survives_a_transform_or_inference_mode(name, data, seed):
    """What is kept between calls is made outside both, or made again."""
    case = drawn(name, data)
    sparse._made.clear()
    x = oracle.vectors(case, (), None, torch.float64, seed)
    H = oracle.hessian(case, seed=seed)

    def use(x):
        B = oracle.element(case, seed=seed)
        return (B.pull(lambda V: H @ V).dense().sum() + B.solve(x) ** 2).sum()

    with torch.inference_mode():
        use(x)
    B = oracle.element(case, seed=seed)
    torch.func.grad(lambda x: (use(x) + B.solve(x) ** 2).sum())(x)
    copy = pickle.loads(pickle.dumps(B))
    y = x.clone().requires_grad_()
    (copy.solve(y) + B.solve(y)).sum().backward()
    assert y.grad is not None
    oracle.close(y.grad, 2 * torch.linalg.inv(B.dense()).sum(0))


@everything
@given(data=st.data(), seed=seeds)
def test_results_share_no_memory(name, data, seed):
    case = drawn(name, data)
    B, M = oracle.element(case, seed=seed), oracle.tangent(case, (), torch.float64, seed)
    x = oracle.vectors(case, (), 2, torch.float64, seed)
    H = oracle.hessian(case, seed=seed)
    before = [t.clone() for t in [*B.tensors(), *M.tensors(), x]]
    results = [B.apply(x), B.solve(x), B.precision(x), B.covariance(x), B.logdet(), B.dense()]
    for made in (B @ B, B.retract(M), M.h(), M.shift(0.0), 1.0 * M, B.project(x, x), B.pull(lambda V: H @ V)):
        results += made.tensors()
    for result in results:
        result.fill_(7.0)
    assert all(torch.equal(a, b) for a, b in zip(before, [*B.tensors(), *M.tensors(), x], strict=True))


@everything
@given(data=st.data(), seed=seeds)
def test_long_loops_in_many_chunks(name, data, seed):
    """What is cut into blocks where p is large gives the same in the smallest blocks."""
    case = drawn(name, data)
    B, H = oracle.element(case, seed=seed), oracle.hessian(case, seed=seed)
    x = oracle.vectors(case, (), 3, torch.float64, seed)
    whole = [B.pull(lambda V: H @ V).dense(), B.project(x, x + 1).dense(), B.apply(x), B.apply(x, transpose=True)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(base, "CHUNK", 1)
        patch.setattr(sparse, "CHUNK", 1)
        cut = [B.pull(lambda V: H @ V).dense(), B.project(x, x + 1).dense(), B.apply(x), B.apply(x, transpose=True)]
    for a, b in zip(cut, whole, strict=True):
        oracle.close(a, b)


@everything
@given(data=st.data())
def test_descriptions_are_values(name, data):
    case = drawn(name, data)
    copy = pickle.loads(pickle.dumps(case.structure))
    assert copy == case.structure
    assert hash(copy) == hash(case.structure)
    assert repr(copy) == repr(case.structure)
    assert str(case.structure) in repr(oracle.identity(case))
    with pytest.raises(AttributeError):
        case.structure.anything = 1


@everything
@given(data=st.data(), batch=batches, seed=seeds)
def test_elements_survive_pickling_and_stay_compatible(name, data, batch, seed):
    case = drawn(name, data)
    B = oracle.element(case, batch, seed=seed)
    copy = pickle.loads(pickle.dumps(B))
    oracle.close(copy.dense(), B.dense())
    oracle.close((copy @ B).dense(), B.dense() @ B.dense())


@everything
@given(data=st.data(), seed=seeds)
def test_operations_leave_their_operands_alone(name, data, seed):
    case = drawn(name, data)
    B, M = oracle.element(case, (), seed=seed), oracle.tangent(case, (), torch.float64, seed)
    before = [t.clone() for t in [*B.tensors(), *M.tensors()]]
    x = oracle.vectors(case, (), 2, torch.float64, seed)
    H = oracle.hessian(case, seed=seed)
    B @ B, B.apply(x), B.solve(x, transpose=True), B.retract(M), M.h(), M.shift(1.0), B.pull(lambda V: H @ V)
    assert all(torch.equal(a, b) for a, b in zip(before, [*B.tensors(), *M.tensors()], strict=True))
    oracle.close(x, oracle.vectors(case, (), 2, torch.float64, seed))
