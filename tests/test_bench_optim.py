"""`natgrad bench optim`: the peers' updates against their formulas, and the benchmark from end to end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from argparse import Namespace
from dataclasses import fields, replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from natgrad.benchmarks.optim import cost as cost_part
from natgrad.benchmarks.optim import quality, speed, tables
from natgrad.benchmarks.optim.collect import collect, digest
from natgrad.benchmarks.optim.models import CNN, GPT, ViT
from natgrad.benchmarks.optim.muon import Muon, orthogonalize, split
from natgrad.benchmarks.optim.peers import METHODS
from natgrad.benchmarks.optim.search import cost, grid, learning_rates, load
from natgrad.benchmarks.optim.shampoo import Shampoo
from natgrad.benchmarks.optim.soap import SOAP
from natgrad.benchmarks.optim.tasks import TASKS, Task, cifar, read_cifar10, shifted
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
        "cifar": cifar(folder, cpu, images=140, epochs=3, validation=10),
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
def test_nobody_trains_on_what_is_scored(tasks, name):
    """Inputs of the three parts are all different, and the score is that of the part asked for."""
    task = tasks[name]
    parts = [{tuple(x.flatten().tolist()) for x in part[0]} for part in (task.train, task.validation, task.test)]
    sizes = [len(part[0]) for part in (task.train, task.validation, task.test)]
    assert sizes == {"cifar": [140, 10, 30], "digits": [1200, 200, 397]}.get(name, sizes)
    if name == "text":
        assert sizes == pytest.approx([0.8 * sum(sizes), 0.1 * sum(sizes), 0.1 * sum(sizes)], abs=1)
    assert not parts[0] & parts[1]
    assert not parts[2] & (parts[0] | parts[1])
    network = task.network()
    few = replace(task, validation=tuple(t[:3] for t in task.validation), test=tuple(t[:2] for t in task.test))
    network.eval()
    for on, (inputs, targets) in (("validation", few.validation), ("test", few.test)):
        assert few.evaluate(network, on) == pytest.approx(task.score(network(inputs), targets).mean().item(), rel=1e-4)


def test_cifar_with_too_few_images(tmp_path):
    cifar_files(tmp_path / "cifar", images=30)
    with pytest.raises(ValueError, match="holds 140 images for training"):
        cifar(tmp_path / "cifar", torch.device("cpu"), images=141, epochs=1, validation=10)


@pytest.mark.parametrize("name", ["cifar", "text", "digits"])
def test_batches_are_deterministic_and_cover_each_epoch_once(tasks, name):
    task = tasks[name]
    number = torch.arange(len(task.train[0]))
    task = replace(task, train=(number, number), epochs=2, augment=None)
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
    run = train(task, lambda network: torch.optim.SGD(network.parameters(), lr=1e9), 0, torch.device("cpu"), on="test")
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
    assert learning_rates("adamw", 1, 2) == [5e-4, 1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2, 3.2e-2]
    assert learning_rates("muon", 2, 0) == [2.5e-4, 5e-4, 1e-3, 2e-3, 4e-3, 8e-3]
    assert all(higher == 2 * lower for method in searched for lower, higher in pairwise(method.lrs))
    assert len(grid("digits", "soap", 1, 1, 0)) == len(searched[0].weight_decays) * (1 + len(searched[0].lrs))


def seed(*scores: float | None, seconds: float = 2.0) -> dict[str, Any]:
    """A run of quality.json."""
    points = [{"epoch": i + 1.0, "seconds": seconds * (i + 1), "score": score} for i, score in enumerate(scores)]
    last = {"score": scores[-1], "seconds": seconds * len(scores), "losses": [9.0, 1.5]}
    return {"curve": points, "failure": "", "environment": 0, **last}


def test_when_a_quality_is_reached():
    assert tables.arrival([seed(0.1, 0.5, 0.6), seed(0.2, 0.7, 0.8)], 0.6, higher=True) == "2 (4.0)"
    assert tables.arrival([seed(0.6, 0.4, 0.3)], 0.4, higher=False) == "2 (4.0)"
    assert tables.arrival([seed(0.1, 0.5, 0.6)], 0.7, higher=True) == "-"
    assert tables.arrival([seed(0.1, 0.5, 0.6), seed(0.1, None)], 0.5, higher=True) == "-"
    assert tables.arrival([], 0.7, higher=True) == "-"


def test_the_best_peer_at_its_end(capsys):
    found = {
        "natgrad": [seed(0.7, 0.9)],
        "adamw": [seed(0.2, 0.6), seed(0.3, 0.5)],
        "soap": [seed(0.3, 0.6, seconds=7.0), seed(0.5, 0.6, seconds=8.0)],
        "shampoo": [seed(0.3, 0.8)],  # not one of the standard ones
    }
    search = [{"lr": 0.1, "score": 0.5, "failure": ""}]
    methods = {
        method: {"chosen": {"lr": 0.1, "weight_decay": 0.0, "score": 0.5}, "search": search, "seeds": seeds}
        for method, seeds in found.items()
    }
    environments = [{"device": "cpu", "threads": 3}]
    task = {"score_name": "accuracy", "higher": True, "environments": environments, "methods": methods}
    best = tables.best_of(task, tables.STANDARD)
    assert best is not None
    assert best.method == "soap"
    assert (best.score, best.seconds) == pytest.approx((0.6, 15.0))
    tables.print_task("cifar", task)
    printed = " ".join(capsys.readouterr().out.split())
    assert "threads: 3" in printed
    line = printed[printed.index("natgrad 0.1") :].split("adamw 0.1")[0]
    assert "0.9000 0.9000-0.9000 1.500 4.0 1 (2.0) 1 (2.0) 0 of 1" in line


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
    for path in (out / "runs").rglob("*"):
        if path.is_file():
            run = json.loads(path.read_text())
            del run["seconds"]
            for point in run["curve"]:
                del point["seconds"]
            found[str(path.relative_to(out))] = run
    return found


def fresh_settings(runs: dict[str, Any]) -> list[Settings]:
    """Of the runs that are not the search's."""
    names = [field.name for field in fields(Settings)]
    return [Settings(**{name: run[name] for name in names}) for run in runs.values() if run["seed"]]


