"""Arrays inside descriptions: read-only, compared and hashed by what they hold."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import Any

import numpy as np


class FrozenArray:
    """A read-only NumPy array that can be a field of an immutable description."""

    def __init__(self, array: Any):
        self.array = np.array(array)
        self.array.setflags(write=False)

    @cached_property
    def _digest(self) -> bytes:
        text = f"{self.array.dtype} {self.array.shape}".encode()
        return hashlib.sha256(text + np.ascontiguousarray(self.array).tobytes()).digest()

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, FrozenArray) and self._digest == other._digest)

    def __hash__(self) -> int:
        return hash(self._digest)

    def __reduce__(self) -> tuple[type[FrozenArray], tuple[np.ndarray]]:
        return FrozenArray, (self.array,)

    def __repr__(self) -> str:
        if self.array.size <= 8:
            return str(self.array.tolist())
        return f"<{' x '.join(map(str, self.array.shape))} {self.array.dtype}>"
