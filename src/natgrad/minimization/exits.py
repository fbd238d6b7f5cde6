"""Functions that leave autograd on the way: float(x[0]), math.sin(x[0]), x.tolist()."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from natgrad.minimization.objective import HOW, Point


class Exits(TorchFunctionMode):
    """Sees numbers that depend on x leave torch, and how."""

    WAYS = ("__float__", "__int__", "item", "tolist", "numpy", "__array__")
    seen = ""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", "")
        if name in self.WAYS and args and isinstance(args[0], Tensor) and args[0].requires_grad:
            self.seen = name
        return func(*args, **(kwargs or {}))


def check(point: Point, seen: str) -> None:
    """Numbers may leave torch to be printed. If the value comes from them, the gradient is not its derivative."""
    generator = torch.Generator().manual_seed(0)
    v = torch.randn(len(point.x), generator=generator, dtype=torch.float64).to(point.x)
    step = torch.finfo(v.dtype).eps ** (1 / 3) * (1 + float(point.x.abs().max())) / float(v.abs().max())
    ahead, behind = (point.objective.at(point.x + a * v).value for a in (step, -step))
    difference, slope = (ahead - behind) / (2 * step), float(point.gradient() @ v)
    rounding = torch.finfo(v.dtype).eps ** 0.5 * abs(point.value) / step
    if abs(difference - slope) > 0.01 * (abs(difference) + abs(slope)) + rounding:
        raise ValueError(
            f"fun takes numbers that depend on x out of torch, by {seen}, where no derivative follows: along a random "
            f"direction f changes by {difference:.3g}, its gradient says {slope:.3g}; write all of fun with torch "
            f"operations, or {HOW.split(', or ')[0]}"
        )
