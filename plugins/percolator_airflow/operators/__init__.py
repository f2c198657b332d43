"""Operators: load, drain, resolve locks, collect garbage, monitor."""
