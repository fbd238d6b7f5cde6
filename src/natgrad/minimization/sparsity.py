"""Which entries of a Hessian can differ from zero, found from the function itself.

Each number that the function computes on its way depends on some coordinates of x. Where an operation is nonlinear in
its arguments u and v, d^2 f / dx_i dx_j can be there for all i that u depends on and all j that v depends on; linear
operations only pass dependencies on (Walther, Computing sparse Hessians with automatic differentiation, ACM TOMS 34,
2008). Nothing is taken from the values of x: what cancels or vanishes at some x only counts as there.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array, eye_array, vstack
from torch import Tensor

from natgrad.minimization.layout import Layout
from natgrad.minimization.sparsity_rules import RULES
from natgrad.minimization.sparsity_trace import Guard, Map, NotSparse, Source, Step, Trace, only, pairs

__all__ = ["NotSparse", "hessian_sparsity"]

WORK = 10  # numbers handled on the way to one stored entry, at the most


def hessian_sparsity(
    fun: Callable[..., Any], x0: Any, *, args: tuple[Any, ...] = (), max_entries: int | None = None
) -> csr_array:
    """The entries, p x p, where the Hessian of fun(x, *args) can differ from zero, and the diagonal, as booleans.

    x0 is a tensor, a tree of tensors or a NumPy array (fun then takes a flat tensor). fun is run once, at x0, and must
    take the same path for all x. Raises NotSparse, soon, if there are more than max_entries entries, or if telling
    would take more than ten times as many steps; None stands for 60 p, or 4e6 if that is more.
    """
    layout = Layout(x0)
    most = max(4_000_000, 60 * layout.p) if max_entries is None else max_entries
    trace = Trace(2 * most, RULES)
    with torch.enable_grad():
        x = layout.start.requires_grad_().clone()  # derivatives wanted, so that torch refuses to hand x to NumPy
        trace.write(x, trace.add(layout.p))
        with _uncompiled(), Guard(trace), trace:
            value = fun(layout.tree(x), *args)
    _check(value)
    result = trace.node(value)
    return _Interactions(layout.p, most).of(trace.steps, result)


def _uncompiled() -> AbstractContextManager[Any]:
    """What torch.compile has made runs as it was written; without the compiler loaded there is nothing to tell it."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else nullcontext()


def _check(value: Any) -> None:
    if not isinstance(value, Tensor):
        raise ValueError(
            f"fun must return a tensor with one number, got {type(value).__name__}; write it with torch operations"
        )
    if value.numel() != 1:
        raise ValueError(f"fun must return one number, got shape {tuple(value.shape)}; sum it, or take its mean")
    if not value.is_floating_point():
        raise ValueError(f"fun must return a real number, got {value.dtype}")
    waiting, seen = [value.grad_fn], set()
    while waiting:
        function = waiting.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        own = isinstance(function, torch.autograd.function.BackwardCFunction)
        if own and not function.name().startswith("GeneratedBackwardFor_"):  # an operator's: that one has been followed
            raise ValueError(
                f"fun uses its own torch.autograd.Function ({function.name()}), whose derivatives need not be those of "
                "the operations in it; expected torch operations: write it with these, or give the sparsity by hand"
            )
        waiting += [following for following, _ in function.next_functions]


