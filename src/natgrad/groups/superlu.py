"""Sparse L D L^T by SuperLU, which comes with SciPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy.sparse import csc_array
from scipy.sparse.linalg import splu


def symmetric_lu(S: csc_array) -> Any | None:
    """SuperLU's L and U = D L^T of a symmetric matrix in the order given, or None if it is not positive definite.

    Without pivoting, D tells. SuperLU may renumber within the elimination tree, rows as columns (`perm_r`).
    """
    try:
        lu = splu(S, permc_spec="NATURAL", diag_pivot_thresh=0.0, panel_size=1, options={"SymmetricMode": True})
    except RuntimeError:  # exactly singular
        return None
    return lu if np.array_equal(lu.perm_r, lu.perm_c) and (lu.U.diagonal() > 0).all() else None
