"""What an optimizer tells about its state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from natgrad.optimization.sides import Side


def memory(state: Mapping[str, Tensor]) -> int:
    return sum(t.untyped_storage().nbytes() for t in state.values())


def diagnosis(p: Tensor, state: Mapping[str, Tensor], sides: tuple[Side, ...]) -> dict[str, Any]:
    """`condition` is that of S on each side; it is found by one eigenvalue decomposition a side."""
    found: dict[str, Any] = {
        "shape": tuple(p.shape),
        "structure": tuple(side.structure for side in sides),
        "steps": int(state["step"]) if state else 0,
        "skipped": int(state["skipped"]) if state else 0,
        "bytes": memory(state),
    }
    if state:
        found["step_norms"] = tuple(state["norms"].tolist())
        found["condition"] = tuple(
            side.condition([t[None] for key, t in state.items() if key.startswith(f"{name}_")])
            for side, name in zip(sides, ("out", "in"), strict=False)
        )
    return found