def test_a_benchmark_from_end_to_end_and_resumed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(quality, "EXTENSIONS", 1)
    quality_run(tmp_path / "whole")
    whole = results(tmp_path / "whole")
    assert sum("seed0" in name for name in whole) in (16, 20, 24)  # a budget for each of two methods
    assert sum("seed1" in name for name in whole) == 2
    assert all(run["scored_on"] == ("validation" if "seed0" in name else "test") for name, run in whole.items())
    assert all(run["threads"] == 1 for run in whole.values())
    assert all(len(run["curve"]) == 10 and len(run["losses"]) == 20 for run in whole.values())

    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    kept = {path: path.stat().st_mtime_ns for path in (tmp_path / "killed" / "runs").rglob("*.json")}
    for path in list(kept)[::3]:
        path.unlink()
        del kept[path]
    quality_run(tmp_path / "killed")
    assert results(tmp_path / "killed") == whole
    assert all(path.stat().st_mtime_ns == at for path, at in kept.items())

    again = Namespace(out=tmp_path / "whole", threads=2)
    with pytest.raises(ValueError, match="timed with 1 threads, and 2 are asked for"):
        quality.timed_before(fresh_settings(whole)[0], again)
    with pytest.raises(ValueError, match="1 epochs, and 2 are asked for"):
        load(Settings("digits", "adamw", 0.001, 0.1, 0, epochs=2), tmp_path / "whole")

    capsys.readouterr()
    assert main(["bench", "optim", "figures", "--out", str(tmp_path / "whole")]) == 0
    printed = capsys.readouterr().out
    assert "adamw" in printed
    assert "soap" in printed
    assert (tmp_path / "whole" / "digits.png").exists()

    shutil.copytree(tmp_path / "whole", tmp_path / "clone", ignore=shutil.ignore_patterns("runs", "*.png"))
    kept = (tmp_path / "clone" / "quality.json").read_text()
    assert main(["bench", "optim", "figures", "--out", str(tmp_path / "clone")]) == 0
    assert capsys.readouterr().out == printed
    assert (tmp_path / "clone" / "digits.png").exists()
    assert (tmp_path / "clone" / "quality.json").read_text() == kept


def test_what_is_collected(tmp_path):
    """The whole search, and of the fresh seeds those of the settings chosen; other tasks stay as they are."""
    about = {"machine": {}, "device": "cpu", "threads": 1, "versions": {}, "command": "natgrad"}
    about |= {"score_name": "accuracy", "higher": True, "epochs": 1, "steps": 9, "weight_decay": 0.1}

    def run(lr: float, seed: int, score: float | None, on: str, **more: Any) -> dict[str, Any]:
        own = {"lr": lr, "seed": seed, "score": score, "scored_on": on, "failure": "" if score else "it failed"}
        return about | own | {"seconds": 1.23456789, "losses": [1.0], "curve": [], **more}

    runs = [
        run(0.1, 0, 0.5, "validation"), run(0.2, 0, 0.6, "validation"), run(0.4, 0, None, "validation"),
        run(0.1, 1, 0.9, "test"), run(0.2, 1, 0.7, "test", threads=8), run(0.2, 2, 0.8, "test", threads=8),
    ]  # fmt: skip
    found = digest({"soap": runs})
    own = found["methods"]["soap"]
    assert own["chosen"] == {"lr": 0.2, "weight_decay": 0.1, "score": 0.6}
    assert [(r["lr"], r["score"]) for r in own["search"]] == [(0.1, 0.5), (0.2, 0.6), (0.4, None)]
    assert [(r["seed"], r["score"], r["threads"], r["seconds"]) for r in own["seeds"]] == [
        (1, 0.7, 8, 1.23457), (2, 0.8, 8, 1.23457),
    ]  # fmt: skip
    assert [found["environments"][r["environment"]]["threads"] for r in own["seeds"]] == [8, 8]
    assert len(found["environments"]) == 2

    (tmp_path / "quality.json").write_text(json.dumps({"tasks": {"text": {"old": 1}, "digits": {"old": 2}}}))
    folder = tmp_path / "runs" / "digits" / "soap"
    folder.mkdir(parents=True)
    for i, content in enumerate(runs):
        (folder / f"{i}.json").write_text(json.dumps(content))
    assert collect(tmp_path)["tasks"] == {"text": {"old": 1}, "digits": found}
    assert json.loads((tmp_path / "quality.json").read_text())["tasks"] == {"text": {"old": 1}, "digits": found}


