"""Factorisations kept with an element, unless automatic differentiation might need them made anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor  # pyright: ignore[reportMissingImports]  # has no stub

T = TypeVar("T")


def plain(*tensors: Tensor) -> bool:
    """Whether tensors may outlive the call that made them: outside autograd, torch.func and inference mode."""
    wrapped = is_functorch_wrapped_tensor
    return not any(t.requires_grad or t.is_inference() or wrapped(t) for t in tensors)


class remembered(Generic[T]):  # noqa: N801  # used as functools.cached_property is
    """A property of an element, computed once if its tensors and the result are plain, and each time otherwise."""

    def __init__(self, compute: Callable[[Any], T]):
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, element: Any, owner: type | None = None) -> T:
        value = self.compute(element)
        if plain(*element.tensors(), *_tensors(value)):
            element.__dict__[self.name] = value  # found there before this descriptor is asked again
        return value


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, tuple):
        return [t for part in value for t in _tensors(part)]
    return [] if value is None else value.tensors()
