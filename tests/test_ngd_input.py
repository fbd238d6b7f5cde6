"""Bad input to NGD: an error that says what was expected, what came, and of which parameter it speaks."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import natgrad as ng


def ones(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.ones(shape))


nan, inf = math.nan, math.inf

NUMBERS: list[tuple[str, Any, str]] = [
    *(("lr", value, "lr must be a finite number >= 0, got ") for value in (-1e-3, nan, inf, "a", True, None, 1j)),
    ("lr", torch.ones(2), "lr must be a finite number >= 0, got tensor"),
    *(("momentum", value, r"momentum must be a number in \[0, 1\), got ") for value in (-0.1, 1, 1.5, nan, None)),
    *(("weight_decay", value, "weight_decay must be a finite number >= 0, got ") for value in (-1, nan, inf, "b")),
    *(("damping", value, "damping must be a finite number >= 0, got ") for value in (-1e-9, nan, inf, None)),
    *(("gamma", value, "gamma must be a finite number > 0, got ") for value in (0, -1, nan, inf)),
    *(("samples", value, "samples must be a finite number > 0, got ") for value in (0, -2, nan, inf)),
    *(("beta", value, r"beta must be a number in \(0, 1\], got ") for value in (0, -1, 1.5, nan, "c")),
    *(("power", value, "power must be 0.5 .* or 1 .*, got ") for value in (2, 0, 0.7, nan, "half", None)),
    *(("update_every", value, "update_every must be at least 1, got ") for value in (0, -3)),
    *(("update_every", value, "update_every must be a whole number, got ") for value in (1.5, None, True)),
    *(("maximize", value, "maximize must be True or False, got ") for value in (1, None, "yes")),
]


@pytest.mark.parametrize(("name", "value", "message"), NUMBERS, ids=str)
def test_options(name, value, message):
    with pytest.raises(ValueError, match=message):
        ng.NGD([ones(2, 2)], **{name: value})
    with pytest.raises(ValueError, match=message):
        ng.NGD([{"params": [ones(2, 2)]}, {"params": [ones(3)], name: value}])


@pytest.mark.parametrize("name", ["lr", "momentum", "weight_decay", "damping"])
def test_options_may_be_zero(name):
    p = ones(2, 2)
    p.grad = torch.eye(2)
    ng.NGD([p], **{name: 0}).step()
    assert bool(p.isfinite().all())


def same_twice() -> list[Tensor]:
    p = ones(2)
    return [ones(3), p, p]


PARAMETERS: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: [], ValueError, "empty parameter list"),
    (lambda: ones(2), TypeError, "iterable of Tensors or dicts"),
    (
        lambda: same_twice(),
        ValueError,
        r"parameter 2 of shape \(2,\) is the same tensor as parameter 1; give each one once",
    ),
    (lambda: [ones(2), None], TypeError, "parameter 1 must be a tensor or a pair of a name and a tensor, got None"),
    (lambda: [ones(2), "weight"], TypeError, "parameter 1 must be a tensor .*, got 'weight'"),
    (lambda: [torch.ones(3, dtype=torch.cfloat)], ValueError, r"parameter 0 of shape \(3,\) is complex .*view_as_real"),
    (lambda: [("w", torch.ones(3, dtype=torch.cfloat))], ValueError, r"parameter 0 \(w\) of shape \(3,\) is complex"),
    (lambda: [ones(2, 2) * 2], ValueError, "non-leaf"),
    (lambda: [("a", ones(2)), ones(3)], ValueError, "with/without names"),
    (lambda: [{"params": p} for p in same_twice()], ValueError, "parameter 2 .* is the same tensor as parameter 1"),
]


@pytest.mark.parametrize(("make", "error", "message"), PARAMETERS, ids=[message for _, _, message in PARAMETERS])
def test_parameters(make, error, message):
    with pytest.raises(error, match=message):
        ng.NGD(make())


def nothing(shape):
    return None


ONE_OF = r"parameter 1 of shape \(2, 3\): expected a structure, a pair \(out side, in side\) or a function of the shape"
SIDE = r"parameter 1 of shape \(2, 3\): each side takes a structure of one size, as Dense\(\) or Lower\(3\), got "
TWO = ng.Kronecker(ng.Dense(), ng.Dense())

STRUCTURES: list[tuple[Any, str]] = [
    (3, f"{ONE_OF}.*, got 3"),
    (None, f"{ONE_OF}.*, got None"),
    ("Dense", f"{ONE_OF}.*, got 'Dense'"),
    ((ng.Dense(),), rf"{ONE_OF}.*, got \(Dense\(\),\)"),
    ((ng.Dense(),) * 3, f"{ONE_OF}.*, got .*Dense"),
    ((ng.Dense(), 3), f"{SIDE}3"),
    ((ng.Dense(), TWO), f"{SIDE}Kronecker"),
    (ng.Kronecker(TWO, ng.Dense()), f"{SIDE}Kronecker"),
    (nothing, f"{ONE_OF}.*, got None"),
    (lambda shape: "Dense", f"{ONE_OF}.*, got 'Dense'"),
    (lambda shape: [ng.Dense()], rf"{ONE_OF}.*, got \[Dense\(\)\]"),
    (lambda shape: nothing, f"{ONE_OF}.*, got <function nothing"),
    ((ng.Dense(), ng.BlockDiagonal(2)), r"parameter 1 of shape \(2, 3\): .*that 2 divides, got p=3"),
    (ng.Lower(2, 1), r"parameter 1 of shape \(2, 3\): .*k1 \+ k2 = 3 and p = 2"),
    ((ng.Conjugate(ng.Lower(1), [1, 0, 2]), ng.Dense()), r"parameter 1 of shape \(2, 3\): .*is of size 3, got p=2"),
    ((ng.Dense(), ng.SparseCholesky(torch.eye(4).numpy())), r"parameter 1 of shape \(2, 3\): .*made for p=4, got p=3"),
]


@pytest.mark.parametrize("power", [0.5, 1])
@pytest.mark.parametrize(("structure", "message"), STRUCTURES, ids=[message for _, message in STRUCTURES])
def test_structures(power, structure, message):
    """The first parameter would take any of them: its sides are diagonal unless a function says otherwise."""
    first = {"params": [ones(4)], "structure": ng.Dense()}
    with pytest.raises(ValueError, match=message):
        ng.NGD([first, {"params": [ones(2, 3)]}], structure=structure, power=power)


def test_a_vector_has_one_side():
    for choice in ((ng.Dense(), ng.Dense()), TWO):
        with pytest.raises(
            ValueError, match=r"parameter 0 of shape \(3,\): expected one structure or a function .*, got \("
        ):
            ng.NGD([ones(3)], structure=lambda shape, choice=choice: choice)
    assert ng.NGD([ones(3)], structure=lambda shape: ng.Lower(2)).diagnostics()[0]["structure"] == (ng.Lower(2),)


@pytest.mark.parametrize("limit", [0, -3])
def test_blocks_need_a_size(limit):
    with pytest.raises(ValueError, match=f"limit must be at least 1, got {limit}"):
        ng.Blocks(limit)
    with pytest.raises(ValueError, match=f"size must be at least 1, got {limit}"):
        ng.Blocks(size=limit)
    with pytest.raises(ValueError, match=r"limit must be a whole number, got 2\.5"):
        ng.Blocks(2.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": -1}, "k must be at least 0, got -1"),
        ({"k": 1.5}, r"k must be a whole number, got 1\.5"),
        ({"weight_decay": -1.0}, "weight_decay must be a finite number >= 0, got -1"),
        ({"lr": nan}, "lr must be a finite number >= 0, got nan"),
        ({"samples": 0}, "samples must be a finite number > 0, got 0"),
    ],
)
def test_the_papers_method(options, message):
    with pytest.raises(ValueError, match=message):
        ng.NGD.paper([ones(2, 2)], **{"lr": 0.1, "k": 1, "weight_decay": 0.0, **options})


@pytest.mark.parametrize(
    ("d", "side"),
    [
        (8, ng.Dense()),
        (9, ng.BlockDiagonal(3)),
        (10, ng.BlockDiagonal(2)),
        (16, ng.BlockDiagonal(4)),
        (22, ng.BlockDiagonal(2)),
        (23, ng.Diagonal()),
    ],
)
def test_blocks_are_the_largest_that_divide(d, side):
    """Dense up to the limit, then equal blocks of at most the size, and the diagonal for a large prime."""
    blocks = ng.Blocks(8, size=4)
    assert blocks((d, 3)) == (side, ng.Dense())
    assert blocks((d,)) == ng.Diagonal()
    assert blocks((3, d, 1, 1)) == (ng.Dense(), side)
    assert ng.Blocks(4)((d, 3))[0] == (ng.BlockDiagonal(4) if d % 4 == 0 else side)  # no block beyond the limit
