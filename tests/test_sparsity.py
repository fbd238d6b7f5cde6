"""The sparsity of Hessians found from functions, against Hessians by autograd."""

from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array
from torch import Tensor
from torch.nn import functional

from natgrad.experiments.functions import FUNCTIONS
from natgrad.minimization.sparsity import NotSparse, hessian_sparsity
from tests import oracle

POINTS = 4


def random_point(p: int, seed: int) -> Tensor:
    return 0.3 + torch.rand(p, dtype=torch.float64, generator=oracle.generator(seed))


def nonzeros(fun, p: int, point=random_point) -> np.ndarray:
    """Where the Hessian by autograd differs from zero at some of a few points, and the diagonal."""
    found = np.eye(p, dtype=bool)
    for seed in range(POINTS):
        H = torch.autograd.functional.hessian(fun, point(p, seed)).nan_to_num(1.0)
        found |= (H.abs() > 1e-12 * max(1.0, float(H.abs().max()))).numpy()
    return found


def detected(fun, x0, **options) -> np.ndarray:
    pattern = hessian_sparsity(fun, x0, **options)
    assert isinstance(pattern, csr_array)
    assert pattern.dtype == bool
    assert pattern.has_canonical_format
    dense = pattern.toarray()
    assert (dense == dense.T).all()
    assert dense.diagonal().all()
    assert dense.sum() == pattern.nnz
    return dense


def check_exact(fun, p: int) -> None:
    np.testing.assert_array_equal(detected(fun, random_point(p, 99)), nonzeros(fun, p))


# ---- published functions


@pytest.mark.parametrize("name", list(FUNCTIONS))
@pytest.mark.parametrize("wanted", [1, 3, 9, 16])
def test_published_functions_exactly(name, wanted):
    problem = FUNCTIONS[name]
    p = problem.size(wanted)

    def point(p, seed):
        return torch.randn(p, dtype=torch.float64, generator=oracle.generator(seed))

    np.testing.assert_array_equal(detected(problem.value, problem.start(p)), nonzeros(problem.value, p, point))


LARGE = {  # entries a row, far from the ends
    "rosenbrock": 3, "powell": 3, "chained-powell": 4, "wood": 2.5, "broyden-tridiagonal": 5, "broyden-banded": 13,
    "arwhead": 3, "nondquar": 5, "minimal-surface": 9, "phi4": 5,
}  # fmt: skip


@pytest.mark.parametrize("name", list(LARGE))
def test_a_hundred_thousand_variables(name):
    problem = FUNCTIONS[name]
    p = problem.size(100_000)
    pattern = hessian_sparsity(problem.value, problem.start(p))
    assert 0.99 * LARGE[name] < pattern.nnz / p <= LARGE[name]


@pytest.mark.parametrize("name", [name for name, problem in FUNCTIONS.items() if not problem.sparse])
def test_dense_ones_are_refused_when_large(name):
    problem = FUNCTIONS[name]
    with pytest.raises(NotSparse, match=r"expected a sparse Hessian, got .*; treat the Hessian as dense"):
        hessian_sparsity(problem.value, problem.start(100_000))


def test_it_depends_on_no_values():
    """At 0 all second derivatives but the diagonal vanish."""
    fun = FUNCTIONS["nondquar"].value
    at_zero = detected(fun, torch.zeros(8, dtype=torch.float64))
    np.testing.assert_array_equal(at_zero, detected(fun, random_point(8, 0)))


# ---- exact patterns, one rule or two at a time

MASK = torch.tensor([1.0, 0, 2, 0, 0, 3, 0, 1, 1, 0, 0, 1], dtype=torch.float64)
STENCIL = torch.tensor([[1.0, 0, 2]], dtype=torch.float64)
MATRIX = torch.zeros(5, 12, dtype=torch.float64)
MATRIX[[0, 0, 1, 2, 3, 4, 4], [0, 5, 2, 3, 11, 7, 1]] = torch.arange(1.0, 8, dtype=torch.float64)
KERNELS = MATRIX[:4, :9].reshape(4, 3, 3)
INDEX = torch.tensor([3, 3, 0, 7, 11])
WEIGHT = torch.arange(1.0, 13, dtype=torch.float64).cos()


