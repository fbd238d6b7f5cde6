"""Cases at the edges: what stands still, overflows, runs under autocast, or was saved by something else."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import natgrad as ng
from tests.networks import POWERS, Zoo, parameters, same_bits, snapshot, train

KINDS = ("matrix", "convolution", "embedding", "bias")


def pair(**options):
    model = Zoo(kinds=KINDS)
    return model, ng.NGD(model.parameters(), **{**POWERS["half"], **options})


@pytest.mark.parametrize("frozen", [False, True])
def test_damping_does_not_wait_for_a_parameter_that_stands_still(frozen):
    """The first parameter's gradient is always zero: the signs of the others must go on."""
    first, p = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.zeros(8, 8))
    opt = ng.NGD([first, p] if frozen else [p])
    for _ in range(2000):
        first.grad, p.grad = torch.zeros(2, 2), torch.ones(8, 8)
        opt.step()
    assert max(opt.diagnostics()[-1]["condition"]) < 1e4


@pytest.mark.parametrize("structure", [ng.Dense(), ng.Lower(1)], ids=str)
def test_a_jump_beyond_all_squares_leaves_momentum_too(structure):
    """A finite gradient whose direction overflows is skipped as a whole, and the next one is as if it had not been."""
    p = nn.Parameter(torch.ones(6, 4))
    opt = ng.NGD([p], structure=structure)
    for scale in (1e-15, 1e-15, 1e15):
        before = snapshot(opt)[0]
        p.grad = scale * torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
        opt.step()
    assert opt.diagnostics()[0]["skipped"] == 1
    assert all(torch.equal(before[k], t) for k, t in snapshot(opt)[0].items() if k != "skipped")


def test_sparse_gradients_in_a_later_group_move_nothing():
    """All groups are looked at before the first one moves, and no count of steps goes on."""
    model = Zoo(kinds=KINDS)
    opt = ng.NGD([{"params": [p]} for p in model.parameters()], update_every=2)
    train(model, opt, 3)
    before, groups = snapshot(opt), copy.deepcopy(opt.state_dict()["param_groups"])
    table = parameters(opt)[2]
    table.grad = table.grad.to_sparse()
    with pytest.raises(ValueError, match=r"of shape \(5, 3\) has a sparse gradient"):
        opt.step()
    assert same_bits(snapshot(opt), before)
    assert opt.state_dict()["param_groups"] == groups


@pytest.mark.parametrize("power", POWERS)
@pytest.mark.parametrize("structure", [ng.Dense(), ng.Lower(1)], ids=str)
def test_a_step_under_autocast_is_the_same_step(power, structure):
    (model, opt), (other, plain) = (
        pair(**{**POWERS[power], "structure": structure}),
        pair(**{**POWERS[power], "structure": structure}),
    )
    for _ in range(3):
        for m, o, on in ((model, opt, True), (other, plain, False)):
            o.zero_grad()
            m.backward()
            with torch.autocast("cpu", torch.bfloat16, enabled=on):
                o.step()
    assert same_bits(snapshot(opt), snapshot(plain))


def test_full_power_compiles():
    torch._dynamo.reset()
    p = nn.Parameter(torch.ones(3, 2))
    opt = ng.NGD([p], power=1, structure=ng.Dense())
    p.grad = torch.ones(3, 2)
    torch.compile(opt.step, backend="eager")()


def edited(change):
    model, opt = pair()
    train(model, opt, 2)
    found = copy.deepcopy(opt.state_dict())
    change(found)
    return found


