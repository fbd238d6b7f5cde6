"""A Hessian known by its products."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from natgrad.groups import check


class Hessian:
    """A symmetric matrix H given by `product(V)` = H V on blocks V of vectors, (*batch, p, r); it counts them.

    >>> H = Hessian(lambda V: 2 * V)
    >>> _ = Lower(3).identity(10).pull(H, diagonal=torch.full((10,), 2.0))
    >>> H.products
    3

    A function of one vector becomes one of blocks by `torch.func.vmap(product, in_dims=-1, out_dims=-1)`.
    """

    def __init__(self, product: Callable[[Tensor], Tensor]):
        if not callable(product):
            raise ValueError(
                f"a Hessian is given by a function, V -> H V, got {type(product).__name__}; wrap H: lambda V: H @ V"
            )
        self.product = product
        self.products = 0  # vectors multiplied so far, those of one batch counted once

    def __call__(self, V: Tensor) -> Tensor:
        if V.shape[-1] == 0:
            return V
        self.products += V.shape[-1]
        HV = self.product(V)
        if not isinstance(HV, Tensor):
            raise ValueError(f"hvp must return a torch tensor, but returned {type(HV).__name__}")
        if HV.shape != V.shape or HV.dtype != V.dtype or HV.device != V.device:
            raise ValueError(
                f"hvp must return H V of the same shape, dtype and device as V: it was given {tuple(V.shape)}, "
                f"{V.dtype}, {V.device} and returned {tuple(HV.shape)}, {HV.dtype}, {HV.device}; it is called with "
                "blocks of vectors, one in each column (torch.func.vmap with in_dims=-1, out_dims=-1 makes one of "
                "a function of single vectors)"
            )
        if not check.all_finite(HV):
            if not check.all_finite(V):
                raise check.NotFiniteError(
                    "the element is too badly conditioned to solve with: B^-T e is not finite; it is unchanged"
                )
            raise check.NotFiniteError("hvp returned NaN or infinity; the element it was meant for is unchanged")
        return HV
