"""What users may pass, and what is said when they pass something else."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from numbers import Real
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from natgrad.groups.base import Element, Stored


class NotFiniteError(ValueError):
    """NaN or infinity where numbers are needed; nothing has been changed."""


def shape(sizes: Sequence[int]) -> str:
    return "(" + ", ".join(map(str, sizes)) + ("," if len(sizes) == 1 else "") + ")"


def named(x: object) -> str:
    """What came, in a few words and never its numbers."""
    structure = getattr(x, "structure", None)
    return f"{type(x).__name__}{f' of {structure}' if structure is not None else ''}"


def brief(x: object) -> str:
    """What came, as it is written if that is short."""
    text = repr(x)
    return text if len(text) <= 60 and "\n" not in text else named(x)


def count(value: object, name: str, least: int = 0) -> int:
    """A whole number >= least."""
    try:
        number = operator.index(value)  # pyright: ignore[reportArgumentType]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise ValueError(f"{name} must be a whole number, got {brief(value)}")
    if number < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return number


def dtype(given: torch.dtype) -> torch.dtype:
    if not isinstance(given, torch.dtype):
        raise ValueError(f"dtype must be a dtype of torch, got {brief(given)}; use torch.float32 or torch.float64")
    if given not in (torch.float32, torch.float64):
        raise ValueError(f"elements are float32 or float64, got dtype={given}; keep factors in float32 beside it")
    return given


def device(given: torch.device | str | None) -> torch.device:
    """The device with its number, as tensors have it: "cuda" becomes "cuda:0"."""
    try:
        return torch.empty(0, device=given).device
    except (RuntimeError, AssertionError, TypeError, ImportError) as error:  # torch has one for each kind of device
        raise ValueError(
            f"device must be one that this torch has, as 'cpu', or 'cuda' where torch.cuda.is_available(), got "
            f"{brief(given)}: {str(error).splitlines()[0].split('. ')[0]}"
        ) from error


def batch(given: Sequence[int]) -> tuple[int, ...]:
    if not isinstance(given, (tuple, list, torch.Size)):
        raise ValueError(f"batch must be a tuple of sizes, got {brief(given)}; write batch=(3,) for three elements")
    return tuple(count(size, "a batch size") for size in given)


def placed(owner: Stored, x: object, what: str) -> Tensor:
    """x as a tensor of the owner's dtype and device."""
    if not isinstance(x, Tensor):
        raise ValueError(f"{what}: expected a torch tensor, got {type(x).__name__}; torch.as_tensor makes one")
    if x.dtype != owner.dtype or x.device != owner.device:
        raise ValueError(
            f"{what}: expected {owner.dtype} on {owner.device} as its element is, got {x.dtype} on {x.device}; "
            f"convert with x.to(element.device, element.dtype)"
        )
    return x


def all_finite(x: Tensor) -> bool:
    """No NaN and no infinity. One sum tells, unless it overflows; only then is every number looked at."""
    return bool(torch.isfinite(x.sum())) or bool(torch.isfinite(x).all())


def vectors(owner: Element, x: object, what: str) -> tuple[Tensor, bool]:
    """x as a block of vectors (*batch, p, r), and whether it was one vector."""
    what = f"{owner.structure}, {what}"
    x = placed(owner, x, what)
    p, lead = owner.shape[-1], owner.batch
    if x.shape == (*lead, p):
        return x.unsqueeze(-1), True
    if x.ndim == len(lead) + 2 and x.shape[:-1] == (*lead, p):
        return x, False
    block = "(" + ", ".join([*map(str, lead), str(p), "r"]) + ")"
    raise ValueError(
        f"{what}: expected a vector {shape((*lead, p))} or a block of vectors {block}, got {shape(x.shape)}; "
        "leading sizes must be the element's batch sizes"
    )


