"""`natgrad bench optim`: the peers' updates against their formulas, and the benchmark from end to end."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from natgrad.benchmarks.optim.models import CNN, GPT
from natgrad.benchmarks.optim.muon import Muon, orthogonalize, split
from natgrad.benchmarks.optim.shampoo import Shampoo
from natgrad.benchmarks.optim.soap import SOAP


def orthogonal(n: int) -> Tensor:
    return torch.linalg.qr(torch.randn(n, n, dtype=torch.float64)).Q


def steps(optimizer: torch.optim.Optimizer, parameter: Tensor, gradients: list[Tensor]) -> Tensor:
    """Where the parameter ends."""
    for gradient in gradients:
        parameter.grad = gradient.clone()
        optimizer.step()
    return parameter.detach()


@pytest.mark.parametrize("shape", [(40, 40), (20, 60), (60, 20), (128, 200)])
def test_muon_sets_the_singular_values_to_about_one(shape):
    torch.manual_seed(0)
    G = torch.randn(shape)
    O = orthogonalize(G)  # noqa: E741
    U, _, Vh = torch.linalg.svd(G, full_matrices=False)
    D = U.T @ O @ Vh.T
    assert D.diagonal().min() > 0.6
    assert D.diagonal().max() < 1.3
    assert (D - D.diagonal().diag()).abs().max() < 0.05


@pytest.mark.parametrize(("scaling", "theirs"), [("original", "original"), ("match_rms", "match_rms_adamw")])
@pytest.mark.parametrize("shape", [(12, 30), (30, 12), (100, 100)])
def test_muon_equals_that_of_torch(scaling, theirs, shape):
    torch.manual_seed(0)
    start, gradients = torch.randn(shape), [torch.randn(shape) for _ in range(4)]
    mine, other = (start.clone().requires_grad_() for _ in range(2))
    ends = [
        steps(Muon([mine], lr=0.1, weight_decay=0.2, scaling=scaling), mine, gradients),
        steps(torch.optim.Muon([other], lr=0.1, weight_decay=0.2, adjust_lr_fn=theirs), other, gradients),
    ]
    moved = (ends[1] - start).norm()
    assert (ends[0] - ends[1]).norm() < 0.03 * moved


def test_muon_flattens_convolutions():
    torch.manual_seed(0)
    gradients = [torch.randn(6, 4, 3, 3) for _ in range(3)]
    tensor, matrix = torch.zeros(6, 4, 3, 3, requires_grad=True), torch.zeros(6, 36, requires_grad=True)
    ends = steps(Muon([tensor]), tensor, gradients), steps(Muon([matrix]), matrix, [g.flatten(1) for g in gradients])
    torch.testing.assert_close(ends[0].flatten(1), ends[1])


def test_muon_leaves_the_rest_to_adamw():
    torch.manual_seed(0)
    gradients = [torch.randn(7) for _ in range(3)]
    mine, other = (torch.ones(7, requires_grad=True) for _ in range(2))
    adamw = torch.optim.AdamW([other], lr=0.05, weight_decay=0.1, betas=(0.9, 0.95), eps=1e-10)
    muon = Muon([], [mine], lr=0.1, weight_decay=0.1, adam_ratio=0.5)
    torch.testing.assert_close(steps(muon, mine, gradients), steps(adamw, other, gradients))


def test_muon_takes_all_weights_of_hidden_layers():
    cnn = CNN(4)
    assert [p.ndim for p in split(cnn)[0]] == [4] * 6 + [2] * 2
    gpt = GPT(20, tokens=8, width=8, depth=2, heads=2)
    matrices, others = split(gpt)
    assert len(matrices) == 2 * 6
    assert {id(p) for p in matrices + others} == {id(p) for p in gpt.parameters()}
    assert any(p is gpt.last.weight for p in others)
    assert any(p is gpt.positions for p in others)


@pytest.mark.parametrize("shape", [(9,), (5, 4)])
def test_soap_without_factors_is_adam(shape):
    torch.manual_seed(0)
    gradients = [torch.randn(shape, dtype=torch.float64) for _ in range(25)]
    mine, other = (torch.ones(shape, dtype=torch.float64, requires_grad=True) for _ in range(2))
    soap = SOAP([mine], lr=0.01, max_precond_dim=3)
    adam = torch.optim.Adam([other], lr=0.01, betas=(0.95, 0.95), eps=0.0)
    soap.param_groups[0]["eps"] = 0.0  # the two add it in different places
    torch.testing.assert_close(steps(soap, mine, gradients), steps(adam, other, gradients[1:]))


def test_soap_turns_with_the_coordinates():
    torch.manual_seed(0)
    U, V = orthogonal(5), orthogonal(5)
    gradients = [torch.randn(5, 5, dtype=torch.float64) for _ in range(31)]  # past three renewals of the bases
    plain, turned = (torch.zeros(5, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    D = steps(SOAP([plain], lr=0.1), plain, gradients)
    torch.testing.assert_close(steps(SOAP([turned], lr=0.1), turned, [U @ g @ V.T for g in gradients]), U @ D @ V.T)


def test_soap_finds_the_eigenbases():
    torch.manual_seed(0)
    p = torch.zeros(4, 3, 2, dtype=torch.float64, requires_grad=True)
    scales = torch.tensor([8.0, 4.0, 2.0, 1.0], dtype=torch.float64)[:, None, None]
    optimizer = SOAP([p], betas=(0.95, 0.999))
    steps(optimizer, p, [scales * torch.randn(4, 3, 2, dtype=torch.float64) for _ in range(2000)])
    for L, Q in zip(optimizer.state[p]["factors"], optimizer.state[p]["bases"], strict=True):
        D = Q.T @ L @ Q
        assert (D - D.diagonal().diag()).abs().max() < 0.05 * D.max()
        torch.testing.assert_close(Q.T @ Q, torch.eye(len(Q), dtype=torch.float64))
    Q = optimizer.state[p]["bases"][0]
    torch.testing.assert_close(Q.abs(), torch.eye(4, dtype=torch.float64), atol=0.2, rtol=0)


@pytest.mark.parametrize("shape", [(6,), (5, 5), (4, 4, 4)])
def test_shampoo_on_a_fixed_gradient(shape):
    """All averages equal the gradient's own; for a matrix U D Vᵀ that leaves U Vᵀ, with Adam's length."""
    torch.manual_seed(0)
    g = torch.randn(shape, dtype=torch.float64)
    p = torch.zeros(shape, dtype=torch.float64, requires_grad=True)
    direction = g
    for i in range(g.ndim):
        G = g.movedim(i, 0).reshape(len(g), -1)
        values, Q = torch.linalg.eigh(G @ G.T)
        root = (Q * (values.clamp(min=0) + 1e-6 * values.max()) ** (-0.5 / g.ndim)) @ Q.T
        direction = torch.tensordot(root, direction.movedim(i, 0), 1).movedim(0, i)
    expected = -0.1 * 12 * direction * (g.sign().norm() / direction.norm())
    torch.testing.assert_close(steps(Shampoo([p], lr=0.1), p, 12 * [g]), expected, rtol=1e-5, atol=1e-6)
    if g.ndim == 2:
        U, _, Vh = torch.linalg.svd(g)
        assert nn.functional.cosine_similarity(-p.detach().flatten(), (U @ Vh).flatten(), dim=0) > 0.999


@pytest.mark.parametrize(
    "make", [SOAP, Shampoo, lambda p, **kw: Muon(p[:1], p[1:], **kw)], ids=["soap", "shampoo", "muon"]
)
def test_peers_resume_from_a_checkpoint(make, tmp_path):
    torch.manual_seed(0)
    gradients = [[torch.randn(4, 3), torch.randn(3)] for _ in range(24)]

    def train(networks, optimizer, chosen):
        for pair in chosen:
            for p, g in zip(networks, pair, strict=True):
                p.grad = g.clone()
            optimizer.step()

    whole = [torch.ones(4, 3, requires_grad=True), torch.ones(3, requires_grad=True)]
    train(whole, make(whole, lr=0.1, weight_decay=0.1), gradients)
    first = [torch.ones(4, 3, requires_grad=True), torch.ones(3, requires_grad=True)]
    optimizer = make(first, lr=0.1, weight_decay=0.1)
    train(first, optimizer, gradients[:15])
    torch.save(optimizer.state_dict(), tmp_path / "state.pt")
    second = make(first, lr=0.1, weight_decay=0.1)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    train(first, second, gradients[15:])
    for p, q in zip(whole, first, strict=True):
        torch.testing.assert_close(p, q)
