"""Rules for the operations: elementwise ones, those that move numbers, sums; and the table of all rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from natgrad.minimization.sparsity_products import convolution, matmul, pooling
from natgrad.minimization.sparsity_trace import Call, Rule, Rules, Source, boolean, is_real_or_complex, only, pairs

# ---- elementwise


def elementwise(call: Call) -> int:
    """Piecewise linear, in all arguments together."""
    return call.step([s for t in call.variables for s in call.expanded(t)])


def curved(call: Call) -> int:
    """Any elementwise function."""
    sources = [s for t in call.variables for s in call.expanded(t)]
    return call.step(sources, pairs(len(sources)))


def curved_if_complex(call: Call) -> int:
    return (curved if call["self"].is_complex() else elementwise)(call)


def mul(call: Call) -> int:
    a, b = call["self"], call["other"]
    sources = [only(s, call.nonzero(b)) for s in call.expanded(a)]
    sources += [only(s, call.nonzero(a)) for s in call.expanded(b)]
    return call.step(sources, [(0, 1)] if len(sources) == 2 else [])


def div(call: Call) -> int:
    a, b = call["self"], call["other"]
    if call["rounding_mode"] is not None:
        return elementwise(call)
    above = call.expanded(a)
    below = [only(s, call.nonzero(a)) for s in call.expanded(b)]
    k = len(above)
    return call.step(above + below, ([(0, 1)] if k and below else []) + ([(k, k)] if below else []))


def power(call: Call) -> int:
    base, exponent = call["self"], call["exponent"]
    if call.trace.follows(exponent):
        one = call.nonzero(base - 1) if not call.trace.follows(base) else None
        sources = call.expanded(base) + [only(s, one) for s in call.expanded(exponent)]
        return call.step(sources, pairs(len(sources)))
    (source,) = call.expanded(base)
    used = call.nonzero(exponent)
    assert used is not None
    bent = used & call.nonzero(exponent - 1)
    sources = [only(source, used & ~bent)] if not bent.all() else []
    return call.step([*sources, only(source, bent)], [(len(sources), len(sources))] if bent.any() else [])


def where(call: Call) -> int:
    condition = call["condition"]
    chosen = call.nonzero(condition)
    sources = [only(s, chosen) for s in call.expanded(call["self"])]
    sources += [only(s, None if chosen is None else ~chosen) for s in call.expanded(call["other"])]
    return call.step(sources)


def copy(call: Call) -> int:
    return call.step(call.expanded(call["src"]))


# ---- moving numbers about


def moving(call: Call) -> int:
    """Done to the numbers of the elements, the operation says where each one comes from; 0: a constant."""
    if call.moves_by_variables:
        return everything(call, bent=False)
    nodes, count = [], 0

    def numbered(name: str, value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return [numbered(name, v) for v in value]
        if not isinstance(value, Tensor):
            return 0.0 if name == "value" and value is not None else value
        if not is_real_or_complex(value):
            return value
        nonlocal count
        numbers = torch.zeros(value.shape, dtype=torch.float64, device=value.device)
        if call.trace.follows(value):
            nodes.append(call.trace.node(value))
            first, count = count + 1, count + value.numel()
            numbers = torch.arange(first, count + 1, dtype=torch.float64, device=value.device).reshape(value.shape)
        return numbers

    names = [argument.name for argument in call.func._schema.arguments]
    args = [numbered(name, value) for name, value in zip(names, call.args, strict=False)]
    kwargs = {name: None if name == "dtype" else numbered(name, value) for name, value in call.kwargs.items()}
    origin = call.func(*args, **kwargs).reshape(-1).long().cpu().numpy() - 1
    return call.step([Source(tuple(nodes), origin)])


def writing(call: Call) -> int:
    """self with values put into it, or joined to it, at indices.

    Of several values at one place all count: autograd differentiates by each, although one overwrites the others.
    """
    given = [call[name] for name in ("values", "source", "src")]
    values = next((v for v in given if isinstance(v, Tensor)), torch.zeros((), device=call.out.device))
    bent = call["reduce"] in ("prod", "multiply")
    sources = call.expanded(call["self"])
    if call.moves_by_variables:
        if call.trace.follows(values):
            joined = call.trace.add(1, [_gather(call, values, np.zeros(values.numel(), np.int64), 1)])
            sources.append(Source((joined,), np.zeros(call.out.numel(), np.int64)))
        return call.step(sources, pairs(len(sources)) if bent else [])
    target = torch.arange(call.out.numel(), device=call.out.device).reshape(call.out.shape)
    if call["indices"] is not None:
        target = target[tuple(slice(None) if index is None else index for index in call["indices"])]
    elif call.name in ("index_add", "index_copy"):
        target = target.index_select(call["dim"], call["index"])
    elif call.name == "put":
        target = target.take(call["index"]).reshape(values.shape)
    else:
        target = target.gather(call["dim"], call["index"])
        values = values[tuple(slice(n) for n in target.shape)] if values.ndim else values
    group = target.reshape(-1).cpu().numpy()
    if not (call["accumulate"] or call["reduce"] or call.name in ("index_add", "scatter_add")):
        kept = np.ones(call.out.numel(), bool)
        kept[group] = False
        sources = [only(source, kept) for source in sources]
    if call.trace.follows(values):
        sources.append(_gather(call, values.expand(target.shape), group, call.out.numel()))
    return call.step(sources, pairs(len(sources)) if bent else [])


# ---- sums and what else joins numbers


def _gather(call: Call, t: Tensor, group: np.ndarray, groups: int) -> Source:
    """Each group takes up its elements of t, wherever they lie."""
    node = call.trace.node(t)
    return Source((node,), boolean(group, np.arange(len(group)), (groups, len(group))))


def _groups(call: Call, t: Tensor) -> tuple[np.ndarray, np.ndarray]:
    """The group of each element of t, all that differ along `dim` only; the numbers of the groups in their shape."""
    dims = call["dim"]
    dims = [dims] if isinstance(dims, int) else dims
    dims = range(t.ndim) if dims is None or not len(dims) else [d % t.ndim for d in dims if t.ndim]
    kept = [1 if d in dims else n for d, n in enumerate(t.shape)]
    groups = np.arange(math.prod(kept)).reshape(kept)
    return np.broadcast_to(groups, tuple(t.shape)).reshape(-1), groups


def reduction(bent: bool) -> Rule:
    """One number of each group."""

    def rule(call: Call) -> int:
        (t,) = call.variables
        group, groups = _groups(call, t)
        return call.trace.add(groups.size, [_gather(call, t, group, groups.size)], [(0, 0)] if bent else [])

    return rule


def mixing(bent: bool) -> Rule:
    """Each number from all of its group."""

    def rule(call: Call) -> int:
        (t,) = call.variables
        group, groups = _groups(call, t)
        joined = call.trace.add(groups.size, [_gather(call, t, group, groups.size)], [(0, 0)] if bent else [])
        return call.step([Source((joined,), np.broadcast_to(groups, tuple(call.out.shape)).reshape(-1))])

    return rule


def vector_norm(call: Call) -> int:
    return reduction(bent=call["ord"] not in (1, math.inf, -math.inf))(call)


def cumsum(call: Call) -> int:
    (t,) = call.variables
    n = t.shape[call["dim"]] if t.ndim else 1
    if t.numel() * (n + 1) // 2 > call.trace.max_maps:
        return mixing(bent=False)(call)
    numbers = np.moveaxis(np.arange(t.numel()).reshape(tuple(t.shape) or (1,)), call["dim"], -1)
    i, j = np.tril_indices(n)
    pattern = boolean(numbers[..., i].ravel(), numbers[..., j].ravel(), (t.numel(), t.numel()))
    return call.step([Source((call.trace.node(t),), pattern)])


def everything(call: Call, bent: bool = True) -> int:
    """Nothing known but the arguments: each number from all of them; one matrix of a batch has nothing of the next."""
    tensors = call.variables
    by_matrix = ("linalg" in call.name or "cholesky" in call.name) and call["dim"] is None
    batch = tensors[0].shape[:-2] if by_matrix else ()
    if any(t.shape[:-2] != batch for t in tensors) or call.out.shape[: len(batch)] != batch:
        batch = ()
    count = math.prod(batch)
    sources = [_gather(call, t, np.arange(count).repeat(t.numel() // max(1, count)), count) for t in tensors]
    joined = call.trace.add(count, sources, pairs(len(sources)) if bent else [])
    return call.step([Source((joined,), np.arange(count).repeat(call.out.numel() // max(1, count)))])


# ---- the table


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


def _named(names: str, rule: Rule) -> dict[str, Rule]:
    return dict.fromkeys(_names(names), rule)


def _plus(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda c, a, b, *, beta=1, alpha=1: beta * c + alpha * product(a, b)


BY_NAME: dict[str, Rule] = {
    **_named("mul", mul),
    **_named("div true_divide", div),
    **_named("pow float_power", power),
    **_named("where", where),
    **_named("copy", copy),
    **_named("abs sgn angle", curved_if_complex),
    **_named(
        "add sub rsub neg relu relu6 clamp clamp_min clamp_max hardtanh leaky_relu threshold maximum minimum fmax fmin "
        "sign floor ceil round trunc frac fix fmod remainder floor_divide nan_to_num hardshrink softshrink copysign "
        "_conj_physical conj_physical native_dropout positive clone _to_copy complex",
        elementwise,
    ),
    **_named(
        "cat stack index index_select gather take roll flip constant_pad_nd reflection_pad1d reflection_pad2d "
        "reflection_pad3d replication_pad1d replication_pad2d replication_pad3d repeat repeat_interleave tril triu "
        "diag_embed index_fill slice_scatter select_scatter diagonal_scatter masked_select "
        "masked_scatter fill embedding im2col _unsafe_index _unsafe_view pixel_shuffle pixel_unshuffle channel_shuffle",
        moving,
    ),
    **_named("index_put _unsafe_index_put index_add scatter_add scatter_reduce scatter index_copy put", writing),
    **_named("sum nansum mean amax amin max min median nanmedian kthvalue mode aminmax", reduction(bent=False)),
    **_named("prod var std var_mean std_mean logsumexp", reduction(bent=True)),
    **_named("sort msort topk cummax cummin _fft_r2c _fft_c2r _fft_c2c", mixing(bent=False)),
    **_named("_softmax _log_softmax cumprod logcumsumexp", mixing(bent=True)),
    **_named("linalg_vector_norm", vector_norm),
    **_named("cumsum", cumsum),
    **_named("mm bmm mv dot vdot _sparse_mm", matmul),
    **_named("convolution", convolution),
    **_named("avg_pool2d avg_pool3d max_pool2d_with_indices max_pool3d_with_indices", pooling),
}

CONSTANT = _names(
    "empty_like zeros_like ones_like full_like new_empty new_empty_strided new_full new_ones new_zeros zero"
)
RANDOM = _names(
    "bernoulli bernoulli_ binomial cauchy_ exponential_ geometric_ log_normal_ multinomial normal normal_ poisson "
    "rand_like randint_like randn_like random_ uniform_"
)

REWRITTEN: dict[str, Callable[..., Any]] = {
    "addmm": _plus(torch.matmul),
    "_sparse_addmm": _plus(torch.matmul),
    "addmv": _plus(torch.matmul),
    "baddbmm": _plus(torch.matmul),
    "addbmm": _plus(lambda a, b: torch.bmm(a, b).sum(0)),
    "addr": _plus(torch.outer),
    "addcmul": lambda a, b, c, *, value=1: a + value * b * c,
    "addcdiv": lambda a, b, c, *, value=1: a + value * b / c,
    "lerp": lambda a, b, weight: a + weight * (b - a),
    "xlogy": lambda a, b: a * torch.log(b if isinstance(b, Tensor) else torch.tensor(b)),
    "mse_loss": lambda a, b, reduction=1: [torch.clone, torch.mean, torch.sum][reduction]((a - b) ** 2),
    "masked_fill": lambda a, mask, value: torch.where(mask, value, a),
}

RULES = Rules(
    by_name=BY_NAME, pointwise=curved, otherwise=everything, rewritten=REWRITTEN, constant=CONSTANT, random=RANDOM
)
