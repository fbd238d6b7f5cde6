"""Which matrix a parameter is, and which group acts on each of its sides.

shape                      W             sides
()                         1             out = 1
(n,)                       n             out = n: the diagonal group, unless a function of the shape says otherwise
(out, in)                  out x in      out, in
(out, in, k, k), longer    out x in k k  out, in k k
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from natgrad.groups import BlockDiagonal, Dense, Diagonal, Kronecker, Structure, check

Pair: TypeAlias = tuple[Structure, Structure]
Choice: TypeAlias = "Structure | Pair | Callable[[tuple[int, ...]], Structure | Pair]"


def sizes(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The length of each side: (out,) or (out, in)."""
    return (math.prod(shape),) if len(shape) < 2 else (shape[0], math.prod(shape[1:]))


def matrix(shape: tuple[int, ...]) -> tuple[int, int]:
    """(out, in), with in = 1 for what has no second dimension."""
    out, inside, *_ = *sizes(shape), 1
    return out, inside


@dataclass(frozen=True)
class Blocks:
    """Dense sides up to `limit`; longer ones in equal dense blocks, of the largest size up to `size` that divides.

    A side without a divisor from size / 8 on (a large prime) gets the diagonal group. Blocks(64) is the choice for
    little memory: no block is longer than `limit`.
    """

    limit: int = 288  # 32 channels of a 3 x 3 convolution
    size: int = 96

    def __post_init__(self) -> None:
        check.count(self.limit, "limit", least=1)
        check.count(self.size, "size", least=1)

    def __call__(self, shape: tuple[int, ...]) -> Structure | Pair:
        if len(shape) < 2:
            return Diagonal()
        if math.prod(shape[1:]) == 1:  # one number a channel: a vector by another name
            return Diagonal(), Dense()
        out, inside = map(self.side, sizes(shape))
        return out, inside

    def side(self, d: int) -> Structure:
        if d <= self.limit:
            return Dense()
        most = min(self.size, self.limit)
        size = max(s for s in range(1, most + 1) if d % s == 0)
        return BlockDiagonal(size) if size > max(1, most // 8) else Diagonal()


def structures(choice: object, shape: tuple[int, ...]) -> tuple[Structure, ...]:
    """One structure for each side of a parameter of this shape."""
    vector = len(shape) < 2
    given: Any = choice
    if callable(choice) and not isinstance(choice, Structure | type):
        given = choice(shape)
    elif vector:
        given = Diagonal()
    if isinstance(given, Kronecker):
        given = (given.left, given.right)
    if isinstance(given, Structure):
        given = (given,) if vector else (given, given)
    expected = "one structure" if vector else "a structure, a pair (out side, in side)"
    if not isinstance(given, tuple) or len(given) != len(sizes(shape)):
        raise ValueError(f"expected {expected} or a function of the shape that returns one, got {check.brief(given)}")
    for side in given:
        if not isinstance(side, Structure) or isinstance(side, Kronecker):
            raise ValueError(
                f"each side takes a structure of one size, as Dense() or Lower(3), got {check.brief(side)}"
            )
    return given
