"""`natgrad bench optim`: the peers' updates against their formulas, and the benchmark from end to end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from natgrad.benchmarks.optim import figures, quality, speed
from natgrad.benchmarks.optim.models import CNN, GPT, ViT
from natgrad.benchmarks.optim.muon import Muon, orthogonalize, split
from natgrad.benchmarks.optim.peers import METHODS
from natgrad.benchmarks.optim.search import cost, grid, learning_rates, load
from natgrad.benchmarks.optim.shampoo import Shampoo
from natgrad.benchmarks.optim.soap import SOAP
from natgrad.benchmarks.optim.tasks import TASKS, Task, cifar, read_cifar10
from natgrad.benchmarks.optim.training import Settings, schedule, train
from natgrad.cli import main


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


def cifar_files(folder, images: int) -> None:
    """Random images in the official binary layout."""
    folder.mkdir()
    numbers = np.random.default_rng(0)
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        rows = numbers.integers(0, 256, (images, 3073), dtype=np.uint8)
        rows[:, 0] %= 10
        rows.tofile(folder / name)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory) -> dict[str, Task]:
    folder, cpu = tmp_path_factory.mktemp("data") / "cifar", torch.device("cpu")
    cifar_files(folder, images=30)
    return {
        "cifar": cifar(folder, cpu, images=140, epochs=3),
        "text": TASKS["text"](folder, cpu),
        "digits": TASKS["digits"](folder, cpu),
    }


def test_cifar_is_read_as_it_is_stored(tmp_path):
    cifar_files(tmp_path / "cifar", images=3)
    (inputs, targets), test = read_cifar10(tmp_path / "cifar", torch.device("cpu"))
    assert inputs.shape == (15, 3, 32, 32)
    assert test[0].shape == (3, 3, 32, 32)
    stored = np.fromfile(tmp_path / "cifar" / "data_batch_2.bin", np.uint8).reshape(-1, 3073)
    assert targets[4] == stored[1, 0]
    green = stored[1, 1 + 1024 + 32 * 5 + 7] / 255  # row 5, column 7
    assert inputs[4, 1, 5, 7].item() == pytest.approx((green - 0.482) / 0.243, rel=1e-5)


@pytest.mark.parametrize("name", ["cifar", "text", "digits"])
def test_batches_are_deterministic_and_cover_each_epoch_once(tasks, name):
    task = tasks[name]
    number = torch.arange(len(task.train[0]))
    task = replace(task, train=(number, number), epochs=2)
    first, second, other = ([x for x, _ in task.batches(seed)] for seed in (3, 3, 4))
    assert len(first) == task.steps
    torch.testing.assert_close(torch.stack(first), torch.stack(second))
    assert not torch.equal(torch.stack(first), torch.stack(other))
    epochs = torch.stack(first).view(2, -1)
    assert not torch.equal(*epochs)
    for epoch in epochs:
        assert len(epoch.unique()) == len(epoch) > len(number) - task.batch_size


@pytest.mark.parametrize("name", ["cifar", "text", "digits"])
def test_networks_fit_their_tasks(tasks, name):
    task = tasks[name]
    network = task.network()
    inputs, targets = (t[:3] for t in task.train)
    assert task.loss(network(inputs), targets).isfinite()
    assert task.score(network(inputs), targets).shape == (3,)
    assert ViT(width=8, depth=1)(torch.randn(2, 3, 32, 32)).shape == (2, 10)


def test_a_run_that_diverges_ends_without_a_score(tasks):
    task = replace(tasks["digits"], epochs=2)
    run = train(task, lambda network: torch.optim.SGD(network.parameters(), lr=1e9), 0, torch.device("cpu"))
    assert run["diverged"]
    assert run["score"] is None
    assert "step" in run["failure"]
    assert cost(run) == float("inf")


def test_the_learning_rate_rises_and_falls_to_zero():
    rates = [schedule(step, 200) for step in range(200)]
    assert rates[:10] == pytest.approx([0.1 * i for i in range(1, 11)])
    assert rates[10] == 1
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert 0 < rates[-1] < 1e-3


def test_all_methods_are_searched_with_the_same_budget():
    searched = [method for method in METHODS.values() if method.searched]
    assert len({(len(method.lrs), len(method.weight_decays)) for method in searched}) == 1
    assert len({method.color for method in METHODS.values()}) == len(METHODS)
    assert learning_rates("adamw", 1, 2) == [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1]
    assert len(grid("digits", "soap", 1, 1, 0)) == len(searched[0].weight_decays) * (1 + len(searched[0].lrs))


def test_what_the_figures_say_of_time():
    def seed(*scores: float) -> dict[str, Any]:
        points = [{"epoch": i + 1.0, "seconds": 2.0 * i, "score": score} for i, score in enumerate(scores)]
        return {"higher": True, "diverged": False, "curve": points}

    assert figures.arrival([seed(0.1, 0.5, 0.6), seed(0.2, 0.7, 0.8)], 0.6) == "2 (2.0)"
    assert figures.arrival([seed(0.1, 0.5, 0.6)], 0.7) == "-"
    assert figures.arrival([], 0.7) == "-"


def test_state_is_counted_once_wherever_it_lies():
    network = nn.Linear(4, 3)
    optimizer: Any = torch.optim.SGD(network.parameters())
    shared = torch.zeros(10)
    network.weight.grad = torch.zeros_like(network.weight)
    optimizer.state[network.weight] = {"m": shared[:5], "nested": [{"v": shared[5:]}]}
    optimizer.elsewhere = SimpleNamespace(factor=torch.zeros(2, 2), parameter=network.weight, grad=network.weight.grad)
    assert speed.state_bytes(optimizer, network) == 4 * (10 + 4)


def quality_run(out, *more: str) -> None:
    words = ["bench", "optim", "quality", "--tasks", "digits", "--methods", "adamw", "soap", "--epochs", "1"]
    assert main([*words, "--seeds", "1", "--out", str(out), *more]) == 0


def results(out) -> dict[str, Any]:
    """All runs' files, without what a clock has measured."""
    found = {}
    for path in out.rglob("*"):
        if path.is_file():
            run = json.loads(path.read_text())
            del run["seconds"]
            for point in run["curve"]:
                del point["seconds"]
            found[str(path.relative_to(out))] = run
    return found


