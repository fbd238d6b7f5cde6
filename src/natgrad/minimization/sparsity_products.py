"""Rules for products and windows: matrix products, convolutions and pooling, term by term."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from natgrad.minimization.sparsity_trace import Call, NotSparse, Source, boolean


def _products(call: Call, out: np.ndarray, terms: Sequence[tuple[Tensor, np.ndarray]]) -> int:
    """out_e = sum of the products of an element of each of the terms."""
    sources = [Source((call.trace.node(t),), index) for t, index in terms if call.trace.follows(t)]
    node = call.trace.add(len(out), sources, [(0, 1)] if len(sources) == 2 else [])
    return call.step([Source((node,), boolean(out, np.arange(len(out)), (call.out.numel(), len(out))))])


def _entries(t: Tensor) -> list[np.ndarray]:
    """The indices of the nonzeros of a constant."""
    if t.layout == torch.strided:
        return list(t.nonzero().T.cpu().numpy())
    t = t.to_sparse_coo().coalesce()
    return list(t.indices()[:, t.values() != 0].cpu().numpy())


def _bound(call: Call, terms: int) -> None:
    if terms > call.trace.max_maps:
        raise NotSparse(
            f"expected a sparse Hessian, got {terms:.3g} products in {call.func}, more than {call.trace.max_maps:.3g}, "
            "which are too many to follow; treat the Hessian as dense, or raise max_entries"
        )


def matmul(call: Call) -> int:
    """mm, bmm, mv, dot: out_bir = sum_j A_bij C_bjr, sums over the nonzeros of a constant only."""
    A, C = call.tensors[:2]  # (count, m, k) and (count, k, n), or without the dimensions that vectors and matrices lack
    m = A.shape[-2] if A.ndim > 1 else 1
    k = A.shape[-1]
    n = C.shape[-1] if C.ndim > 1 else 1
    count = A.shape[0] if A.ndim == 3 else 1
    if call.trace.follows(A) and call.trace.follows(C):
        _bound(call, count * m * k * n)
        b, i, j, r = (index.ravel() for index in np.indices((count, m, k, n)))  # (terms,) each
    elif call.trace.follows(C):
        found = _entries(A)  # (nonzeros,) each: b, i, j, of which vectors and matrices have the last
        zeros = np.zeros_like(found[0])
        _bound(call, len(zeros) * n)
        b, i, j = (index.repeat(n) for index in [zeros, zeros, *found][-3:])
        r = np.tile(np.arange(n), len(zeros))
    else:
        found = _entries(C)  # (nonzeros,) each: b, j, r; j, r of matrices; j of vectors
        zeros = np.zeros_like(found[0])
        _bound(call, len(zeros) * m)
        b, j, r = (index.repeat(m) for index in ([zeros, *found] if C.ndim > 1 else [zeros, *found, zeros])[-3:])
        i = np.tile(np.arange(m), len(zeros))
    return _products(call, (b * m + i) * n + r, [(A, (b * m + i) * k + j), (C, (b * k + j) * n + r)])


def _taps(outside: int, inside: int, kernel: int, stride: int, padding: int, dilation: int) -> list[np.ndarray]:
    """(place, tap, where it looks) in one dimension, for the places that look inside."""
    place, tap = (index.ravel() for index in np.indices((outside, kernel)))
    look = place * stride - padding + tap * dilation
    kept = (look >= 0) & (look < inside)
    return [place[kept], tap[kept], look[kept]]


def _combine(taps: Sequence[list[np.ndarray]], shapes: Sequence[Sequence[int]]) -> list[np.ndarray]:
    """The taps of all dimensions together, numbered through the outputs, the kernel and the inputs."""
    joined = [np.zeros(1, np.int64)] * 3
    for d, found in enumerate(taps):
        joined = [
            (one[:, None] * shape[d] + other).ravel() for one, other, shape in zip(joined, found, shapes, strict=True)
        ]
    return joined


def convolution(call: Call) -> int:
    x, weight, groups = call["input"], call["weight"], call["groups"]
    space_in, space_out, kernel = x.shape[2:], call.out.shape[2:], weight.shape[2:]
    d = len(kernel)
    stride, padding, dilation = (_each(call[name], d) for name in ("stride", "padding", "dilation"))
    wide, narrow = (space_in, space_out) if call["transposed"] else (space_out, space_in)
    taps = [_taps(wide[k], narrow[k], kernel[k], stride[k], padding[k], dilation[k]) for k in range(d)]
    place, tap, look = _combine(taps, (wide, kernel, narrow))
    here, there = (look, place) if call["transposed"] else (place, look)
    batch, c_in, c_out = x.shape[0], x.shape[1] // groups, call.out.shape[1] // groups
    _bound(call, batch * groups * c_out * c_in * len(tap))
    # batch, group, output and input channel in it, and entry of tap: an axis each, and then (terms,)
    b, g, co, ci, s = np.ix_(*map(np.arange, (batch, groups, c_out, c_in, len(tap))))
    out = ((b * groups + g) * c_out + co) * math.prod(space_out) + here[s]
    taken = ((b * groups + g) * c_in + ci) * math.prod(space_in) + there[s]
    rows, columns = ((g * c_in + ci), co) if call["transposed"] else ((g * c_out + co), ci)
    used = (rows * weight.shape[1] + columns) * math.prod(kernel) + tap[s]
    out, taken, used = (index.ravel() for index in np.broadcast_arrays(out, taken, used))
    for t, index in ((weight, used), (x, taken)):
        if not call.trace.follows(t):
            kept = (t != 0).reshape(-1).cpu().numpy()[index]
            out, taken, used = out[kept], taken[kept], used[kept]
    node = _products(call, out, [(x, taken), (weight, used)])
    bias = call["bias"]
    return call.step([Source((node,)), *call.expanded(bias.view(-1, *[1] * d))]) if bias is not None else node


def _each(value: Sequence[int], d: int) -> list[int]:
    return list(value) * d if len(value) == 1 else list(value)


def pooling(call: Call) -> int:
    """The mean or the largest over windows."""
    (x,) = call.variables
    kernel = call["kernel_size"]
    d = 3 if "3d" in call.name else 2
    kernel, padding, dilation = (_each(v, d) for v in (kernel, call["padding"], call["dilation"] or [1]))
    stride = _each(call["stride"] or kernel, d)
    space_in, space_out = x.shape[-d:], call.out.shape[-d:]
    taps = [_taps(space_out[k], space_in[k], kernel[k], stride[k], padding[k], dilation[k]) for k in range(d)]
    place, _, look = _combine(taps, (space_out, kernel, space_in))
    maps = np.arange(math.prod(x.shape[:-d]))[:, None]
    rows, columns = (maps * math.prod(space_out) + place).ravel(), (maps * math.prod(space_in) + look).ravel()
    return call.step([Source((call.trace.node(x),), boolean(rows, columns, (call.out.numel(), x.numel())))])
