"""What torch wants of every optimizer: over all structures, powers, dtypes and kinds of parameters."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from torch import Tensor, nn

import natgrad as ng
from tests.networks import CHOICES, DTYPES, POWERS, Zoo, on_sides, parameters, same_bits, snapshot, steps, train

every_choice = pytest.mark.parametrize("choice", CHOICES)
every_power = pytest.mark.parametrize("power", POWERS)
every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)

FEW = ("matrix", "convolution", "bias", "scalar", "row")


def optimizer_of(model: nn.Module, choice: str = "Blocks", power: str = "half", **options) -> ng.NGD:
    return ng.NGD(model.parameters(), **{"structure": CHOICES[choice], **POWERS[power], **options})


@every_choice
@every_power
@every_dtype
def test_every_kind_of_parameter_learns(choice, power, dtype):
    """Each kind's own loss falls; the state is of plain tensors, float64 beside float64 and float32 beside the rest."""
    model = Zoo(dtype)
    opt = optimizer_of(model, choice, power)
    before = {kind: float(loss.detach()) for kind, loss in model.losses().items()}
    train(model, opt, 6)
    after = {kind: float(loss.detach()) for kind, loss in model.losses().items()}
    assert [kind for kind in before if after[kind] >= 0.99 * before[kind]] == []
    wanted = torch.float64 if dtype == torch.float64 else torch.float32
    for p in model.parameters():
        assert p.dtype == dtype
        state = opt.state[p]
        assert all(type(t) is Tensor and not t.requires_grad and bool(t.isfinite().all()) for t in state.values())
        assert {t.dtype for key, t in state.items() if key not in ("step", "skipped")} == {wanted}
        assert (int(state["step"]), int(state["skipped"])) == (6, 0)


@every_power
def test_memory_format_stays(power):
    model = Zoo(kinds=("channels last",))
    (p,) = model.parameters()
    strides = p.stride()
    train(model, optimizer_of(model, power=power), 3)
    assert p.is_contiguous(memory_format=torch.channels_last)
    assert p.stride() == strides


@every_choice
@every_power
def test_two_equal_runs_give_equal_bits(choice, power):
    runs = []
    for _ in range(2):
        model = Zoo(kinds=FEW)
        opt = optimizer_of(model, choice, power)
        losses = train(model, opt, 5)
        runs.append((losses, snapshot(opt)))
    assert runs[0][0] == runs[1][0]
    assert same_bits(runs[0][1], runs[1][1])