def pairwise(y: Tensor) -> Tensor:
    """Each element meets the next one."""
    y = y.reshape(-1)
    return (y[1:] * y[:-1]).sum()


def overwritten(x: Tensor) -> Tensor:
    y = x.clone()
    y[0] = x[3] * x[4]
    y[1:3] *= x[5:7]
    y += x.flip(0)
    y[5] = 2.0
    z = y.view(3, 4)
    z[1].add_(z[2])
    return (y**2).sum()


def filled(x: Tensor) -> Tensor:
    y = torch.zeros(14, dtype=x.dtype)
    y[1:-1] = x
    y[INDEX] = x[:5] ** 2
    y[::2].add_(y[1::2])
    return pairwise(y.sin())


def scattered(x: Tensor) -> Tensor:
    y = torch.zeros(12, dtype=x.dtype).index_add(0, INDEX, x[:5])
    y = y.scatter_add(0, INDEX, x[5:10]).index_put((INDEX[2:],), x[9:], accumulate=True)
    y = y.scatter(0, INDEX[3:], x[:2]).index_copy(0, INDEX[:1], x[:1])
    return (y**2).sum()


def unwound(x: Tensor) -> Tensor:
    s = x[0]
    for k in range(1, 6):
        s = torch.sin(s * x[k]) if k % 3 else x[k] ** 3
    return s + (x[6:] ** 2).sum()


