"""What a run tells while it goes on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from scipy.optimize import OptimizeResult
from torch import Tensor

from natgrad.minimization.layout import Layout
from natgrad.minimization.objective import Point


class Monitor:
    """Counts iterations, calls the user's callback as SciPy does, and prints."""

    def __init__(self, layout: Layout, callback: Callable[..., Any] | None, disp: bool):
        if callback is not None and not callable(callback):
            raise ValueError(f"callback must be a function, got {callback!r}")
        self.layout, self.callback, self.disp, self.nit = layout, callback, disp, 0
        self._takes_result = callback is not None and _names(callback) == ["intermediate_result"]

    def say(self, text: str) -> None:
        if self.disp:
            print(text, flush=True)

    def stopped_at(self, x: Tensor, point: Point) -> bool:
        """One more iteration has ended at the point, of which the callback sees x; whether it asks for an end."""
        self.nit += 1
        self.say(f"{self.nit:6}  f = {point.value:.10e}")
        if self.callback is None:
            return False
        shown = self.layout.user(x)
        try:
            if self._takes_result:
                jac = self.layout.user(point.gradient())
                self.callback(intermediate_result=OptimizeResult(x=shown, fun=point.value, jac=jac, nit=self.nit))
            else:
                self.callback(shown)
        except StopIteration:
            return True
        return False


def _names(callback: Callable[..., Any]) -> list[str]:
    try:
        return list(inspect.signature(callback).parameters)
    except (TypeError, ValueError):  # built-in functions
        return []