def test_a_benchmark_from_end_to_end_and_resumed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(quality, "EXTENSIONS", 1)
    quality_run(tmp_path / "whole")
    whole = results(tmp_path / "whole")
    assert sum("seed0" in name for name in whole) in (16, 20, 24)  # a budget for each of two methods
    assert sum("seed1" in name for name in whole) == 2
    assert all(len(run["curve"]) == 10 and len(run["losses"]) == 20 for run in whole.values())

    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed").rglob("*.json")}
    for path in list(kept)[::3]:
        path.unlink()
        del kept[path]
    quality_run(tmp_path / "killed")
    assert results(tmp_path / "killed") == whole
    assert all(path.stat().st_mtime_ns == at for path, at in kept.items())

    with pytest.raises(ValueError, match="1 epochs, and 2 are asked for"):
        load(Settings("digits", "adamw", 0.001, 0.0, 0, epochs=2), tmp_path / "whole")

    capsys.readouterr()
    assert main(["bench", "optim", "figures", "--out", str(tmp_path / "whole")]) == 0
    printed = capsys.readouterr().out
    assert "adamw" in printed
    assert "soap" in printed
    assert (tmp_path / "whole" / "digits.png").exists()


def test_speed_from_end_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(speed.NETWORKS, "tiny", (lambda: CNN(2), lambda: speed.images(4)))
    words = ["bench", "optim", "speed", "--networks", "tiny", "--methods", "adamw", "muon", "soap"]
    assert main([*words, "--rounds", "2", "--block", "3", "--out", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "speed.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["adamw", "muon", "soap"]
    assert all(len(row["blocks"]["step_seconds"]) == 2 for row in rows)
    assert all(0 < row["step_seconds"] < row["training_seconds"] for row in rows)
    assert rows[0]["state_bytes"] == pytest.approx(8 * rows[0]["parameters"], rel=0.05)
    assert main(["bench", "optim", "figures", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "speed.png").exists()
    assert "state, MiB" in capsys.readouterr().out


def test_what_cannot_be_done_is_said(tmp_path, capsys):
    assert main(["bench", "optim", "figures", "--out", str(tmp_path)]) == 1
    assert "holds no results" in capsys.readouterr().err
    assert main(["bench", "optim", "quality", "--seeds", "0", "--out", str(tmp_path)]) == 1
    assert "that of the search" in capsys.readouterr().err
    assert main(["bench", "optim", "speed", "--block", "0", "--out", str(tmp_path)]) == 1
    assert "--block must be at least 1" in capsys.readouterr().err


def test_the_command_is_cheap_to_import():
    heavy = "{'sklearn', 'matplotlib', 'heavyball', 'sirfshampoo'}"
    code = f"import sys, natgrad.benchmarks; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