EXACT = {
    "linear": lambda x: 3 * x.sum() + x[2] - x.mean() + x @ WEIGHT,
    "constant": lambda x: torch.ones((), dtype=x.dtype),
    "separable": lambda x: (torch.exp(x) + x * torch.sin(x) + 1 / x + torch.log(x) * x.sqrt() + x**-0.5).sum(),
    "chain": pairwise,
    "hub": lambda x: (x[0] * torch.sin(x)).sum(),
    "hub divides": lambda x: (x / (x[-1] + 2)).sum(),
    "constant divided": lambda x: (MASK / (x + x.flip(0))).sum(),
    "linear, then squared": lambda x: (x[:4].sum() + x[7]) ** 2,
    "squares of sums of squares": lambda x: (x.reshape(3, 4).square().sum(1) ** 2).sum(),
    "powers": lambda x: ((x + x.roll(1)) ** torch.tensor([0.0, 1, 2, 3, 1, 0] * 2)).sum() + (x[0] + x[5]).pow(3),
    "power one": lambda x: ((x + x.roll(1)) ** 1).sum(),
    "exponents": lambda x: (2.0 ** (x + x.roll(1)))[:3].sum() + (x[3:6] ** x[6:9]).sum(),
    "a constant's ones and zeros": lambda x: torch.pow(1 + MASK, x + x.roll(1)).sum(),
    "masked": lambda x: pairwise(x * MASK),
    "masked afterwards": lambda x: (MASK * x * x.roll(3)).sum(),
    "cut off afterwards": lambda x: (x * x.roll(3))[:4].sum(),
    "masks": lambda x: pairwise(torch.where(MASK > 0, x, 2 * x.flip(0)).masked_fill(MASK > 2, 1.0)),
    "kept by a mask": lambda x: pairwise(x[MASK > 0]),
    "kinks": lambda x: (x.abs() + x.clamp(min=0.5) + functional.relu(x - 0.5) + functional.leaky_relu(x)).sum(),
    "matrix": lambda x: ((MATRIX @ x) ** 2).sum(),
    "matrix from the right": lambda x: ((x.reshape(1, 12) @ MATRIX.T) ** 3).sum(),
    "sparse matrix": lambda x: ((MATRIX.to_sparse_coo() @ x) ** 2).sum(),
    "sparse times matrix": lambda x: (torch.sparse.mm(MATRIX[:, :6].to_sparse_coo(), x.reshape(6, 2)) ** 2).sum(),
    "layer": lambda x: functional.linear(x.reshape(1, 12), MATRIX, x[:5]).tanh().sum(),
    "quadratic form": lambda x: x @ (MATRIX.T @ (MATRIX @ x)),
    "product of matrices": lambda x: (x[:6].reshape(2, 3) @ x[6:].reshape(3, 2)).sum(),
    "products of batches": lambda x: torch.einsum("bij,bj->", x[:8].reshape(2, 2, 2), x[8:].reshape(2, 2)),
    "product, added": lambda x: torch.addmm(x[:4].reshape(2, 2), x[4:8].reshape(2, 2), MATRIX[:2, :2]).square().sum(),
    "conv1d": lambda x: (functional.conv1d(x.reshape(1, 1, 12), STENCIL[None], dilation=2, padding=1) ** 2).sum(),
    "conv2d": lambda x: (functional.conv2d(x.reshape(1, 2, 3, 2), MATRIX[:4, :8].reshape(4, 2, 2, 2)) ** 2).sum(),
    "grouped": lambda x: (functional.conv1d(x.reshape(1, 4, 3), MATRIX[:4, :4].reshape(4, 2, 2), groups=2) ** 2).sum(),
    "transposed": lambda x: functional.conv_transpose1d(x.reshape(1, 4, 3), KERNELS, stride=2, groups=2).square().sum(),
    "variable kernel": lambda x: (
        functional.conv1d(x[:9].reshape(1, 1, 9), x[9:].reshape(1, 1, 3), x[:1], stride=3)
    ).sum(),
    "pooled": lambda x: (functional.avg_pool1d(x.reshape(1, 1, 12), 3, stride=2, padding=1) ** 2).sum(),
    "indices": lambda x: (
        pairwise(x[INDEX]) + pairwise(x.gather(0, INDEX).sin()) + (x[2] * x.index_select(0, INDEX)).sum()
    ),
    "scattered": scattered,
    "joined": lambda x: (
        pairwise(torch.cat([x[6:], 1 + 0 * WEIGHT[:2], x[:3]])) + pairwise(torch.stack([x[:6], x[6:]], 1))
    ),
    "padded": lambda x: (
        pairwise(functional.pad(x.reshape(3, 4), (1, 2, 0, 1), value=7.0)) + pairwise(x.reshape(3, 4).tril())
    ),
    "turned": lambda x: pairwise(x.reshape(3, 4).T.flip(0)) + pairwise(x.roll(5)),
    "repeated": lambda x: (x.repeat(2)[5:] * x.reshape(4, 3).T.repeat(2, 1).reshape(-1)[:19]).sum(),
    "windows": lambda x: x.unfold(0, 3, 2).prod(-1).sum() + x.as_strided((3, 2), (3, 1), 1).prod(1).sum(),
    "spread out": lambda x: (x[:3, None] * x[None, 5:9]).sum() + (x[9].expand(2) * x[10:]).sum(),
    "differences": lambda x: (x.reshape(3, 4).diff(dim=0) ** 2).sum(),
    "sums on the way": lambda x: (x.reshape(4, 3).cumsum(1)[:, 1] ** 2).sum(),
    "softmax": lambda x: (
        (functional.log_softmax(x.reshape(4, 3), 1)[:3, 0] * 2).sum() + x.reshape(4, 3).softmax(0)[0, 0]
    ),
    "groups": lambda x: (
        x.reshape(4, 3).logsumexp(1).sum() + x.reshape(4, 3).norm(dim=0)[0] + x[:3].var() + x[9:].prod()
    ),
    "norms": lambda x: x[4:8].norm() + x.norm(p=1) + x[:2].norm(p=3) + x.norm(p=math.inf),
    "losses": lambda x: (
        functional.mse_loss(x[1:], x[:-1]) + functional.cross_entropy(x.reshape(4, 3), torch.tensor([0, 1, 2, 0]))
    ),
    "determinants": lambda x: torch.linalg.slogdet(x.reshape(3, 2, 2))[1].sum(),
    "largest": lambda x: x.reshape(4, 3).amax(1).sum() + x.max() + x.sort()[0][0] + x.topk(2)[0].sum(),
    "added up": lambda x: (
        torch.addcmul(x, WEIGHT, x.roll(1)).sum() + torch.lerp(x, x.roll(1), MASK).sum() + x[:2].prod()
    ),
    "spectrum": lambda x: torch.fft.rfft(x[:4]).abs().sum(),
    "overwritten": overwritten,
    "filled": filled,
    "unwound": unwound,
    "mapped": lambda x: torch.func.vmap(lambda a: a[0] * a[1] ** 2)(x.reshape(6, 2)).sum(),
    "gradient inside": lambda x: torch.func.grad(lambda y: (y[1:] * y[:-1] ** 2).sum())(x)[3:5].sum(),
    "saved memory": lambda x: torch.utils.checkpoint.checkpoint(pairwise, x, use_reentrant=False),
    "empty": lambda x: x[:0].sum() + pairwise(x[:3]),
}


