"""Ready-made parts for chains, built on a transaction's public methods alone."""

from percolator_core.recipes.combine import CombineQueue

__all__ = ["CombineQueue"]
