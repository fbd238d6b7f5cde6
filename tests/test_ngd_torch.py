"""NGD among the rest of torch: groups, closures, schedulers, mixed precision, hooks and the compiler."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler

import natgrad as ng
from tests.networks import POWERS, Zoo, parameters, same_bits, snapshot, train

every_power = pytest.mark.parametrize("power", POWERS)

KINDS = ("matrix", "convolution", "bias", "scalar")


def pair(**options) -> tuple[Zoo, ng.NGD]:
    model = Zoo(kinds=KINDS)
    return model, ng.NGD(model.parameters(), **{**POWERS["half"], **options})


# groups


def test_add_param_group_later():
    """A parameter added later moves from then on as if it had been there, without gradient, from the start."""
    model, other = Zoo(kinds=KINDS), Zoo(kinds=KINDS)
    (first, *rest), (idle, *others) = list(model.parameters()), list(other.parameters())
    opt, whole = ng.NGD(rest, lr=1e-2), ng.NGD([{"params": others}, {"params": [idle], "lr": 1e-3}], lr=1e-2)
    train(model, opt, 2)
    for _ in range(2):
        whole.zero_grad()
        other.backward()
        idle.grad = None
        whole.step()
    opt.add_param_group({"params": first, "lr": 1e-3})
    assert train(model, opt, 3) == train(other, whole, 3)
    assert same_bits(snapshot(opt), snapshot(whole))


def stranger() -> nn.Parameter:
    return nn.Parameter(torch.ones(3, 3))


WRONG_GROUPS: dict[str, tuple[Callable[[ng.NGD], dict], type[Exception]]] = {
    r"parameter 4 of shape \(6, 4\) is the same tensor as parameter 0": (
        lambda opt: {"params": parameters(opt)[0]},
        ValueError,
    ),
    "is the same tensor as parameter 4": (lambda opt: {"params": [x := stranger(), x]}, ValueError),
    r"parameter 5 \(again\) of shape \(5,\) is the same tensor as parameter 2": (
        lambda opt: {"params": [("new", stranger()), ("again", parameters(opt)[2])]},
        ValueError,
    ),
    "parameter 4 must be a tensor or a pair of a name and a tensor, got 3": (lambda opt: {"params": [3]}, TypeError),
    r"parameter 4 of shape \(2,\) is complex": (lambda opt: {"params": torch.ones(2).to(torch.cfloat)}, ValueError),
    "momentum must be a number in": (lambda opt: {"params": stranger(), "momentum": 1.0}, ValueError),
    r"parameter 4 of shape \(3, 3\): .*that 2 divides": (
        lambda opt: {"params": stranger(), "structure": ng.BlockDiagonal(2)},
        ValueError,
    ),
    "can't optimize a non-leaf": (lambda opt: {"params": stranger() * 2}, ValueError),
}


@pytest.mark.parametrize("message", WRONG_GROUPS)
def test_a_group_that_is_refused_leaves_the_optimizer_as_it_was(message):
    make, error = WRONG_GROUPS[message]
    (model, opt), (other, untouched) = pair(), pair()
    train(model, opt, 2)
    train(other, untouched, 2)
    group = make(opt)
    with pytest.raises(error, match=message):
        opt.add_param_group(group)
    assert len(opt.param_groups) == 1
    assert train(model, opt, 2) == train(other, untouched, 2)
    assert same_bits(snapshot(opt), snapshot(untouched))


def test_named_parameters():
    named, plain = Zoo(kinds=KINDS), Zoo(kinds=KINDS)
    by_name, by_order = ng.NGD(named.named_parameters()), ng.NGD(plain.parameters())
    assert by_name.param_groups[0]["param_names"] == [name for name, _ in named.named_parameters()]
    assert train(named, by_name, 3) == train(plain, by_order, 3)


# learning rates and schedules


@every_power
def test_lr_as_a_tensor_is_read_at_each_step(power):
    (model, opt), (other, plain) = (pair(**{**POWERS[power], "lr": lr}) for lr in (torch.tensor(1e-3), 1e-3))
    for lr in (1e-3, 5e-3, 0.0):
        opt.param_groups[0]["lr"].fill_(lr)
        plain.param_groups[0]["lr"] = lr
        train(model, opt, 2)
        train(other, plain, 2)
        for p, q in zip(parameters(opt), parameters(plain), strict=True):
            torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@every_power
def test_lr_zero_leaves_the_parameters(power):
    model, opt = pair(**{**POWERS[power], "lr": 0.0, "beta": 0.1, "weight_decay": 0.1})
    before = [p.detach().clone() for p in model.parameters()]
    train(model, opt, 2)
    assert all(torch.equal(p, old) for p, old in zip(model.parameters(), before, strict=True))


SCHEDULES: dict[str, Callable[[torch.optim.Optimizer], LRScheduler]] = {
    "LambdaLR": lambda opt: lr_scheduler.LambdaLR(opt, lambda i: 0.9**i),
    "MultiplicativeLR": lambda opt: lr_scheduler.MultiplicativeLR(opt, lambda i: 0.9),
    "StepLR": lambda opt: lr_scheduler.StepLR(opt, 2),
    "MultiStepLR": lambda opt: lr_scheduler.MultiStepLR(opt, [1, 3]),
    "ConstantLR": lambda opt: lr_scheduler.ConstantLR(opt, 0.5, 2),
    "LinearLR": lambda opt: lr_scheduler.LinearLR(opt, 0.1, total_iters=3),
    "ExponentialLR": lambda opt: lr_scheduler.ExponentialLR(opt, 0.9),
    "PolynomialLR": lambda opt: lr_scheduler.PolynomialLR(opt, 4),
    "CosineAnnealingLR": lambda opt: lr_scheduler.CosineAnnealingLR(opt, 4),
    "CosineAnnealingWarmRestarts": lambda opt: lr_scheduler.CosineAnnealingWarmRestarts(opt, 2),
    "CyclicLR": lambda opt: lr_scheduler.CyclicLR(opt, 1e-4, 1e-2, 2),
    "OneCycleLR": lambda opt: lr_scheduler.OneCycleLR(opt, 1e-2, total_steps=9),
    "ReduceLROnPlateau": lambda opt: lr_scheduler.ReduceLROnPlateau(opt, patience=0, threshold=10.0),
    "SequentialLR": lambda opt: lr_scheduler.SequentialLR(
        opt, [lr_scheduler.LinearLR(opt, 0.1), lr_scheduler.ExponentialLR(opt, 0.9)], [2]
    ),
    "ChainedScheduler": lambda opt: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(opt), lr_scheduler.ExponentialLR(opt, 0.9)]
    ),
}


def test_the_list_of_schedules_is_that_of_torch():
    found = {name for name in lr_scheduler.__all__ if inspect.isclass(getattr(lr_scheduler, name))}
    assert found - {"LRScheduler"} == set(SCHEDULES)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("make", [float, torch.tensor], ids=["number", "tensor"])
def test_schedules_change_what_steps_do(name, make):
    """Each step is that of an optimizer whose lr and momentum are set by hand to what the schedule says."""
    (model, opt), (other, by_hand) = pair(lr=make(1e-3)), pair()
    schedule = SCHEDULES[name](opt)
    seen = set()
    for _ in range(4):
        now = opt.param_groups[0]
        seen.add(float(now["lr"]))
        by_hand.param_groups[0].update(lr=float(now["lr"]), momentum=now["momentum"])
        loss, _ = train(model, opt, 1)[0], train(other, by_hand, 1)
        schedule.step(loss) if name == "ReduceLROnPlateau" else schedule.step()
    assert len(seen) > 1
    for p, q in zip(parameters(opt), parameters(by_hand), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("make", [SCHEDULES["OneCycleLR"], SCHEDULES["CyclicLR"]], ids=["OneCycleLR", "CyclicLR"])
def test_momentum_is_cycled(make):
    model, opt = pair()
    schedule, seen = make(opt), set()
    for _ in range(3):
        train(model, opt, 1)
        schedule.step()
        seen.add(opt.param_groups[0]["momentum"])
    assert len(seen) > 1


# steps


@every_power
def test_closures(power):
    """The loss comes back; gradients are on inside, even if they are off outside; it is called once."""
    (model, opt), (other, plain) = (pair(**POWERS[power]) for _ in range(2))
    calls = []

    def closure():
        assert torch.is_grad_enabled()
        opt.zero_grad()
        calls.append(model.backward())
        return calls[-1]

    with torch.no_grad():
        found = [opt.step(closure) for _ in range(3)]
    assert [float(loss) for loss in found] == train(other, plain, 3)
    assert len(calls) == 3
    assert opt.step() is None


def test_hooks_of_the_step_fire_in_order():
    model, opt = pair()
    fired: list[str] = []
    opt.register_step_pre_hook(lambda o, args, kwargs: fired.append("before"))
    opt.register_step_post_hook(lambda o, args, kwargs: fired.append("after"))
    train(model, opt, 2)
    assert fired == ["before", "after"] * 2


@every_power
def test_inference_outside_and_training_inside_agree(power):
    """A step needs no graph and leaves none."""
    model, opt = pair(**POWERS[power])
    train(model, opt, 2)
    assert all(p.is_leaf and p.grad_fn is None for p in model.parameters())
    assert all(not t.requires_grad for p in parameters(opt) for t in opt.state[p].values())


# mixed precision


@every_power
def test_grad_scaler_skips_a_step_with_infinities(power):
    model, opt = pair(**POWERS[power])
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    for i in range(4):
        opt.zero_grad()
        scaler.scale(torch.stack(list(model.losses().values())).sum()).backward()
        if i == 2:
            next(model.parameters()).grad.fill_(torch.inf)
        before = snapshot(opt)
        scaler.step(opt)
        scaler.update()
        assert same_bits(snapshot(opt), before) == (i == 2)
    assert scaler.get_scale() == 2.0**9
    assert {int(opt.state[p]["step"]) for p in parameters(opt)} == {3}


@every_power
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(power, dtype):
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for p in model.parameters():
            nn.init.normal_(p)
        x = torch.randn(16, 4)
    opt = ng.NGD(model.parameters(), **POWERS[power])
    losses = []
    for _ in range(20):
        opt.zero_grad()
        with torch.autocast("cpu", dtype):
            loss = (model(x) - x[:, :2]).square().mean()
        loss.backward()
        opt.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.9 * losses[0]
    assert {t.dtype for p in parameters(opt) for t in opt.state[p].values()} == {torch.float32}


# the compiler


@pytest.mark.parametrize("structure", [ng.Blocks(), ng.Diagonal()], ids=str)
def test_compiled_steps_agree_and_are_compiled_once(structure):
    options = {**POWERS["half"], "structure": structure}
    model, other = (Zoo(kinds=("matrix", "bias")) for _ in range(2))
    opt, plain = (ng.NGD(m.parameters(), **options) for m in (model, other))
    opt.param_groups[0]["lr"] = torch.tensor(1e-3)
    torch._dynamo.reset()
    graphs = []

    def backend(graph, inputs):
        graphs.append(graph)
        return graph.forward

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the compiler's own
        step = torch.compile(opt.step, backend=backend)
        for i in range(7):
            opt.param_groups[0]["lr"].fill_(1e-3 / (1 + i))
            plain.param_groups[0]["lr"] = 1e-3 / (1 + i)
            opt.zero_grad()
            model.backward()
            step()
            train(other, plain, 1)
            if i == 2:
                warm = len(graphs)
    assert 0 < warm == len(graphs)
    for p, q in zip(parameters(opt), parameters(plain), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-4, atol=1e-5)
