"""A function and its derivatives at a point, from torch or from the user's own functions, every call counted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from numbers import Number
from typing import Any

import numpy as np
import torch
from scipy.sparse import issparse
from scipy.sparse.linalg import LinearOperator
from torch import Tensor

from natgrad.groups.base import CHUNK
from natgrad.minimization.layout import Layout, unit_blocks

HOW = (
    "pass jac= and hessp= (or hess=) as scipy.optimize.minimize takes them, or write fun with torch operations, "
    "from which they come by themselves"
)


@dataclass
class Counts:
    nfev: int = 0
    njev: int = 0
    nhev: int = 0
    nhvp: int = 0


@dataclass(frozen=True)
class Objective:
    """l with gradient and Hessian, for vectors x (p,). Derivatives that are not given come from autograd."""

    layout: Layout
    fun: Callable[..., Any]
    args: tuple[Any, ...] = ()
    jac: Callable[..., Any] | bool | None = None
    hess: Callable[..., Any] | None = None
    hessp: Callable[..., Any] | None = None
    hess_diag: Callable[..., Any] | None = None
    by_torch: bool = field(init=False, default=True)  # whether fun is a torch function, for autograd to differentiate
    counts: Counts = field(init=False, default_factory=Counts)

    def __post_init__(self) -> None:
        for name in ("fun", "jac", "hess", "hessp", "hess_diag"):
            given = getattr(self, name)
            if not (callable(given) or (given is None and name != "fun") or (name == "jac" and given in (True, False))):
                raise ValueError(f"{name} must be a function of x, got {given!r}; {HOW}")
        if not isinstance(self.args, tuple):
            raise ValueError(f"args must be a tuple, got {type(self.args).__name__}; write args=({self.args!r},)")
        needs_torch = not self.jac or (self.hess is None and self.hessp is None)
        if self.layout.is_numpy:
            object.__setattr__(self, "by_torch", needs_torch and not self.jac and self._is_torch())
            if needs_torch and not self.by_torch:
                self.fun(self.layout.start.clone().numpy(), *self.args)  # where it fails on arrays, that is the news
                missing = "jac" if not self.jac else "hessp"
                raise ValueError(
                    f"fun takes NumPy arrays, so its derivatives must be given: {missing} is missing; {HOW}"
                )

    def _is_torch(self) -> bool:
        x = self.layout.start.clone().requires_grad_()
        self.counts.nfev += 1
        try:
            return isinstance(self.fun(x, *self.args), Tensor)
        except (TypeError, RuntimeError, AttributeError, ValueError):  # NumPy refuses tensors that require gradients
            return False

    def at(self, x: Tensor) -> Point:
        return Point(self, x)

    def give(self, x: Tensor) -> Any:
        """x as the user's functions take it: a fresh copy, which they may overwrite."""
        x = x.detach().clone()
        return x.numpy() if self.layout.is_numpy and not self.by_torch else self.layout.tree(x)


