"""Measure losses after a server has died."""