@pytest.mark.parametrize("name", list(EXACT))
def test_exact_patterns(name):
    check_exact(EXACT[name], 12)


def test_patterns_by_hand():
    """Known without any autograd."""
    i = np.arange(6)
    distance = np.abs(i[:, None] - i)
    x = random_point(6, 0)
    np.testing.assert_array_equal(detected(lambda x: (x**3).sum(), x), distance == 0)
    np.testing.assert_array_equal(detected(lambda x: x.sum(), x), distance == 0)
    np.testing.assert_array_equal(detected(pairwise, x), distance <= 1)
    np.testing.assert_array_equal(detected(lambda x: (x[2:] * x[:-2]).sum(), x), (distance == 0) | (distance == 2))
    np.testing.assert_array_equal(detected(lambda x: x[0] * x.sum(), x), (distance == 0) | (i == 0) | (i[:, None] == 0))
    np.testing.assert_array_equal(detected(lambda x: x.prod(), x), distance >= 0)


# ---- supersets, where the exact pattern depends on values


@torch.library.custom_op("natgrad_tests::twisted", mutates_args=())
def twisted(x: Tensor) -> Tensor:
    return x.flip(0) * x


twisted.register_autograd(
    lambda ctx, grad: 2 * grad.flip(0) * ctx.saved_tensors[0].flip(0),
    setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
)


def by_order(x: Tensor) -> Tensor:
    y = x.clone()
    y[x > 0.8] = x[2]
    y[x.argsort()[:3]] = x[3:6] ** 2
    return pairwise(y)


SUPERSETS = {
    "sorted": lambda x: pairwise(x[:4].sort()[0]),
    "ranked": lambda x: x[x.argsort()][0] * x[1] + x.gather(0, x[:3].argmin(0, keepdim=True)).prod() * x[2],
    "largest": lambda x: (x[:4].topk(2)[0].prod() + x[4:7].max(0)[0] * x[8]) * x[9] + x[:4].cummax(0)[0].prod(),
    "by order": by_order,
    "chosen by values": lambda x: pairwise(torch.where(x[:6] > x[6:], x[:6], x[6:] ** 2).masked_fill(x[:6] > 1, 0)),
    "scattered by values": lambda x: torch.zeros(4, dtype=x.dtype).scatter_add(0, x[:4].argsort(), x[4:8]).prod(),
    "pooled by values": lambda x: (functional.max_pool1d(x.reshape(1, 1, 12), 3) ** 2).sum(),
    "largest differences": lambda x: pairwise(torch.maximum(x[1:], x[:-1])) + torch.fmod(x, 0.3).prod(),
    "without a rule": lambda x: twisted(x[:4]).sum() + x[6],
    "inverse": lambda x: torch.linalg.inv(x[:9].reshape(3, 3) + 3 * torch.eye(3, dtype=x.dtype)).sum(),
    "counted": lambda x: (x > 0).sum(dtype=x.dtype) * (x[:4] > 0).double().mean() * pairwise(x),
    "normalised": lambda x: functional.layer_norm(x.reshape(3, 4), (4,)).pow(3).sum(),
}


