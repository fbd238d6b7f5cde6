"""NGD outlives what training throws at it: gradients that are no numbers, jump, vanish or hardly have a rank."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import natgrad as ng
from tests.networks import CHOICES, POWERS, same_bits, snapshot

every_choice = pytest.mark.parametrize("choice", CHOICES)
every_power = pytest.mark.parametrize("power", POWERS)

SHAPE = (6, 4)


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def one_entry(value: float) -> Tensor:
    G = randn(*SHAPE, seed=5)
    G[2, 1] = value
    return G


BAD = {
    "zero": torch.zeros(SHAPE),
    "NaN": torch.full(SHAPE, torch.nan),
    "one NaN": one_entry(torch.nan),
    "infinite": torch.full(SHAPE, torch.inf),
    "one minus infinity": one_entry(-torch.inf),
    "both infinities": torch.full(SHAPE, torch.inf) * randn(*SHAPE).sign(),
    "huge": 1e30 * randn(*SHAPE),
    "one huge": one_entry(3e38),
    "tiny": 1e-30 * randn(*SHAPE),
}


def trio(power: str, choice: str = "Blocks", **options) -> tuple[list[nn.Parameter], ng.NGD]:
    params = [nn.Parameter(randn(*shape)) for shape in (SHAPE, SHAPE, (4,))]
    return params, ng.NGD(params, **{"structure": CHOICES[choice], "weight_decay": 0.1, **POWERS[power], **options})


def run(params: list[nn.Parameter], opt: ng.NGD, first: list[Tensor | None]) -> list[dict[str, Tensor]]:
    """Steps with these gradients of the first parameter and the usual ones of the others."""
    for t, G in enumerate(first):
        params[0].grad = None if G is None else G.clone()
        for i, p in enumerate(params[1:]):
            p.grad = randn(*p.shape, seed=100 * t + i)
        opt.step()
    return snapshot(opt)


def without_skipped(state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key: t for key, t in state.items() if key not in ("skipped",)}


@every_power
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_a_bad_gradient_moves_nothing_and_is_counted(power, bad, momentum):
    """Parameter, momentum and factors keep their bits; the others move as if this one were not there."""
    options = {"momentum": momentum, **({"damping": 0.0} if power == "half" else {})}  # its signs go with the first
    good = [randn(*SHAPE, seed=i) for i in range(3)]
    params, opt = trio(power, **options)
    before = run(params, opt, good)
    after = run(params, opt, [BAD[bad], BAD[bad]])
    assert same_bits([without_skipped(before[0])], [without_skipped(after[0])])
    assert [d["skipped"] for d in opt.diagnostics()] == [2, 0, 0]
    assert [d["steps"] for d in opt.diagnostics()] == [3, 5, 5]
    others, alone = trio(power, **options)
    run(others, alone, good)
    for a, b in zip(after[1:], run(others, alone, [None, None])[1:], strict=True):
        for key in a:
            torch.testing.assert_close(a[key], b[key], rtol=1e-5, atol=1e-6)


@every_power
@pytest.mark.parametrize("bad", BAD)
def test_a_bad_first_gradient_only_delays_the_start(power, bad):
    """The first good gradient sets the scale, however many bad ones came before."""
    good = [randn(*SHAPE, seed=i) for i in range(3)]
    runs = []
    for first in ([], [BAD[bad]] * 2):
        p = nn.Parameter(randn(*SHAPE))
        opt = ng.NGD([p], **POWERS[power])
        for G in first + good:
            p.grad = G.clone()
            opt.step()
        runs.append(without_skipped(snapshot(opt)[0]))
    assert opt.diagnostics()[0]["skipped"] == 2
    assert same_bits(*([r] for r in runs))


@every_choice
@every_power
def test_every_structure_skips_what_is_not_finite(choice, power):
    params, opt = trio(power, choice)
    before = run(params, opt, [randn(*SHAPE)])
    after = run(params, opt, [BAD["one NaN"], BAD["infinite"]])
    assert same_bits([without_skipped(before[0])], [without_skipped(after[0])])
    assert opt.diagnostics()[0]["skipped"] == 2


def streams(t: int) -> list[Tensor]:
    """Gradients of step t: jumping by 1e8, with dead rows and columns, of rank one, of one and of many directions."""
    G = randn(*SHAPE, seed=t)
    dead = G.clone()
    dead[1:3], dead[:, 0] = 0.0, 0.0
    return [
        G * 1e4 ** (1 if t % 20 < 10 else -1),
        dead,
        randn(SHAPE[0], 1, seed=t) @ randn(1, SHAPE[1], seed=-t - 1),
        torch.ones(SHAPE),
        torch.outer(torch.arange(1.0, 7), torch.arange(1.0, 5)) * (-1) ** t,
        G * torch.logspace(0, -6, SHAPE[1]),
    ]


def survive(choice: str, power: str, count: int, **options) -> ng.NGD:
    params = [nn.Parameter(torch.zeros(SHAPE)) for _ in streams(0)]
    opt = ng.NGD(params, **{"structure": CHOICES[choice], **POWERS[power], "lr": 1e-3, "damping": 1e-2, **options})
    repeated = [streams(t) for t in range(60)]
    for t in range(count):
        for p, G in zip(params, repeated[t % 60], strict=True):
            p.grad = G
        opt.step()
    return opt


@every_choice
@every_power
def test_factors_stay_well_conditioned(choice, power):
    """Damping bounds the condition of each side, whatever directions never occur."""
    for d in survive(choice, power, 150).diagnostics():
        assert (d["steps"], d["skipped"]) == (150, 0)
        assert max(d["condition"]) < 1e6


@pytest.mark.parametrize("choice", ["Dense", "Diagonal"])
def test_long_runs(choice):
    """Finite, symmetric, positive definite and balanced after many thousand steps."""
    opt = survive(choice, "half", 6000)
    for p in opt.param_groups[0]["params"]:
        state = opt.state[p]
        sizes = []
        for name in ("out_P", "in_P"):
            P = state[name]
            assert torch.equal(P, P.mT)
            assert float(torch.linalg.eigvalsh(P).min()) > 0
            sizes.append(float(P.diagonal(dim1=-2, dim2=-1).mean()))
        assert 0.2 < sizes[0] / sizes[1] < 5
        assert bool(p.isfinite().all())
        assert int(state["step"]) == 6000


@every_power
def test_an_empty_parameter_is_no_trouble(power):
    empty, other = nn.Parameter(torch.zeros(0, 3)), nn.Parameter(torch.ones(3, 3))
    opt = ng.NGD([empty, other], **POWERS[power])
    empty.grad, other.grad = torch.zeros(0, 3), torch.ones(3, 3)
    opt.step()
    assert float(other.detach().max()) < 1


@every_power
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_low_precision_gradients_at_the_end_of_their_range(power, dtype):
    """float16 ends at 6e4 and 6e-8: what is finite there is a gradient like others."""
    for size in (3e4, 1e-6):
        p = nn.Parameter(torch.zeros(SHAPE, dtype=dtype))
        opt = ng.NGD([p], **POWERS[power])
        for t in range(10):
            p.grad = (size * randn(*SHAPE, seed=t).clamp(-2, 2)).to(dtype)
            opt.step()
        assert bool(p.isfinite().all())
        assert opt.diagnostics()[0]["skipped"] == 0
