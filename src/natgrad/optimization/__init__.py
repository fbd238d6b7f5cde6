"""The update for networks: an optimizer of torch with a Kronecker-factored precision for every parameter."""

from natgrad.optimization.ngd import NGD
from natgrad.optimization.shapes import Blocks

__all__ = ["NGD", "Blocks"]