class _Interactions:
    """The pairs of coordinates that meet in nonlinear operations, collected over the steps of a function."""

    def __init__(self, p: int, most: int):
        self.p, self.most = p, most
        self._work = 0
        self._left: list[csr_array] = []  # the Hessian's entries: in a row of these
        self._right: list[csr_array] = []  # and in the same row of these
        self._code = np.random.default_rng(0).integers(0, 2**64, p, dtype=np.uint64)  # a set: the sum of its codes

    def of(self, steps: Sequence[Step], result: int) -> csr_array:
        live, wanted = _backwards(steps, result)
        last = {node: k for k, step in enumerate(steps) for source in step.sources for node in source.nodes}
        rows: dict[int, csr_array] = {0: csr_array(eye_array(self.p, dtype=bool, format="csr"))}
        for k, step in enumerate(steps):
            bent = {i for pair in step.curved for i in pair}
            marks = [live[k] if i in bent else wanted[k] for i in range(len(step.sources))]
            if k and any(mark.any() for mark in marks):
                taken = [
                    self._rows(source, mark, steps, rows) for source, mark in zip(step.sources, marks, strict=True)
                ]
                if wanted[k].any():
                    rows[k] = self._checked(_union(taken))
                self._meet(taken, step.curved)
            for node in {node for source in step.sources for node in source.nodes}:
                if last[node] == k:
                    rows.pop(node, None)
        return self._entries()

    def _rows(self, source: Source, mark: np.ndarray, steps: Sequence[Step], rows: dict[int, csr_array]) -> csr_array:
        """The coordinates that the marked elements depend on through one source."""
        parts = [rows[n] if n in rows else csr_array((steps[n].size, self.p), dtype=bool) for n in source.nodes]
        below = parts[0] if len(parts) == 1 else csr_array(vstack(parts, format="csr"))
        how: Map = only(source, mark).map
        if how is None:
            return below
        counts = np.diff(below.indptr)
        if isinstance(how, np.ndarray):
            self._bound(int(np.append(counts, 0)[how].sum()))
            padded = np.append(below.indptr, below.indptr[-1:])
            return csr_array((below.data, below.indices, padded), shape=(len(counts) + 1, self.p))[
                how % (len(counts) + 1)
            ]
        self._bound(int(counts[how.indices].sum()), WORK)
        return self._checked(csr_array(how @ below))

    def _checked(self, rows: csr_array) -> csr_array:
        self._bound(rows.nnz)
        return rows

    def _bound(self, count: int, times: int = 1) -> None:
        if count > times * self.most:
            raise NotSparse(
                f"expected a sparse Hessian, got a function with {count:.3g} dependencies or interactions to follow, "
                f"more than {times * self.most:.3g}; treat the Hessian as dense, or raise max_entries ({self.most})"
            )

    def _meet(self, taken: Sequence[csr_array], curved: Sequence[tuple[int, int]]) -> None:
        if len(curved) > 1 and len(curved) == len(pairs(len(taken))):
            taken, curved = [_union(taken)], [(0, 0)]
        for i, j in curved:
            left, right = taken[i], taken[j]
            a, b = np.diff(left.indptr), np.diff(right.indptr)
            codes = self._codes(left)
            same = codes == self._codes(right) if i != j else np.ones(len(a), bool)
            self._keep(left, left, same & (a > 1), codes)
            if not same.all():
                mixed = codes + np.uint64(3) * self._codes(right)
                self._keep(left, right, ~same & (a > 0) & (b > 0), mixed, both=True)

    def _keep(self, left: csr_array, right: csr_array, mark: np.ndarray, codes: np.ndarray, both: bool = False) -> None:
        at = np.flatnonzero(mark)
        at = at[np.unique(codes[at], return_index=True)[1]]
        if not len(at):
            return
        left, right = left[at], right[at] if both else left[at]
        entries = np.diff(left.indptr).astype(np.int64) * np.diff(right.indptr)
        self._bound(int(entries.max()))
        self._work += int(entries.sum())
        self._bound(self._work, WORK)
        self._left += [left, right] if both else [left]
        self._right += [right, left] if both else [right]

    def _codes(self, rows: csr_array) -> np.ndarray:
        sums = np.append(np.uint64(0), np.cumsum(self._code[rows.indices]))
        return sums[rows.indptr[1:]] - sums[rows.indptr[:-1]]

    def _entries(self) -> csr_array:
        H = csr_array(eye_array(self.p, dtype=bool, format="csr"))
        if self._left:
            left, right = csr_array(vstack(self._left, format="csr")), csr_array(vstack(self._right, format="csr"))
            once = np.unique(self._codes(left) + np.uint64(3) * self._codes(right), return_index=True)[1]
            left, right = left[np.sort(once)], right[np.sort(once)]
            work = np.cumsum(np.diff(left.indptr).astype(np.int64) * np.diff(right.indptr))
            parts = np.split(np.arange(len(work)), np.searchsorted(work, np.arange(self.most, work[-1], self.most)))
            for part in parts:
                H = csr_array(H + csr_array(left[part].T) @ right[part])
                self._bound(H.nnz)
        H.sort_indices()
        return H


def _union(parts: Sequence[csr_array]) -> csr_array:
    joined = parts[0]
    for part in parts[1:]:
        joined = csr_array(joined + part)
    return joined


def _backwards(steps: Sequence[Step], result: int) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """For each step, the elements that the result depends on, and those of them that go into something nonlinear."""
    live = [np.zeros(step.size, bool) for step in steps]
    wanted = [np.zeros(step.size, bool) for step in steps]
    live[result][:] = True
    for k in range(len(steps) - 1, -1, -1):
        bent = {i for pair in steps[k].curved for i in pair}
        for i, source in enumerate(steps[k].sources):
            ends = np.cumsum([steps[n].size for n in source.nodes])
            for marks, mark in ((live, live[k]), (wanted, live[k] if i in bent else wanted[k])):
                if mark.any():
                    taken = np.split(_back(source.map, int(ends[-1]), mark), ends[:-1])
                    for n, part in zip(source.nodes, taken, strict=True):
                        marks[n] |= part
    return live, wanted


def _back(how: Map, size: int, mark: np.ndarray) -> np.ndarray:
    if how is None:
        return mark
    found = np.zeros(size + 1, bool)
    found[how[mark] if isinstance(how, np.ndarray) else how[np.flatnonzero(mark)].indices] = True
    return found[:-1]