@every_choice
@every_power
@pytest.mark.parametrize("shape", [(4, 6), (6, 2, 2), (5,), ()], ids=str)
def test_a_row_of_equal_parameters_moves_as_each_alone(choice, power, shape):
    random = torch.Generator().manual_seed(0)
    together = [nn.Parameter(torch.randn(shape, generator=random)) for _ in range(5)]
    apart = copy.deepcopy(together)
    options = {"structure": CHOICES[choice], "weight_decay": 0.1, **POWERS[power]}
    optimizers = [ng.NGD(together, **options), *(ng.NGD([p], **options) for p in apart)]
    for _ in range(4):
        for p, q in zip(together, apart, strict=True):
            p.grad = torch.randn(shape, generator=random) * 10 ** torch.randn((), generator=random)
            q.grad = p.grad.clone()
        for opt in optimizers:
            opt.step()
    for p, q, opt in zip(together, apart, optimizers[1:], strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
        for key, t in opt.state[q].items():
            torch.testing.assert_close(optimizers[0].state[p][key], t, rtol=1e-3, atol=1e-4)


@every_power
def test_groups_have_options_of_their_own(power):
    """Each group moves as an optimizer with its options alone."""
    options = [
        {"lr": 1e-2, "structure": ng.Lower(1), "momentum": 0.5},
        {"lr": 1e-3, "power": 1, "damping": 0.5, "beta": 0.1, "weight_decay": 0.1, "samples": 3.0},
        {"lr": 2e-3, "power": 0.5, "structure": ng.Diagonal(), "weight_decay": 0.3, "gamma": 2.0, "update_every": 2},
        {"lr": 3e-3, "maximize": True, "momentum": 0.0, "power": 0.5},
    ]
    kinds = ("matrix", "convolution", "column", "bias")
    one, many = Zoo(kinds=kinds), Zoo(kinds=kinds)
    groups = [{"params": list(m.parameters()), **o} for m, o in zip(one.kinds, options, strict=True)]
    together = ng.NGD(groups, **POWERS[power])
    alone = [ng.NGD(m.parameters(), **{**POWERS[power], **o}) for m, o in zip(many.kinds, options, strict=True)]
    for _ in range(5):
        for model in (one, many):
            model.zero_grad()
            model.backward()
        for opt in (together, *alone):
            opt.step()
    assert same_bits(snapshot(together), [s for opt in alone for s in snapshot(opt)])


def test_zero_grad():
    model = Zoo(kinds=FEW)
    opt = optimizer_of(model)
    model.backward()
    opt.zero_grad(set_to_none=False)
    assert all(p.grad is not None and not p.grad.any() for p in model.parameters())
    opt.zero_grad()
    assert all(p.grad is None for p in model.parameters())


@every_power
def test_a_parameter_without_gradient_stays_and_has_no_state(power):
    model = Zoo(kinds=FEW)
    opt = optimizer_of(model, power=power, weight_decay=0.1)
    idle = next(iter(model.parameters()))
    before = idle.detach().clone()
    for _ in range(3):
        opt.zero_grad()
        model.backward()
        idle.grad = None
        opt.step()
    assert torch.equal(idle, before)
    assert idle not in opt.state
    assert opt.memory()[0] == 0
    assert opt.diagnostics()[0]["steps"] == 0


def test_a_step_without_any_gradient_does_nothing():
    model = Zoo(kinds=FEW)
    opt = optimizer_of(model, update_every=2)
    opt.step()
    assert not opt.state


def test_sparse_gradients_are_refused_and_nothing_changes():
    model = Zoo(kinds=("matrix", "bias", "embedding", "row"))
    opt = optimizer_of(model)
    train(model, opt, 3)
    before = snapshot(opt)
    model.kinds[2].weight.grad = model.kinds[2].weight.grad.to_sparse()
    with pytest.raises(ValueError, match=r"parameter 2 .*of shape \(5, 3\) has a sparse gradient.*SparseAdam"):
        opt.step()
    assert same_bits(snapshot(opt), before)


def test_an_embedding_with_sparse_gradients_is_refused_in_the_first_step():
    table, other = nn.Embedding(5, 3, sparse=True), nn.Parameter(torch.ones(2, 2))
    opt = ng.NGD([other, table.weight])
    (table(torch.tensor([1, 2])).sum() + other.sum()).backward()
    with pytest.raises(ValueError, match=r"parameter 1 .*\(5, 3\)"):
        opt.step()
    assert torch.equal(other, torch.ones(2, 2))
    assert table.weight not in opt.state


def test_accumulated_gradients_are_those_of_the_sum():
    runs = []
    for times in (1, 4):
        model = Zoo(torch.float64, kinds=FEW)
        opt = optimizer_of(model)
        for _ in range(4):
            opt.zero_grad()
            for _ in range(times):
                (torch.stack(list(model.losses().values())).sum() / times).backward()
            opt.step()
        runs.append(snapshot(opt))
    for a, b in zip(*runs, strict=True):
        for key in a:
            torch.testing.assert_close(a[key], b[key], rtol=1e-9, atol=1e-12)


@every_power
def test_clipped_gradients(power):
    model = Zoo(kinds=FEW)
    opt = optimizer_of(model, power=power)
    before = float(model.backward())
    for _ in range(6):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1, error_if_nonfinite=True)
        opt.step()
        opt.zero_grad()
        after = float(model.backward())
    assert after < before


@every_power
def test_maximize_is_to_minimize_the_negative(power):
    runs = []
    for maximize in (False, True):
        model = Zoo(kinds=FEW)
        opt = optimizer_of(model, power=power, maximize=maximize)
        for _ in range(5):
            opt.zero_grad()
            loss = torch.stack(list(model.losses().values())).sum()
            (-loss if maximize else loss).backward()
            opt.step()
        runs.append(snapshot(opt))
    assert same_bits(*runs)