class Point:
    """l at one x: the value at once, gradient and Hessian products when asked for."""

    def __init__(self, objective: Objective, x: Tensor):
        self.objective, self.x = objective, x
        objective.counts.nfev += 1
        self._gradient: Tensor | None = None
        self._matrix: Any = None
        self._graph: tuple[Tensor, Tensor] | None = None  # x and l(x) as autograd has them
        self.hessian: Tensor | None = None  # as whoever needs it again has stored it
        if objective.by_torch and not objective.jac:
            with torch.enable_grad():
                leaf = x.detach().clone().requires_grad_()
                value = objective.fun(objective.layout.tree(leaf), *objective.args)
            self._graph = leaf, value
        else:
            value = objective.fun(objective.give(x), *objective.args)
            if objective.jac is True:
                if not (isinstance(value, tuple) and len(value) == 2):
                    raise ValueError(f"with jac=True fun must return (value, gradient), got {type(value).__name__}")
                value, gradient = value
                objective.counts.njev += 1
                self._gradient = objective.layout.vector(gradient, "fun, with jac=True, as its second result,")
        self.value = _scalar(value)

    def gradient(self) -> Tensor:
        if self._gradient is None:
            self.objective.counts.njev += 1
            if self._graph is not None:
                self._gradient = self._differentiate(*self._graph).detach()
            else:
                assert callable(self.objective.jac)
                y = self.objective.jac(self.objective.give(self.x), *self.objective.args)
                self._gradient = self.objective.layout.vector(y, "jac")
        return self._gradient

    def _differentiate(self, leaf: Tensor, value: Tensor) -> Tensor:
        if not (isinstance(value, Tensor) and value.requires_grad):
            raise ValueError(
                "fun returned a tensor that does not depend on x through torch operations: was it detached, or "
                f"computed by NumPy? {HOW}"
            )
        keep = self.objective.hess is None and self.objective.hessp is None
        (g,) = torch.autograd.grad(value.sum(), leaf, create_graph=keep)
        self._graph = leaf, g
        return g

    def products(self, V: Tensor) -> Tensor:
        """H V for a block of vectors, (p, r)."""
        objective = self.objective
        if objective.hess is not None:
            HV = _multiply(self.matrix_given(), V)
        elif objective.hessp is not None:
            give, args = objective.give, objective.args
            vector = objective.layout.vector
            HV = torch.stack([vector(objective.hessp(give(self.x), give(v), *args), "hessp") for v in V.unbind(-1)], -1)
        else:
            HV = self._autograd_products(V)
        objective.counts.nhvp += V.shape[1]
        return HV

    def _autograd_products(self, V: Tensor) -> Tensor:
        """The gradient of g^T v for each v: reverse over reverse, on the graph that the gradient has left."""
        if self._graph is None:  # the gradient is the user's own
            self.objective.counts.nfev += 1
            with torch.enable_grad():
                leaf = self.x.detach().clone().requires_grad_()
                value = self.objective.fun(self.objective.layout.tree(leaf), *self.objective.args)
            self._graph = leaf, self._differentiate(leaf, value[0] if isinstance(value, tuple) else value)
        self.gradient()
        leaf, g = self._graph
        if not g.requires_grad:  # l is linear
            return torch.zeros_like(V)
        width = max(1, CHUNK // max(1, len(V)))
        parts = []
        for block in V.split(width, -1):
            several = block.shape[1] > 1
            seeds = block.mT.contiguous() if several else block[:, 0]
            with torch.enable_grad():
                (part,) = torch.autograd.grad(
                    g, leaf, seeds, retain_graph=True, is_grads_batched=several, materialize_grads=True
                )
            parts.append(part.mT if several else part.unsqueeze(-1))
        return torch.cat(parts, -1).detach()

    def matrix_given(self) -> Any:
        """What the user's hess returned: a tensor (p, p), a SciPy sparse array or a LinearOperator."""
        if self._matrix is None:
            objective = self.objective
            objective.counts.nhev += 1
            assert objective.hess is not None
            H, p = objective.hess(objective.give(self.x), *objective.args), objective.layout.p
            if not (issparse(H) or isinstance(H, (LinearOperator, Tensor))):
                array = np.array(H)
                if array.dtype.kind not in "fiub":
                    raise ValueError(f"hess must return a {p} x {p} matrix of real numbers, got {array.dtype}")
                H = torch.tensor(array)
            if isinstance(H, Tensor):
                if H.numel() != p * p or H.is_complex():
                    raise ValueError(f"hess must return a real {p} x {p} matrix, got {H.dtype} {tuple(H.shape)}")
                H = H.detach().reshape(p, p).to(objective.layout.device, objective.layout.dtype)
            if tuple(H.shape) != (p, p):
                raise ValueError(f"hess must return a {p} x {p} matrix, got shape {tuple(H.shape)}")
            self._matrix = H
        return self._matrix

    def matrix(self) -> Tensor:
        """H, dense, (p, p)."""
        if self.objective.hess is not None:
            H = self.matrix_given()
            if isinstance(H, Tensor):
                return H
            if issparse(H):
                return torch.as_tensor(H.toarray()).to(self.x)
        p = len(self.x)
        return torch.cat(unit_blocks(p, self.x, max(1, CHUNK // p), self.products), -1)


def _multiply(H: Any, V: Tensor) -> Tensor:
    return H @ V if isinstance(H, Tensor) else torch.as_tensor(H @ V.cpu().numpy()).to(V)


def _scalar(value: Any) -> float:
    if not isinstance(value, (Tensor, Number, np.ndarray)):
        raise ValueError(f"fun must return one real number, got {type(value).__name__}")
    array: Any = value.detach() if isinstance(value, Tensor) else np.asarray(value)
    if math.prod(array.shape) != 1:
        raise ValueError(f"fun must return one number, got shape {tuple(array.shape)}; sum it, or take its mean")
    if "complex" in str(array.dtype):
        raise ValueError(f"fun must return a real number, got {value!r}")
    return float(array)
