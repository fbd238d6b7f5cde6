"""The optimizers compared: how each one is made, and what its settings are searched over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import nn
from torch.optim import Optimizer

from natgrad.benchmarks.optim.muon import Muon, split
from natgrad.benchmarks.optim.shampoo import Shampoo
from natgrad.benchmarks.optim.soap import SOAP
from natgrad.plots import BLUE, GREY, ORANGE


@dataclass(frozen=True)
class Method:
    """The grids have the same number of points for all methods, so that each is searched with the same budget."""

    make: Callable[[nn.Module, float, float], Optimizer]  # network, learning rate, decoupled weight decay
    color: str
    lrs: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3)
    weight_decays: tuple[float, ...] = (0.1, 1.0)
    package: str = ""  # a published one that it needs
    searched: bool = True  # no: for timings only, as another method does the same steps

    @property
    def missing(self) -> str:
        """What has to be installed for it, or nothing."""
        if not self.package or find_spec(self.package):
            return ""
        return f'needs {self.package}: pip install "natgrad[peers]"'


def natgrad(network: nn.Module, lr: float, weight_decay: float) -> Optimizer:
    from natgrad import NGD

    return NGD(network.parameters(), lr=lr, weight_decay=weight_decay)


def natgrad_small(network: nn.Module, lr: float, weight_decay: float) -> Optimizer:
    """The choice for little memory."""
    from natgrad import NGD, Blocks

    return NGD(network.parameters(), lr=lr, weight_decay=weight_decay, structure=Blocks(64))


def adamw(network: nn.Module, lr: float, weight_decay: float) -> Optimizer:
    return torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=weight_decay, foreach=True)


def adamw_fused(network: nn.Module, lr: float, weight_decay: float) -> Optimizer:
    return torch.optim.AdamW(network.parameters(), lr=lr, weight_decay=weight_decay, fused=True)


def muon(network: nn.Module, lr: float, weight_decay: float) -> Optimizer:
    """As first published but for the momentum: 0.95 was a little worse in trials of this length.

    The learning rate is AdamW's; Muon's is 16 times as large (0.02 as published goes with 1.25e-3), its weight decay as
    much smaller, so that both shrink their weights alike.
    """
    matrices, others = split(network)
    optimizer = Muon(matrices, others, lr=16 * lr, momentum=0.9, scaling="original", adam_ratio=1 / 16)
    for group in optimizer.param_groups:
        group["weight_decay"] = weight_decay / 16 if group["muon"] else weight_decay
    return optimizer


def soap(network: nn.Module, lr: float, weight_decay: float) -> Optimizer:
    return SOAP(network.parameters(), lr=lr, weight_decay=weight_decay)


def shampoo(network: nn.Module, lr: float, weight_decay: float) -> Optimizer:
    return Shampoo(network.parameters(), lr=lr, weight_decay=weight_decay)


def psgd(network: nn.Module, lr: float, weight_decay: float) -> Optimizer:
    """PSGD Kron with HeavyBall's own settings."""
    import heavyball  # pyright: ignore[reportMissingImports]

    if not next(network.parameters()).is_cuda:
        heavyball.utils.compile_mode = None  # its compilation for a CPU takes many minutes
    return heavyball.PSGDKron(network.parameters(), lr=lr, weight_decay=weight_decay)


def sirf_shampoo(network: nn.Module, lr: float, weight_decay: float) -> Optimizer:
    """The nearest relative of natgrad: factors that follow without inverses or roots, dense here.

    Its grid lies around the package's own learning rate: larger ones learned less in trials on the digits.
    """
    import sirfshampoo  # pyright: ignore[reportMissingImports]

    return sirfshampoo.SIRFShampoo(network, lr=lr, kappa=weight_decay)


METHODS = {
    "natgrad": Method(natgrad, BLUE),
    "natgrad-small": Method(natgrad_small, "#5b9bd0"),
    "adamw": Method(adamw, ORANGE),
    "adamw-fused": Method(adamw_fused, "#f2bd8c", searched=False),
    "muon": Method(muon, "#27924f"),
    "soap": Method(soap, "#c0392b"),
    "shampoo": Method(shampoo, "#7d5ba6"),
    "psgd": Method(psgd, "#b59a00", package="heavyball"),
    "sirf-shampoo": Method(sirf_shampoo, GREY, lrs=(2.5e-4, 5e-4, 1e-3, 2e-3), package="sirfshampoo"),
}


def installed(names: list[str]) -> list[str]:
    """Those that can run here; the others are named."""
    for name in names:
        if METHODS[name].missing:
            print(f"{name}: not installed, {METHODS[name].missing}")
    return [name for name in names if not METHODS[name].missing]
