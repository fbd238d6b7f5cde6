"""The one list of kinds of parameters, of structures on their sides and of powers, for the tests of the optimizer.

A `Zoo` has one parameter of every kind, each with a convex loss of its own, computed in float64 whatever their dtype.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

import natgrad as ng
from natgrad.groups import Structure


class Shift(nn.Module):
    """x + b, the bias alone."""

    def __init__(self, *shape: int):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(shape))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.bias


class Tied(nn.Module):
    """One weight in two places."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 3, bias=False), nn.Linear(4, 3, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.first(x) + self.second(x.flip(-1))


def channels_last() -> nn.Module:
    return nn.Conv2d(2, 3, 2, bias=False).to(memory_format=torch.channels_last)


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {  # a module and the shape of its input
    "matrix": (lambda: nn.Linear(4, 6, bias=False), (8, 4)),
    "convolution": (lambda: nn.Conv2d(2, 3, 2, bias=False), (2, 2, 4, 4)),
    "depthwise": (lambda: nn.Conv2d(4, 4, 2, groups=4, bias=False), (2, 4, 4, 4)),
    "grouped": (lambda: nn.Conv2d(4, 2, 2, groups=2, bias=False), (2, 4, 4, 4)),
    "pointwise": (lambda: nn.Conv2d(4, 3, 1, bias=False), (2, 4, 3, 3)),
    "volume": (lambda: nn.Conv3d(2, 2, (2, 1, 2), bias=False), (2, 2, 3, 3, 3)),
    "embedding": (lambda: nn.Embedding(5, 3), (12,)),
    "bias": (lambda: Shift(5), (8, 5)),
    "scalar": (lambda: Shift(), (8,)),
    "row": (lambda: nn.Linear(4, 1, bias=False), (8, 4)),
    "column": (lambda: nn.Linear(1, 4, bias=False), (8, 1)),
    "single": (lambda: nn.Linear(1, 1, bias=False), (8, 1)),
    "tied": (Tied, (8, 4)),
    "channels last": (channels_last, (2, 2, 4, 4)),
}


class Zoo(nn.Module):
    """One module of every kind, and data of a teacher alike."""

    def __init__(self, dtype: torch.dtype = torch.float32, kinds: tuple[str, ...] = tuple(KINDS), seed: int = 0):
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.names = kinds
            self.kinds = nn.ModuleList(KINDS[kind][0]() for kind in kinds).to(dtype)
            self.data = [self._data(kind) for kind in kinds]

    def _data(self, kind: str) -> tuple[Tensor, Tensor]:
        make, shape = KINDS[kind]
        teacher = make().double()
        x = torch.randint(5, shape) if kind == "embedding" else torch.randn(shape, dtype=torch.float64)
        return x, teacher(x).detach()

    def losses(self) -> dict[str, Tensor]:
        found = {}
        for name, module, (x, y) in zip(self.names, self.kinds, self.data, strict=True):
            weights = {key: p.double() for key, p in module.named_parameters()}
            found[name] = (torch.func.functional_call(module, weights, (x,)) - y).square().mean()
        return found

    def backward(self) -> Tensor:
        loss = torch.stack(list(self.losses().values())).sum()
        loss.backward()
        return loss.detach()


def conjugated(d: int) -> Structure:
    return ng.Conjugate(ng.Lower(1), list(reversed(range(d))))


def rotated(d: int) -> Structure:
    Q = torch.linalg.qr(torch.randn(d, d, dtype=torch.float64, generator=torch.Generator().manual_seed(d)))[0]
    return ng.Conjugate(ng.Lower(min(d, 2)), Q.numpy())


def chain(d: int) -> Structure:
    i = torch.arange(d)
    return ng.SparseCholesky(((i[:, None] - i).abs() <= 1).double().numpy())


SIDES: dict[str, Callable[[int], Structure]] = {  # every structure that can be on a side, for a side of size d
    "Dense": lambda d: ng.Dense(),
    "Diagonal": lambda d: ng.Diagonal(),
    "BlockDiagonal": lambda d: ng.BlockDiagonal(next((s for s in range(2, d) if d % s == 0), d)),
    "Lower": lambda d: ng.Lower(min(d, 2)),
    "Lower, Heisenberg": lambda d: ng.Lower(1, min(d - 1, 1)),
    "Upper": lambda d: ng.Upper(min(d, 2)),
    "Toeplitz": lambda d: ng.Toeplitz(),
    "Toeplitz, upper": lambda d: ng.Toeplitz(upper=True),
    "Circulant": lambda d: ng.Circulant(),
    "Conjugate by a permutation": conjugated,
    "Conjugate by an orthogonal matrix": rotated,
    "SparseCholesky": chain,
}


def on_sides(shape: tuple[int, ...], name: str) -> Structure | tuple[Structure, Structure]:
    """A function of the shape: the structure of this name on every side."""
    if len(shape) < 2:
        return SIDES[name](shape[0] if shape else 1)
    return SIDES[name](shape[0]), SIDES[name](torch.Size(shape[1:]).numel())


CHOICES: dict[str, Any] = {  # every form that the argument `structure` takes
    **{name: functools.partial(on_sides, name=name) for name in SIDES},
    "one for both": ng.Lower(1),
    "a pair": (ng.Dense(), ng.Lower(1)),
    "Kronecker": ng.Kronecker(ng.Diagonal(), ng.Dense()),
    "Blocks": ng.Blocks(),
    "small Blocks": ng.Blocks(4),
}

# at full power the direction is like 1 / gradient, which needs a damping where the gradient vanishes
POWERS: dict[str, dict[str, Any]] = {
    "half": {"power": 0.5, "lr": 5e-3, "damping": 1e-2},
    "full": {"power": 1, "lr": 5e-2, "damping": 1.0},
}

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


def steps(model: Zoo, optimizer: torch.optim.Optimizer, count: int) -> Iterator[float]:
    for _ in range(count):
        optimizer.zero_grad()
        loss = model.backward()
        optimizer.step()
        yield float(loss)


def train(model: Zoo, optimizer: torch.optim.Optimizer, count: int) -> list[float]:
    return list(steps(model, optimizer, count))


def parameters(optimizer: torch.optim.Optimizer) -> list[Tensor]:
    return [p for group in optimizer.param_groups for p in group["params"]]


def snapshot(optimizer: torch.optim.Optimizer) -> list[dict[str, Tensor]]:
    """Copies of each parameter and its state."""
    return [
        {"parameter": p.detach().clone(), **{key: t.clone() for key, t in optimizer.state.get(p, {}).items()}}
        for p in parameters(optimizer)
    ]


def same_bits(a: list[dict[str, Tensor]], b: list[dict[str, Tensor]]) -> bool:
    return len(a) == len(b) and all(
        s.keys() == t.keys() and all(s[key].dtype == t[key].dtype and torch.equal(s[key], t[key]) for key in s)
        for s, t in zip(a, b, strict=True)
    )