@pytest.mark.parametrize("name", list(SUPERSETS))
def test_supersets(name):
    fun = SUPERSETS[name]
    held = detected(fun, random_point(12, 99))
    assert not (nonzeros(fun, 12) & ~held).any()


# ---- random functions

UNARY = [
    torch.sin,
    torch.square,
    torch.abs,
    torch.tanh,
    lambda u: -3 * u,
    lambda u: u.relu(),
    lambda u: u**3,
    torch.exp,
]
UNARY += [
    lambda u: u.roll(1),
    lambda u: u.flip(0),
    lambda u: u * MASK[: len(u)],
    lambda u: u[torch.arange(len(u)) // 2],
]
UNARY += [lambda u: u.cumsum(0), lambda u: u.softmax(0), lambda u: u.sum().expand(len(u)), lambda u: u.sort()[0]]
UNARY += [
    lambda u: functional.pad(u[2:], (1, 1)),
    lambda u: torch.cat([u[3:], u[:3]]),
    lambda u: MATRIX[:, : len(u)].T @ u[:5],
]
UNARY += [lambda u: torch.where(u > 0.5, u, 0.5), lambda u: u.index_fill(0, INDEX[:3], 1.0), lambda u: u.detach()]
BINARY = [torch.add, torch.sub, torch.mul, torch.maximum, lambda u, v: u / (2 + v**2), lambda u, v: u * v[0]]
BINARY += [
    lambda u, v: u.index_add(0, INDEX[:4], v[:4]),
    lambda u, v: torch.outer(u[:2], v[:3]).reshape(-1)[[0, 1, 2, 3, 4, 5, 0, 1]],
]
BINARY += [
    lambda u, v: torch.cat([u[:4], v[:4]]),
    lambda u, v: u.clone().mul_(v),
    lambda u, v: torch.stack([u, v])[:, ::2].reshape(-1),
]


@st.composite
def functions(draw):
    """Straight-line programs on vectors of eight numbers."""
    steps = []
    for k in range(draw(st.integers(1, 6))):
        operations = draw(st.sampled_from([UNARY, BINARY]))
        which = draw(st.integers(0, len(operations) - 1))
        steps.append((operations, which, draw(st.integers(0, k)), draw(st.integers(0, k))))
    ends = draw(st.lists(st.integers(1, 8), min_size=1, max_size=3))

    def fun(x: Tensor) -> Tensor:
        pool = [x]
        for operations, which, a, b in steps:
            pool.append(operations[which](*([pool[a]] if operations is UNARY else [pool[a], pool[b]])))
        return sum((pool[-1][:end] * WEIGHT[:end]).sum() for end in ends)

    return fun


@settings(max_examples=200)
@given(fun=functions())
def test_random_functions(fun):
    held = detected(fun, random_point(8, 99))
    assert not (nonzeros(fun, 8) & ~held).any()


# ---- forms of x0 and of fun


def test_shapes_trees_and_dtypes():
    def fun(a, b):
        return (a**2 @ b).sum()

    flat = nonzeros(lambda x: fun(x[:6].reshape(2, 3), x[6:]), 9)
    a, b = torch.rand(2, 3), torch.rand(3)
    np.testing.assert_array_equal(detected(lambda t: fun(t["a"], t["b"]), {"a": a, "b": b}), flat)
    np.testing.assert_array_equal(detected(lambda t: fun(*t), (a.double(), b.double())), flat)
    np.testing.assert_array_equal(detected(pairwise, a.requires_grad_()), nonzeros(pairwise, 6))
    np.testing.assert_array_equal(detected(pairwise, np.ones(5)), nonzeros(pairwise, 5))
    np.testing.assert_array_equal(detected(pairwise, np.ones(5, np.float32)), nonzeros(pairwise, 5))
    assert detected(lambda x: x.sum(), torch.ones(())).shape == (1, 1)
    assert detected(lambda x: x.sum(), torch.ones(0)).shape == (0, 0)


def test_arguments_are_constants():
    x = random_point(12, 0)
    held = detected(lambda x, mask, k: pairwise(x * mask) * k, x, args=(MASK, 3.0))
    np.testing.assert_array_equal(held, nonzeros(lambda x: pairwise(x * MASK), 12))


def test_nothing_is_left_behind():
    """x0 and what fun holds stay as they were; two calls agree; fun may run without gradients and compiled."""
    x, kept = random_point(6, 0), torch.zeros(6, dtype=torch.float64)
    before = x.clone()

    def fun(x):
        kept.copy_(x.detach())
        return pairwise(x)

    first = detected(fun, x)
    assert torch.equal(x, before)
    assert not x.requires_grad
    np.testing.assert_array_equal(detected(lambda x: pairwise(x * kept), x), first)
    with torch.no_grad():
        np.testing.assert_array_equal(detected(pairwise, x), first)
    with torch.inference_mode():
        np.testing.assert_array_equal(detected(pairwise, random_point(6, 0)), first)


def test_no_compiler_is_loaded():
    script = (
        "import sys, torch; from natgrad.minimization.sparsity import hessian_sparsity as f; before = set(sys.modules);"
        "f(lambda x: (x[1:] * x[:-1].sin()).sum(), torch.ones(9)); print(set(sys.modules) - before)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert "sympy" not in loaded
    assert "dynamo" not in loaded


def test_random_numbers_are_no_constants():
    """A mask that leaves out an entry now may hold it the next time."""
    x, p = random_point(6, 0), 6
    for mask in (
        lambda x: torch.rand_like(x) > 2,
        lambda x: torch.bernoulli(torch.zeros(p)),
        lambda x: x.new_zeros(p).uniform_(),
    ):
        np.testing.assert_array_equal(detected(lambda x, mask=mask: pairwise(x * mask(x)), x), nonzeros(pairwise, p))
    noisy = detected(lambda x: pairwise(x * torch.rand_like(x.roll(3))), x)  # which do not depend on x
    np.testing.assert_array_equal(noisy, nonzeros(pairwise, p))
    np.testing.assert_array_equal(detected(lambda x: pairwise(functional.dropout(x, 0.9)), x), nonzeros(pairwise, p))


# ---- refusals

PATHS = {
    "if": lambda x: x.sum() if x[0] > 0 else pairwise(x),
    "bool": lambda x: x.sum() * bool(x[0]),
    "item": lambda x: x.sum() * x[0].item(),
    "float": lambda x: x.sum() * float(x.detach()[0]),
    "list": lambda x: x.sum() * x.tolist()[0],
    "NumPy": lambda x: x.sum() * x.detach().numpy()[0],
    "array": lambda x: x.sum() * np.asarray(x.detach())[0],
    "tensor": lambda x: torch.tensor([x.detach()[0], 1.0]).sum(),
    "mask": lambda x: pairwise(x[x > 0]),
    "nonzero": lambda x: x[x.nonzero()].sum(),
    "masked": lambda x: x.masked_select(x > 0).sum(),
    "equal": lambda x: x.sum() if torch.equal(x, x) else x[0],
    "close": lambda x: x.sum() if torch.allclose(x, x) else x[0],
    "index": lambda x: x[int(x[0])],
    "unique": lambda x: x.unique().sum(),
    "new": lambda x: x.new_tensor([x.detach()[0], 1.0]).sum(),
    "random": lambda x: x.sum() if torch.rand(()) > 0.5 else pairwise(x),
}


@pytest.mark.parametrize("name", list(PATHS))
def test_paths_that_depend_on_values_are_refused(name):
    with pytest.raises(ValueError, match=r"fun takes values of x out .*; expected torch operations only: write torch"):
        hessian_sparsity(PATHS[name], random_point(4, 0))


@pytest.mark.parametrize(
    ("fun", "message"),
    [
        (lambda x: x, r"fun must return one number, got shape \(4,\); sum it"),
        (lambda x: 3.0, r"fun must return a tensor with one number, got float; write it with torch"),
        (lambda x: x.sum() * 1j, r"fun must return a real number, got torch.complex128"),
        (
            lambda x: Rounded.apply(x).sum(),
            r"its own torch.autograd.Function \(RoundedBackward\).* or give the sparsity",
        ),
        (lambda x: x.to_sparse().sum(), r"fun calls aten._to_sparse.*: expected operations whose .*sparse tensors"),
        (lambda x: torch._foreach_mul_([x.clone()], 2.0) or x.sum(), r"fun calls aten._foreach_mul_.*: expected"),
        (lambda x: x.view(torch.float32).sum(), r"fun views torch.float64 as torch.float32: expected"),
        (lambda x: torch.ones(3, dtype=x.dtype) @ x[:3].numpy(), r"fun takes values of x out .*by numpy"),
    ],
)
def test_other_refusals(fun, message):
    with pytest.raises(ValueError, match=message):
        hessian_sparsity(fun, random_point(4, 0))


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, *grads):
        return grads[0]


DENSE = {
    "square of the sum": lambda x: x.sum() ** 2,
    "mean taken away": lambda x: ((x - x.mean()) ** 2).sum(),
    "sum for everyone": lambda x: (x.sum() * torch.ones_like(x)).sin().sum(),
    "sums on the way": lambda x: (x.cumsum(0) ** 2).sum(),
    "softmax": lambda x: x.softmax(0)[0],
    "logsumexp": lambda x: x.logsumexp(0),
    "sorted": lambda x: (x.sort()[0] ** 2).sum(),
    "matrices": lambda x: (x[:90_000].reshape(300, 300) @ x[10_000:].reshape(300, 300)).sum(),
    "everything": lambda x: torch.fft.fft(x).abs().sum(),
    "many wide rows": lambda x: sum(x.roll(k) for k in range(50)).square().sum(),
}


@pytest.mark.parametrize("name", list(DENSE))
def test_dense_hessians_are_refused(name):
    with pytest.raises(
        NotSparse, match=r"expected a sparse Hessian, got .*; treat the Hessian as dense, or raise max_ent"
    ):
        hessian_sparsity(DENSE[name], torch.ones(100_000))


def test_what_is_only_linear_costs_nothing():
    """Sums and means of everything, sorted or summed up, need no dependencies as long as nothing nonlinear follows."""
    p = 100_000
    pattern = hessian_sparsity(
        lambda x: x.cumsum(0).sum() + x.sort()[0][3] + (x - x.mean())[1] + (x**2).mean(), np.ones(p)
    )
    assert pattern.nnz == p


def test_the_bound_can_be_set():
    x = torch.ones(30)
    assert hessian_sparsity(lambda x: x.sum() ** 2, x).nnz == 900
    assert hessian_sparsity(pairwise, x, max_entries=100).nnz == 88
    for fun in (lambda x: x.sum() ** 2, lambda x: pairwise(x) + x[0] * x[2:].sum()):
        with pytest.raises(NotSparse, match="max_entries"):
            hessian_sparsity(fun, x, max_entries=100)
