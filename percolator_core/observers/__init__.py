"""Observers: their declarations in YAML and in Python, the chain that they form, and its graph."""

from percolator_core.observers.chain import Chain
from percolator_core.observers.guard import Guard, ObserverTransaction, guards
from percolator_core.observers.observer import Observer, Retry

__all__ = ["Chain", "Guard", "Observer", "ObserverTransaction", "Retry", "guards"]
