"""What a parameter group may hold, and what is said when it holds something else."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any

import torch
from torch import Tensor

from natgrad.groups import check
from natgrad.optimization.shapes import sizes, structures
from natgrad.optimization.sides import Side, side


def options(group: dict[str, Any]) -> None:
    """The numbers of a group."""
    _between(group, "lr", 0, math.inf)
    _between(group, "momentum", 0, 1, open_above=True)
    _between(group, "weight_decay", 0, math.inf)
    _between(group, "gamma", 0, math.inf, open_below=True)
    _between(group, "damping", 0, math.inf)
    _between(group, "samples", 0, math.inf, open_below=True)
    if group["power"] not in (0.5, 1):
        raise ValueError(
            f"power must be 0.5 (S^2 follows E[g g^T]) or 1 (the paper's), got {check.brief(group['power'])}"
        )
    if group["beta"] is not None:
        _between(group, "beta", 0, 1, open_below=True)
    check.count(group["update_every"], "update_every", least=1)
    if not isinstance(group["maximize"], bool):
        raise ValueError(f"maximize must be True or False, got {check.brief(group['maximize'])}")


def _between(
    group: dict[str, Any], name: str, low: float, high: float, *, open_below: bool = False, open_above: bool = False
) -> None:
    value = group[name]
    if isinstance(value, Tensor) and name == "lr" and value.ndim == 0 and value.is_floating_point():
        return  # a tensor may live on a device; looking at it would wait for the device
    x = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    if not ((x > low if open_below else x >= low) and (x < high if open_above else x <= high) and x < math.inf):
        if high == math.inf:
            wanted = f"a finite number {'>' if open_below else '>='} {low}"
        else:
            wanted = f"a number in {'(' if open_below else '['}{low}, {high}{')' if open_above else ']'}"
        raise ValueError(f"{name} must be {wanted}, got {check.brief(value)}")


def parameters(given: Sequence[Any], seen: Sequence[Tensor]) -> list[tuple[Tensor, str]]:
    """The tensors given, or pairs of a name and a tensor, each with what errors call it: real, and not seen before."""
    places = {id(p): place for place, p in enumerate(seen)}
    found = []
    for index, item in enumerate(given, len(seen)):
        name, p = item if isinstance(item, tuple) and len(item) == 2 else (None, item)
        if not isinstance(p, Tensor):
            raise TypeError(
                f"parameter {index} must be a tensor or a pair of a name and a tensor, got {check.brief(item)}"
            )
        what = f"parameter {index}{f' ({name})' if name else ''} of shape {check.shape(p.shape)}"
        if p.is_complex():
            raise ValueError(
                f"{what} is complex ({p.dtype}), but its curvature has real factors only; optimise torch.view_as_real "
                "of it"
            )
        if id(p) in places:
            raise ValueError(
                f"{what} is the same tensor as parameter {places[id(p)]}; give each one once (model.parameters() lists "
                "a tied weight once)"
            )
        places[id(p)] = index
        found.append((p, what))
    return found


def sides(p: Tensor, choice: object, power: float, dtype: torch.dtype, what: str) -> tuple[Side, ...]:
    """The sides of a parameter in the given structure, or why they cannot be."""
    shape = tuple(p.shape)
    try:
        return tuple(
            side(structure, d, power, dtype, p.device)
            for structure, d in zip(structures(choice, shape), sizes(shape), strict=True)
        )
    except (ValueError, TypeError) as error:
        raise ValueError(f"{what}: {error}") from error


def gradients(groups: Sequence[dict[str, Any]]) -> None:
    """None of them sparse: looked for before any parameter moves."""
    for i, p in enumerate(p for group in groups for p in group["params"]):
        if p.grad is not None and p.grad.layout != torch.strided:
            raise ValueError(
                f"parameter {i} of shape {check.shape(p.shape)} has a sparse gradient; make it dense, as "
                "nn.Embedding(..., sparse=False) does, or give this parameter to torch.optim.SparseAdam"
            )
