"""Measure losses when a server is taken away."""
