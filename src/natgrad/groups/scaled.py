"""Multiples of an element, in every group."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

from natgrad.groups.base import Element
from natgrad.groups.kronecker import KroneckerMatrix

AnyElement = TypeVar("AnyElement", bound=Element)


def scaled(B: AnyElement, s: float) -> AnyElement:
    """s B for s > 0; both sides of a Kronecker product carry the root."""
    if isinstance(B, KroneckerMatrix):
        return replace(B, left=scaled(B.left, s**0.5), right=scaled(B.right, s**0.5))
    return B.map(lambda t: s * t)
