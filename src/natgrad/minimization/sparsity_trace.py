"""What a torch function does to single numbers: each operation as a step on vectors, by rules that are given.

The function runs once, on real numbers, and every operation that sees x is written down. A step makes a vector v from
vectors u_1, .., u_k made before,

    v_e = g_e(numbers of u_1 at map_1(e), .., numbers of u_k at map_k(e)),

and says which pairs (i, j) of its sources interact: where d^2 v_e / du_i du_j need not vanish. Views need no rule, for
what is kept is what lies in memory: a tensor is read by its strides, and written into when an operation works in place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
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
        return [t for t in self.tensors if self.trace.follows(t) and is_real_or_complex(t)]

    @property
    def moves_by_variables(self) -> bool:
        return any(self.trace.follows(t) and not is_real_or_complex(t) for t in self.tensors)

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


Rule = Callable[[Call], int]  # adds the steps of one operation; returns the node of what it makes


@dataclass(frozen=True)
class Rules:
    """What is known of the operations, by their names in aten."""

    by_name: Mapping[str, Rule]
    pointwise: Rule  # for those without a rule that torch tags as pointwise
    otherwise: Rule  # for all others that cannot be taken apart
    rewritten: Mapping[str, Callable[..., Any]]  # run as other operations instead
    constant: frozenset[str]  # what they return does not depend on their arguments
    random: frozenset[str]  # what they return has no derivatives

    def find(self, func: Any, name: str) -> Rule | None:
        rule = self.by_name.get(name) if func.namespace == "aten" else None
        return self.pointwise if rule is None and torch.Tag.pointwise in func.tags else rule


class Trace(TorchDispatchMode):
    """The steps of a function while it runs, by the rules. max_maps bounds the entries of a single map."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # True would import the compiler, for a second or more, at the first operation

    def __init__(self, max_maps: int, rules: Rules):
        super().__init__()
        self.max_maps = max_maps
        self._rules = rules
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
        if name in self._rules.random or (torch.Tag.nondeterministic_seeded in func.tags and not followed):
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
        rewritten = self._rules.rewritten.get(name)
        if not rewritten and not self._rules.find(func, name):
            rewritten = _decomposition(func)
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
        if call.name in self._rules.constant:
            return
        if call.out.layout != torch.strided:
            raise ValueError(f"{_no_rule(call.func)}, where sparse tensors depend on x")
        differentiable = is_real_or_complex(call.out) and call.variables
        rule = self._rules.find(call.func, call.name) or self._rules.otherwise
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


def is_real_or_complex(t: Tensor) -> bool:
    return t.is_floating_point() or t.is_complex()


def places(t: Tensor) -> np.ndarray:
    """Where the elements of t lie in their storage."""
    found = np.array(t.storage_offset())
    for length, stride in zip(t.shape, t.stride(), strict=True):
        found = found[..., None] + stride * np.arange(length)
    return found


def boolean(rows: np.ndarray, columns: np.ndarray, shape: tuple[int, int]) -> csr_array:
    return csr_array((np.ones(len(rows), bool), (rows, columns)), shape=shape)


def only(source: Source, kept: np.ndarray | None) -> Source:
    """The source for the elements that are kept; nothing goes into the others."""
    if kept is None or kept.all():
        return source
    if source.map is None or isinstance(source.map, np.ndarray):
        return Source(source.nodes, np.where(kept, np.arange(len(kept)) if source.map is None else source.map, -1))
    entries = source.map.tocoo()
    at = kept[entries.row]
    return Source(source.nodes, boolean(entries.row[at], entries.col[at], source.map.shape))


def pairs(k: int) -> list[tuple[int, int]]:
    return list(itertools.combinations_with_replacement(range(k), 2))


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