@every_power
def test_gradients_and_global_randomness_are_only_read(power):
    model = Zoo(kinds=FEW)
    opt = optimizer_of(model, power=power, maximize=True)
    random = torch.random.get_rng_state()
    for _ in range(3):
        opt.zero_grad()
        model.backward()
        before = [p.grad.clone() for p in model.parameters()]
        opt.step()
        assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), before, strict=True))
    assert torch.equal(torch.random.get_rng_state(), random)
    assert all(p.requires_grad for p in model.parameters())


@pytest.mark.parametrize("every", [1, 2, 3])
@every_power
def test_S_moves_in_the_first_step_and_every_so_often(every, power):
    model = Zoo(kinds=("matrix",))
    opt = optimizer_of(model, power=power, update_every=every)
    (p,) = parameters(opt)
    moved, factor = [], None
    for _ in steps(model, opt, 6):
        now = next(t for key, t in opt.state[p].items() if key.startswith("in_"))
        moved.append(factor is None or not torch.equal(now, factor))
        factor = now.clone()
    assert moved == [i % every == 0 for i in range(6)]


def test_memory_is_that_of_the_tensors():
    model = Zoo(kinds=("matrix", "bias"))
    opt = optimizer_of(model, choice="Dense")
    assert opt.memory() == [0, 0]
    train(model, opt, 1)
    held = [sum(4 * t.numel() for t in opt.state[p].values()) for p in parameters(opt)]
    assert opt.memory() == [d["bytes"] for d in opt.diagnostics()] == held
    matrix = 4 * (6 * 6 + 4 * 4 + 6 * 4)  # both factors and momentum, besides a few counts
    assert matrix < held[0] < matrix + 40


def test_the_structure_is_chosen_by_the_shape():
    seen = []

    def choose(shape):
        seen.append(shape)
        return (ng.Lower(1), ng.Diagonal()) if len(shape) > 1 else ng.Diagonal()

    model = Zoo(kinds=("matrix", "convolution", "bias", "scalar"))
    opt = optimizer_of(model, structure=choose)
    train(model, opt, 1)
    assert set(seen) == {(6, 4), (3, 2, 2, 2), (5,), ()}
    assert [d["structure"] for d in opt.diagnostics()[:3]] == [(ng.Lower(1), ng.Diagonal())] * 2 + [(ng.Diagonal(),)]


@pytest.mark.parametrize("shape", [(6, 4), (3, 2, 2, 2), (4, 1), (1, 4), (5,), ()], ids=str)
def test_the_first_step_has_the_size_of_lr(shape):
    """At half power, whatever the gradient: the root mean square lr sqrt(256 / in) of a matrix, lr of one column."""
    p = nn.Parameter(torch.zeros(shape))
    p.grad = 1e-4 * torch.randn(shape, generator=torch.Generator().manual_seed(0))
    ng.NGD([p], lr=1e-2, structure=functools.partial(on_sides, name="Dense")).step()
    wanted = 1e-2 * (256 / p[0].numel()) ** 0.5 if p.ndim > 1 and p[0].numel() > 1 else 1e-2
    assert float(p.detach().square().mean().sqrt()) == pytest.approx(wanted, rel=1e-4)


def test_groups_of_equal_shapes_have_powers_of_their_own():
    params, alone = ([nn.Parameter(torch.ones(3, 2)) for _ in POWERS] for _ in range(2))
    together = ng.NGD([{"params": p, **options} for p, options in zip(params, POWERS.values(), strict=True)])
    each = [ng.NGD([p], **options) for p, options in zip(alone, POWERS.values(), strict=True)]
    for t in range(3):
        for p in params + alone:
            p.grad = torch.arange(6.0).reshape(3, 2) - t
        for opt in (together, *each):
            opt.step()
    assert same_bits(snapshot(together), [s for opt in each for s in snapshot(opt)])