ADAM = torch.optim.Adam(Zoo(kinds=KINDS).parameters()).state_dict()
BROKEN = {
    "no factor": lambda s: s["state"][0].pop("out_P"),
    "no step": lambda s: s["state"][0].pop("step"),
    "factor of another shape": lambda s: s["state"][0].update(out_P=torch.eye(3)[None]),
    "momentum of another shape": lambda s: s["state"][0].update(momentum=torch.ones(3, 3)),
    "momentum that would broadcast": lambda s: s["state"][0].update(momentum=torch.ones(1, 4)),
    "unknown state": lambda s: s["state"][0].update(exp_avg=torch.ones(6, 4)),
    "no tensor": lambda s: s["state"][0].update(out_P=3.0),
    "bad option": lambda s: s["param_groups"][0].update(lr=-1.0),
    "no option": lambda s: s["param_groups"][0].pop("gamma"),
    "no structure": lambda s: s["param_groups"][0].pop("structure"),
    "fewer structures": lambda s: s["param_groups"][0]["structure"].pop(),
    "no state": lambda s: s.pop("state"),
    "no groups": lambda s: s.pop("param_groups"),
    "of another optimizer": lambda s: s.update(copy.deepcopy(ADAM)),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_state_that_does_not_fit_is_refused(name):
    (model, opt), (other, untouched) = pair(), pair()
    train(model, opt, 2)
    train(other, untouched, 2)
    with pytest.raises(ValueError, match="state"):
        opt.load_state_dict(edited(BROKEN[name]))
    assert train(model, opt, 2) == train(other, untouched, 2)
    assert same_bits(snapshot(opt), snapshot(untouched))


def test_sets_have_no_order():
    p = nn.Parameter(torch.ones(2))
    with pytest.raises(TypeError, match="order"):
        ng.NGD([{"params": {p}}])


def test_a_list_is_no_pair_of_structures():
    with pytest.raises(ValueError, match=r"parameter 0 of shape \(2, 3\): expected a structure, a pair"):
        ng.NGD([nn.Parameter(torch.ones(2, 3))], structure=[ng.Dense(), ng.Dense()])


def test_a_class_is_no_structure():
    with pytest.raises(ValueError, match=r"parameter 0 of shape \(2, 3\): expected a structure.*got .*Dense"):
        ng.NGD([nn.Parameter(torch.ones(2, 3))], structure=ng.Dense)


def test_structures_that_change_their_mind():
    """A function of the shape that answers anew each time, as a lambda in a sweep does, is asked once."""
    answers = iter([ng.Dense(), ng.Diagonal(), ng.Diagonal()])
    p = nn.Parameter(torch.ones(2, 3))
    opt = ng.NGD([p], structure=lambda shape: next(answers))
    p.grad = torch.ones(2, 3)
    opt.step()
    assert opt.diagnostics()[0]["structure"] == (ng.Dense(), ng.Dense())


@pytest.mark.parametrize("every", [1, 2, 3, 4, 8])
def test_damping_reaches_all_directions_however_rarely_S_moves(every):
    """The steps at which S moves see all signs, not those of every other step alone."""
    p = nn.Parameter(torch.zeros(8, 8))
    opt = ng.NGD([p], update_every=every)
    for _ in range(600 * every):
        p.grad = torch.ones(8, 8)
        opt.step()
    assert max(opt.diagnostics()[0]["condition"]) < 1e5


@pytest.mark.parametrize("options", [{}, {"damping": 0.0}, {"power": 1, "structure": ng.Lower(1)}], ids=str)
@pytest.mark.parametrize("first", [1e-20, 1.0])
def test_no_gradient_leaves_a_state_that_is_not_finite(options, first):
    """Not a tiny first one, not one that jumps by 1e12, not one that is always in one corner, without damping."""
    p = nn.Parameter(torch.zeros(8, 8))
    opt = ng.NGD([p], **options)
    for t in range(400):
        g = torch.randn(8, 8, generator=torch.Generator().manual_seed(t))
        g = g * (first if t == 0 else 1e12 if t == 5 else 1.0)
        p.grad = g if options != {"damping": 0.0} else torch.zeros(8, 8).index_fill(0, torch.tensor(0), 1.0)
        opt.step()
        assert all(bool(x.isfinite().all()) for x in [p.detach(), *opt.state[p].values()])
    assert float(opt.state[p]["skipped"]) <= 1


def test_decay_of_low_precision_is_not_rounded_by_itself():
    """In bfloat16 the factor 1 - lr weight_decay alone would be 1, or twice as far from it."""
    p, exact = nn.Parameter(torch.full((64, 64), 1.9, dtype=torch.bfloat16)), nn.Parameter(torch.full((64, 64), 1.9))
    opts = [ng.NGD([q], lr=2e-2, weight_decay=0.9) for q in (p, exact)]
    for t in range(20):
        for q, opt in zip((p, exact), opts, strict=True):
            q.grad = torch.randn(64, 64, generator=torch.Generator().manual_seed(t)).to(q.dtype)
            opt.step()
    assert float(p.detach().float().mean()) == pytest.approx(float(exact.detach().mean()), rel=0.02)


def test_structure_and_power_do_not_change_in_flight():
    for change in ({"power": 1}, {"structure": ng.Lower(1)}, {"structure": ng.BlockDiagonal(2)}):
        p = nn.Parameter(torch.ones(6, 6))
        opt = ng.NGD([p], structure=ng.Dense())
        p.grad = torch.ones(6, 6)
        opt.step()
        before = snapshot(opt)
        opt.param_groups[0].update(change)
        with pytest.raises(ValueError, match="neither may change"):
            opt.step()
        assert same_bits(snapshot(opt), before)


def test_momentum_starts_anew_after_none():
    """What was averaged before momentum was switched off is not mixed in later."""
    p = nn.Parameter(torch.ones(6, 4))
    opt = ng.NGD([p])
    for momentum in (0.9, 0.0, 0.9):
        opt.param_groups[0]["momentum"] = momentum
        p.grad = torch.ones(6, 4)
        opt.step()
        assert ("momentum" in opt.state[p]) == (momentum > 0)
    torch.testing.assert_close(opt.state[p]["momentum"], torch.full((6, 4), 0.1))
