"""How the variables look to the user, and the one vector that the algorithms see."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree

FLOATS = (torch.float32, torch.float64)


class Layout:
    """The shapes of x0: a NumPy array, a torch tensor of any shape, or a tree (dict, list, tuple) of tensors.

    x, (p,), is the vector of all numbers in the order of the leaves.
    """

    def __init__(self, x0: Any):
        self.is_numpy = not _has_tensor(x0) and not (isinstance(x0, (dict, list, tuple)) and not x0)
        leaves, self._tree = pytree.tree_flatten(np.atleast_1d(np.asarray(x0)) if self.is_numpy else x0)
        tensors = [_leaf(leaf) for leaf in leaves]
        if not tensors:
            raise ValueError(f"x0 must hold tensors, got {x0!r}")
        kinds = {(t.dtype, t.device) for t in tensors}
        if len(kinds) > 1:
            raise ValueError(f"all tensors of x0 must share one dtype and device, got {sorted(map(str, kinds))}")
        self.dtype, self.device = kinds.pop()
        self.shapes = [tuple(t.shape) for t in tensors]
        self.sizes = [t.numel() for t in tensors]
        self.p = sum(self.sizes)
        self.start = torch.cat([t.detach().reshape(-1) for t in tensors]).clone()

    @property
    def matrix(self) -> tuple[int, int] | None:
        """(m, n) if the variables are one m x n matrix, as a Kronecker structure wants them."""
        return (self.shapes[0][0], self.shapes[0][1]) if [len(shape) for shape in self.shapes] == [2] else None

    def tree(self, x: Tensor) -> Any:
        """x in the shapes of x0, as tensors; a flat vector for a NumPy x0."""
        if self.is_numpy:
            return x
        parts = [part.view(shape) for part, shape in zip(x.split(self.sizes), self.shapes, strict=True)]
        return pytree.tree_unflatten(parts, self._tree)

    def user(self, x: Tensor) -> Any:
        """A copy of x in the form of x0; a flat array for a NumPy x0, as SciPy has it."""
        x = x.detach().clone()
        return x.numpy() if self.is_numpy else self.tree(x)

    def vector(self, y: Any, what: str) -> Tensor:
        """What a user's function returned for a gradient or a Hessian product, as a vector (p,)."""
        if self.is_numpy:
            array = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
            if array.size != self.p or array.dtype.kind not in "fiub":
                raise ValueError(f"{what} must return {self.p} real numbers, got {array.dtype} of shape {array.shape}")
            return torch.tensor(np.array(array).reshape(-1), dtype=self.dtype)  # a copy: it may be the user's buffer
        leaves, tree = pytree.tree_flatten(y)
        if not all(isinstance(leaf, Tensor) for leaf in leaves):
            kinds = sorted({type(leaf).__name__ for leaf in leaves})
            raise ValueError(f"{what} must return tensors, as x0 is made of, got {', '.join(kinds)}")
        shapes = [tuple(getattr(leaf, "shape", ("?",))) for leaf in leaves]
        if shapes != self.shapes or tree != self._tree:
            raise ValueError(
                f"{what} must return tensors shaped like x0, {self.shapes}, got {shapes}"
                + (f", and in the same tree, {self._tree}, not {tree}" if tree != self._tree else "")
            )
        return torch.cat([leaf.detach().reshape(-1) for leaf in leaves]).to(self.device, self.dtype)


def _has_tensor(x0: Any) -> bool:
    return any(isinstance(leaf, Tensor) for leaf in pytree.tree_leaves(x0))


def _leaf(leaf: Any) -> Tensor:
    if isinstance(leaf, np.ndarray):
        if leaf.dtype not in (np.float32, np.float64):
            raise ValueError(f"x0 must be float32 or float64, got {leaf.dtype}; write np.asarray(x0, dtype=float)")
        return torch.tensor(leaf)
    if not isinstance(leaf, Tensor):
        raise ValueError(f"x0 must be a NumPy array, a tensor or a tree of tensors, but holds a {type(leaf).__name__}")
    if leaf.dtype not in FLOATS:
        raise ValueError(f"x0 must be float32 or float64, got {leaf.dtype}; write x0.double()")
    return leaf


def unit_blocks(p: int, like: Tensor, width: int, product: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """product(E) for the columns of the identity, `width` of them at a time."""
    blocks = []
    for start in range(0, p, width):
        E = torch.zeros(p, min(width, p - start), dtype=like.dtype, device=like.device)
        E[start : start + E.shape[1]].fill_diagonal_(1.0)
        blocks.append(product(E))
    return blocks