def diagonal(owner: Element, d: object) -> Tensor:
    d = placed(owner, d, f"{owner.structure}, pull, as diagonal")
    if d.shape != owner.shape[:-1]:
        raise ValueError(f"pull: diagonal must hold diag(H), {shape(owner.shape[:-1])}, got {shape(d.shape)}")
    if not all_finite(d):
        raise NotFiniteError("pull: diagonal holds NaN or infinity; the element is unchanged")
    return d


def number(a: object, name: str) -> float:
    """A finite number."""
    if not isinstance(a, Real) or not math.isfinite(a):
        raise ValueError(f"{name} must be a finite number, got {brief(a)}")
    return float(a)


def scalar(owner: Stored, a: object) -> float | Tensor:
    """A finite number, or a tensor of one number a batch member in the owner's dtype."""
    if not isinstance(a, Tensor):
        if not isinstance(a, Real):
            raise TypeError(
                f"expected a number or a tensor of them, got {named(a)}; products of matrices are written A @ B"
            )
        return number(a, "a scalar")
    if a.is_complex() or (a.ndim and a.shape != owner.batch):
        raise ValueError(
            f"a tensor of scalars must hold one real number a batch member, of shape {shape(owner.batch)}, "
            f"got {a.dtype} of shape {shape(a.shape)}"
        )
    return a.to(owner.device, owner.dtype)


def divisor(owner: Stored, a: object) -> float | Tensor:
    """A scalar as above, as a number not zero."""
    a = scalar(owner, a)
    if not isinstance(a, Tensor) and a == 0:
        raise ValueError("a divisor must be a finite number other than 0, got 0")
    return a


def alike(a: Stored, b: object, operation: str) -> None:
    """a and b are of one group, size, batch, dtype and device."""
    if type(a) is not type(b):
        hints = {"@": "; use B.apply(x) for vectors", "+": "; M.shift(c) is M + c I", "-": "; M.shift(-c) is M - c I"}
        hint = "" if hasattr(b, "structure") else hints[operation]
        raise TypeError(f"A {operation} B takes two of the same group, got {named(a)} and {named(b)}{hint}")
    for what in ("structure", "shape", "dtype", "device"):
        mine, theirs = getattr(a, what), getattr(b, what)
        if mine != theirs:
            raise ValueError(f"A {operation} B needs equal {what}s, got {mine} and {theirs}")


def tangent(B: Element, M: object) -> None:
    if not (hasattr(M, "structure") and hasattr(M, "h")):
        raise ValueError(f"retract expected a tangent, as project or pull return it, got {named(M)}")
    for what in ("structure", "shape", "dtype", "device"):
        mine, theirs = getattr(B, what), getattr(M, what, None)
        if mine != theirs:
            raise ValueError(f"retract: the tangent must share the element's {what}, expected {mine}, got {theirs}")


def array(given: object, name: str) -> np.ndarray:
    """A NumPy array of anything but ragged lists."""
    try:
        return given.detach().cpu().numpy() if isinstance(given, Tensor) else np.asarray(given)
    except (ValueError, TypeError) as error:
        raise ValueError(f"{name} must be an array, with rows of one length, got {brief(given)}") from error


def permutation(given: object, name: str) -> np.ndarray:
    """p whole numbers, each of 0 .. p-1 once."""
    order = array(given, name)
    p = order.size
    if order.ndim != 1 or (order.dtype.kind not in "iu" and p):
        raise ValueError(f"{name} must be p whole numbers, got {order.dtype} of shape {shape(order.shape)}")
    outside = order[(order < 0) | (order >= p)]
    if outside.size:
        raise ValueError(f"{name} is no permutation of 0 .. {p - 1}: index {outside[0]} is out of range")
    times = np.bincount(order.astype(np.int64), minlength=p)
    if (times > 1).any():
        raise ValueError(f"{name} is no permutation of 0 .. {p - 1}: {int(times.argmax())} occurs {times.max()} times")
    return order.astype(np.int64)
