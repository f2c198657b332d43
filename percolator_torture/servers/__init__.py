"""Servers that are there to be killed."""
