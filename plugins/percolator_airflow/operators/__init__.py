"""Operators: load, drain, resolve locks, collect garbage, maintain bases, monitor, publish, back up."""
