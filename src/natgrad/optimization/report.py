"""What an optimizer tells about its state."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from natgrad.optimization.sides import Side, Tensors


def memory(state: Mapping[str, Tensor]) -> int:
    return sum(t.untyped_storage().nbytes() for t in state.values())


def diagnosis(p: Tensor, state: Mapping[str, Tensor], sides: Sequence[Side]) -> dict[str, Any]:
    return {
        "shape": tuple(p.shape),
        "structure": tuple(side.structure for side in sides),
        "steps": int(state["step"]) if state else 0,
        "skipped": int(state["skipped"]) if state else 0,
        "bytes": memory(state),
    }


def condition_and_step(sides: Sequence[Side], old: Sequence[Tensors], new: Sequence[Tensors]) -> dict[str, Any]:
    """By side, for one parameter: the condition costs an eigenvalue or singular value decomposition."""
    return {
        "condition": tuple(side.condition(tensors) for side, tensors in zip(sides, old, strict=True)),
        "step_norms": tuple(float(_distance(a, b) / _distance(a)) for a, b in zip(old, new, strict=True)),
    }


def _distance(a: Tensors, b: Tensors | None = None) -> Tensor:
    parts = a if b is None else [x - y for x, y in zip(a, b, strict=True)]
    return torch.stack([x.square().sum() for x in parts]).sum().sqrt()
