"""What a torch function does to single numbers: each operation as a step on vectors, by rules for the operations.

The function runs once, on real numbers, and every operation that sees x is written down. A step makes a vector v from
vectors u_1, .., u_k made before,

    v_e = g_e(numbers of u_1 at map_1(e), .., numbers of u_k at map_k(e)),

and says which pairs (i, j) of its sources interact: where d^2 v_e / du_i du_j need not vanish. Views need no rule, for
what is kept is what lies in memory: a tensor is read by its strides, and written into when an operation works in place.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.sparse import csr_array
from torch import Tensor
from torch._C._functorch import get_unwrapped, is_functorch_wrapped_tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

aten = torch.ops.aten
Map = np.ndarray | csr_array | None  # one number each, -1: none; several; None: the number at the same place


class NotSparse(ValueError):  # noqa: N818  # what the Hessian is, no mistake
    """The Hessian has too many entries, or finding them would take too much time."""


@dataclass(frozen=True)
class Source:
    nodes: tuple[int, ...]  # the map counts through them one after the other
    map: Map = None


@dataclass(frozen=True)
class Step:
    size: int
    sources: tuple[Source, ...] = ()
    curved: tuple[tuple[int, int], ...] = ()


@dataclass
class Content:
    """What lies in one storage, as a vector: node, counted in numbers of dtype."""

    storage: Any  # kept alive, so that no other storage takes its address
    dtype: torch.dtype
    node: int


@dataclass(frozen=True)
class Call:
    """One operation with its arguments, and one tensor that it returned."""

    trace: Trace
    func: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    out: Tensor

    @property
    def name(self) -> str:
        return self.func._schema.name.removeprefix("aten::")

    def __getitem__(self, name: str) -> Any:
        for k, argument in enumerate(self.func._schema.arguments):
            if argument.name == name:
                return self.args[k] if k < len(self.args) else self.kwargs.get(name, argument.default_value)
        return None

    @property
    def tensors(self) -> list[Tensor]:
        return _tensors((self.args, self.kwargs))

    @property
    def variables(self) -> list[Tensor]:
        """The arguments that have derivatives."""
        return [t for t in self.tensors if self.trace.follows(t) and _is_real_or_complex(t)]

    @property
    def moves_by_variables(self) -> bool:
        return any(self.trace.follows(t) and not _is_real_or_complex(t) for t in self.tensors)

    def expanded(self, t: Any) -> list[Source]:
        """t as a source of an elementwise operation; none if it is a constant."""
        return [self.trace.read(t.expand(self.out.shape))] if self.trace.follows(t) else []

    def nonzero(self, t: Any) -> np.ndarray | None:
        """Where a constant differs from 0, as an elementwise operation sees it; None for a variable."""
        if self.trace.follows(t):
            return None
        return (torch.as_tensor(t != 0, device=self.out.device)).expand(self.out.shape).reshape(-1).cpu().numpy()

    def step(self, sources: Sequence[Source], curved: Sequence[tuple[int, int]] = ()) -> int:
        return self.trace.add(self.out.numel(), sources, curved)


class Trace(TorchDispatchMode):
    """The steps of a function while it runs. max_maps bounds the entries of a single map."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import the compiler, for a second or more, at the first operation

    def __init__(self, max_maps: int):
        super().__init__()
        self.max_maps = max_maps
        self.steps: list[Step] = []
        self._content: dict[int, Content] = {}

    def add(self, size: int, sources: Sequence[Source] = (), curved: Sequence[tuple[int, int]] = ()) -> int:
        self.steps.append(Step(size, tuple(sources), tuple(curved)))
        return len(self.steps) - 1

    def follows(self, t: Any) -> bool:
        """Whether t holds what may differ from one x to the next."""
        return isinstance(t, Tensor) and t.layout == torch.strided and t.untyped_storage()._cdata in self._content

    def read(self, t: Tensor) -> Source:
        content = self._content[t.untyped_storage()._cdata]
        if content.dtype.to_real() != t.dtype.to_real():
            raise ValueError(f"fun views {content.dtype} as {t.dtype}: {UNKNOWN}")
        size = self.steps[content.node].size
        if t.dtype == content.dtype:
            if t.numel() == size and t.is_contiguous():
                return Source((content.node,))
            return Source((content.node,), places(t).reshape(-1))
        if content.dtype.is_complex:
            return Source((content.node,), places(t).reshape(-1) // 2)
        pairs = 2 * places(t).reshape(-1, 1) + np.arange(2)
        return Source((content.node,), boolean(np.arange(len(pairs)).repeat(2), pairs.ravel(), (len(pairs), size)))

    def node(self, t: Tensor) -> int:
        """The numbers of t, in the order of its elements."""
        if not self.follows(t):
            return self.add(t.numel())
        source = self.read(t)
        return source.nodes[0] if source.map is None else self.add(t.numel(), [source])

    def write(self, t: Tensor, node: int) -> None:
        storage = t.untyped_storage()
        size = storage.nbytes() // t.element_size()
        content = self._content.get(storage._cdata)
        if size != t.numel() or not t.is_contiguous():
            old = self.add(size) if content is None else content.node
            if content is not None and content.dtype != t.dtype:
                if content.dtype.to_real() != t.dtype:
                    raise ValueError(f"fun writes {t.dtype} into {content.dtype}: {UNKNOWN}")
                old = self.add(size, [Source((old,), np.arange(size) // 2)])  # complex numbers, by their parts
            kept = np.arange(size)
            kept[places(t).reshape(-1)] = size + np.arange(t.numel())
            node = self.add(size, [Source((old, node), kept)])
        self._content[storage._cdata] = Content(storage, t.dtype, node)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.removeprefix("aten::")
        followed = any(self.follows(t) for t in _tensors((args, kwargs)))
        if name in RANDOM or (torch.Tag.nondeterministic_seeded in func.tags and not followed):
            out = func(*args, **kwargs)
            for t in _tensors(out):
                self.write(t, self.add(t.numel()))  # no constant: the next call makes other numbers
            return out
        if not followed:
            return func(*args, **kwargs)
        written = [a.name for a in func._schema.arguments if a.alias_info is not None and a.alias_info.is_write]
        if func.is_view or torch.Tag.inplace_view in func.tags:
            out = func(*args, **kwargs)
            if not all(map(self.follows, _tensors(out))):
                raise ValueError(_no_rule(func))
            return out
        if written and (name.endswith("_") or written == ["out"]):
            return self._in_place(func, name.removesuffix("_"), args, kwargs)
        _refuse_shapes_by_values(self, func, name, args)
        rewritten = REWRITE.get(name) or (None if _rule(func, name) else _decomposition(func))
        if rewritten:
            with self:
                out = rewritten(*args, **kwargs)
            if out is not NotImplemented:
                return out
        if written:
            raise ValueError(_no_rule(func))
        out = func(*args, **kwargs)
        for leaf in pytree.tree_leaves(out):
            if not isinstance(leaf, Tensor | None):
                raise ValueError(_by_values(func))
            if leaf is not None and not self.follows(leaf):
                self._record(Call(self, func, args, kwargs, leaf))
        return out

    def _record(self, call: Call) -> None:
        if call.name in CONSTANT:
            return
        if call.out.layout != torch.strided:
            raise ValueError(f"{_no_rule(call.func)}, where sparse tensors depend on x")
        differentiable = _is_real_or_complex(call.out) and call.variables
        rule = _rule(call.func, call.name) or everything
        self.write(call.out, rule(call) if differentiable else self.add(call.out.numel()))

    def _in_place(self, func: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor:
        """The same operation out of place, and its result then copied to where it belongs."""
        kwargs = dict(kwargs)
        target = kwargs.pop("out") if "out" in kwargs else args[0]
        if not (hasattr(aten, name) and isinstance(target, Tensor)):
            raise ValueError(_no_rule(func))
        with self:
            result = getattr(aten, name)(*args, **kwargs)
        if target.shape != result.shape:
            raise ValueError(
                f"expected out= of shape {tuple(result.shape)} for {func}, got {tuple(target.shape)}; leave out= away"
            )
        target.copy_(result)
        self.write(target, self.node(result))
        return target


class Guard(TorchFunctionMode):
    """Refuses what takes the values of x out of torch without any operation."""

    def __init__(self, trace: Trace):
        super().__init__()
        self._trace = trace

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        copies = func in COPIES and not all(isinstance(given, Tensor) for given in args)
        if (func in LEAVES or copies) and any(self._trace.follows(_plain(t)) for t in _tensors((args, kwargs))):
            raise ValueError(_by_values(func.__name__))
        return func(*args, **(kwargs or {}))


LEAVES = (Tensor.tolist, Tensor.numpy, Tensor.__array__, Tensor.__dlpack__)
COPIES = (torch.tensor, torch.as_tensor, torch.asarray, Tensor.new_tensor)  # of lists of tensors


def _plain(t: Tensor) -> Tensor:
    while is_functorch_wrapped_tensor(t):
        t = get_unwrapped(t)
    return t


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]


def _is_real_or_complex(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def places(t: Tensor) -> np.ndarray:
    """Where the elements of t lie in their storage."""
    found = np.array(t.storage_offset())
    for length, stride in zip(t.shape, t.stride(), strict=True):
        found = found[..., None] + stride * np.arange(length)
    return found


def boolean(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> csr_array:
    return csr_array((np.ones(len(rows), bool), (rows, columns)), shape=shape)


# ---- what cannot be followed

UNKNOWN = "expected operations whose dependencies are known; write it in others, out of place, or give the sparsity"


def _no_rule(func: Any) -> str:
    return f"fun calls {func}: {UNKNOWN}"


def _by_values(func: Any) -> str:
    return (
        f"fun takes values of x out as plain numbers or shapes (by {func}), on which its further path may depend; "
        "expected torch operations only: write torch.where for if, torch.stack for torch.tensor, and leave out "
        "float(), .item(), .tolist(), .numpy() and comparisons as conditions"
    )


def _refuse_shapes_by_values(trace: Trace, func: Any, name: str, args: tuple[Any, ...]) -> None:
    masks = [t for t in _tensors(args) if t.dtype in (torch.bool, torch.uint8)]
    by_mask = name in ("index", "masked_select")
    if torch.Tag.dynamic_output_shape in func.tags and (not by_mask or any(map(trace.follows, masks))):
        raise ValueError(_by_values(func))


def _decomposition(func: Any) -> Callable[..., Any] | None:
    if func._can_decompose():  # only in inference mode; torch has taken it apart otherwise
        return func.decompose
    from torch._decomp import decomposition_table

    return decomposition_table.get(func)


# ---- elementwise


def elementwise(call: Call) -> int:
    """Piecewise linear, in all arguments together."""
    return call.step([s for t in call.variables for s in call.expanded(t)])


def curved(call: Call) -> int:
    """Any elementwise function."""
    sources = [s for t in call.variables for s in call.expanded(t)]
    return call.step(sources, pairs(len(sources)))


def pairs(k: int) -> list[tuple[int, int]]:
    return list(itertools.combinations_with_replacement(range(k), 2))


def curved_if_complex(call: Call) -> int:
    return (curved if call["self"].is_complex() else elementwise)(call)


def only(source: Source, kept: np.ndarray | None) -> Source:
    """The source for the elements that are kept; nothing goes into the others."""
    if kept is None or kept.all():
        return source
    if source.map is None or isinstance(source.map, np.ndarray):
        return Source(source.nodes, np.where(kept, np.arange(len(kept)) if source.map is None else source.map, -1))
    entries = source.map.tocoo()
    at = kept[entries.row]
    return Source(source.nodes, boolean(entries.row[at], entries.col[at], source.map.shape))


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
        if not _is_real_or_complex(value):
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


def reduction(bent: bool) -> Callable[[Call], int]:
    """One number of each group."""

    def rule(call: Call) -> int:
        (t,) = call.variables
        group, groups = _groups(call, t)
        return call.trace.add(groups.size, [_gather(call, t, group, groups.size)], [(0, 0)] if bent else [])

    return rule


def mixing(bent: bool) -> Callable[[Call], int]:
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


# ---- products


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
    """mm, bmm, mv, dot: out_bil = sum_j A_bij C_bjl, sums over the nonzeros of a constant only."""
    A, C = call.tensors[:2]
    m = A.shape[-2] if A.ndim > 1 else 1
    k = A.shape[-1]
    n = C.shape[-1] if C.ndim > 1 else 1
    count = A.shape[0] if A.ndim == 3 else 1
    if call.trace.follows(A) and call.trace.follows(C):
        _bound(call, count * m * k * n)
        b, i, j, r = (index.ravel() for index in np.indices((count, m, k, n)))
    elif call.trace.follows(C):
        found = _entries(A)
        _bound(call, len(found[0]) * n)
        b, i, j = [*[np.zeros_like(found[0])] * 2, *found][-3:]
        b, i, j, r = *(index.repeat(n) for index in (b, i, j)), np.tile(np.arange(n), len(b))
    else:
        found = _entries(C)
        _bound(call, len(found[0]) * m)
        found = found if C.ndim > 1 else [*found, np.zeros_like(found[0])]
        b, j, r = [np.zeros_like(found[0]), *found][-3:]
        b, j, r, i = *(index.repeat(m) for index in (b, j, r)), np.tile(np.arange(m), len(b))
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


# ---- the table


def _names(names: str) -> frozenset[str]:
    return frozenset(names.split())


def _named(names: str, rule: Callable[[Call], int]) -> dict[str, Callable[[Call], int]]:
    return dict.fromkeys(_names(names), rule)


RULES = {
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


def _rule(func: Any, name: str) -> Callable[[Call], int] | None:
    rule = RULES.get(name) if func.namespace == "aten" else None
    return curved if rule is None and torch.Tag.pointwise in func.tags else rule


def _plus(product: Callable[[Tensor, Tensor], Tensor]) -> Callable[..., Tensor]:
    return lambda c, a, b, *, beta=1, alpha=1: beta * c + alpha * product(a, b)


CONSTANT = _names(
    "empty_like zeros_like ones_like full_like new_empty new_empty_strided new_full new_ones new_zeros zero"
)
RANDOM = _names(  # what they return has no derivatives
    "bernoulli bernoulli_ binomial cauchy_ exponential_ geometric_ log_normal_ multinomial normal normal_ poisson "
    "rand_like randint_like randn_like random_ uniform_"
)

REWRITE: dict[str, Callable[..., Any]] = {
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