def test_speed_from_end_to_end(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(speed.NETWORKS, "tiny", (lambda: CNN(2), lambda: speed.images(4)))
    words = ["bench", "optim", "speed", "--networks", "tiny", "--methods", "adamw", "muon", "soap", "--threads", "1"]
    assert main([*words, "--rounds", "2", "--block", "3", "--out", str(tmp_path)]) == 0
    assert "threads: 1" in capsys.readouterr().out
    result = json.loads((tmp_path / "speed.json").read_text())
    assert result["threads"] == 1
    rows = result["rows"]
    assert [row["method"] for row in rows] == ["adamw", "muon", "soap"]
    assert all(len(row["blocks"]["step_seconds"]) == 2 for row in rows)
    assert all(0 < row["step_seconds"] < row["training_seconds"] for row in rows)
    assert rows[0]["state_bytes"] == pytest.approx(8 * rows[0]["parameters"], rel=0.05)
    assert main(["bench", "optim", "figures", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "speed.png").exists()
    assert "state, MiB" in capsys.readouterr().out


def test_exponents_are_found():
    slope, error = cost_part.fit([(10, 3.0), (100, 30.0), (1000, 300.0)])
    assert slope == pytest.approx(1)
    assert error == pytest.approx(0, abs=1e-12)
    x = np.arange(1, 9)
    y = x**0.5 * np.exp(0.1 * np.array([1, -1, -1, 1, 1, -1, -1, 1]))
    slope, error = cost_part.fit(list(zip(x.tolist(), y.tolist(), strict=True)))
    covariance = np.polyfit(np.log(x), np.log(y), 1, cov=True)
    assert slope == pytest.approx(covariance[0][0])
    assert error == pytest.approx(covariance[1][0, 0] ** 0.5)


def test_cost_from_end_to_end(tmp_path, monkeypatch, capsys):
    for name, value in {"SIZES": (6, 8, 12), "COLUMNS": (1, 2), "SWEEP": (1, 2, 4), "SWEEP_SIZE": 8}.items():
        monkeypatch.setattr(cost_part, name, value)
    words = ["bench", "optim", "cost", "--rounds", "2", "--block", "1e-4", "--out", str(tmp_path)]
    assert main(words) == 0
    result = json.loads((tmp_path / "cost.json").read_text())
    assert result["threads"] == 1
    measured = [(row["method"], row["d"], row["k"]) for row in result["rows"]]
    assert len(measured) == len(set(measured)) == 3 * (2 * 2 + 1) + 2
    assert ("full power", 8, 4) in measured
    assert ("adamw", 12, None) in measured
    assert all(len(row["blocks"]) == 2 and row["seconds"] > 0 for row in result["rows"])
    fitted = [(e["method"], e["k"], e["in"]) for e in result["exponents"]]
    assert fitted == [
        *((method, k, "weights") for method in ("half power", "full power") for k in (1, 2)),
        ("adamw", None, "weights"), ("half power", None, "k"), ("full power", None, "k"),
    ]  # fmt: skip
    (tmp_path / "cost.png").unlink()
    assert main(["bench", "optim", "figures", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "cost.png").exists()
    assert capsys.readouterr().out.count("Exponents") == 2


def test_what_cannot_be_done_is_said(tmp_path, capsys):
    assert main(["bench", "optim", "figures", "--out", str(tmp_path)]) == 1
    assert "holds no results" in capsys.readouterr().err
    assert main(["bench", "optim", "quality", "--seeds", "0", "--out", str(tmp_path)]) == 1
    assert "that of the search" in capsys.readouterr().err
    assert main(["bench", "optim", "speed", "--block", "0", "--out", str(tmp_path)]) == 1
    assert "--block must be at least 1" in capsys.readouterr().err
    assert main(["bench", "optim", "cost", "--largest", "100", "--out", str(tmp_path)]) == 1
    assert "--largest must be at least 512" in capsys.readouterr().err


def test_the_command_is_cheap_to_import():
    heavy = "{'sklearn', 'matplotlib', 'heavyball', 'sirfshampoo'}"
    code = f"import sys, natgrad.benchmarks; sys.exit(bool({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_shifted_digits_are_the_digits_moved():
    images = torch.zeros(6, 64)
    images[:, 27] = torch.arange(1.0, 7.0)  # one pixel, at (3, 3)
    moved, target = shifted((images, images), torch.Generator().manual_seed(0))
    assert moved is target
    assert torch.equal(moved.sum(1), images.sum(1))
    places = {divmod(int(i), 8) for i in moved.argmax(1)}
    assert places <= {(i, j) for i in (2, 3, 4) for j in (2, 3, 4)}
    assert len(places) > 1
